// Architecture -> float decoder graph with Genie's tensor names (docs/architecture.md lists them).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "graph/graph.h"

namespace hexport::decoder {

// One call of the graph: `ar` new tokens, `cl` = past + new. kDynamicDim for both gives symbolic
// dimensions "ar", "past" and "cl", valid for any text in one call, also with an empty past (float
// reference, CPU engine). Layers [first_layer, last_layer) with the embedding before (input
// `input_ids`, else `hidden_in` [1,AR,E]) and/or the final norm + lm_head after (output `logits`,
// else `hidden_out` [1,AR,E]). The range may be empty: embedding alone (0, 0) or head alone
// (num_hidden_layers, num_hidden_layers).
struct DecoderOptions {
  int64_t ar = kDynamicDim;
  int64_t cl = kDynamicDim;
  int64_t first_layer = 0;
  int64_t last_layer = -1;  // -1: num_hidden_layers
  // Longest text of a dynamic graph; static ones have cl. Where no layer's window is shorter, the
  // graph needs no second mask. 0: unknown.
  int64_t context_length = 0;
  // A tied head reads the embedding's own initializer, so that a float file holds its bytes once.
  // Only with embedding and head; the head is then no entry of `linears`, and cannot be quantized.
  bool share_tied_embedding = false;
  bool embedding = true;  // only with first_layer 0
  bool head = true;       // only with last_layer == num_hidden_layers
};

// The kind of each weight, so that later passes need not parse names.
struct LinearWeight {
  std::string name;    // initializer's name, "layers.0.self_attn.q_proj.weight" as [in_features,
                       // out_features]
  std::string tensor;  // checkpoint tensor it was made from
  int64_t in_features = 0, out_features = 0;
  double scale =
      1.0;  // folded in: 1/sqrt(head_dim) for q_proj (with qk_norm it sits in q_norm's weight)
  bool lm_head = false;
  int64_t layer = -1;
  int64_t first_row = 0;  // of `tensor`: fused tensors hold several linears' rows
};

// A float32 activation: a float graph input or a node output, with its shape.
struct Activation {
  graph::ValueInfo value;  // name in this graph; dynamic dimensions carry "ar", "past", "cl" or ""
  std::string
      name;  // name in the full graph; differs for hidden_in and hidden_out only (see ResidualName)
};

// A float32 graph. Nodes are named after their output. MatMuls are "layers.3.mlp.down_proj"; a bias
// is added by "layers.3.self_attn.q_proj.biased". Identity nodes "past_key_3_out",
// "past_value_3_out" mark the change of encoding from activation to cache. Names depend neither on
// AR and CL nor on the layer range, except hidden_in/out.
struct DecoderGraph {
  graph::Graph graph;
  std::vector<LinearWeight> linears;
  std::string embedding;                // initializer's name, "" when not embedded
  std::vector<Activation> activations;  // float inputs in their order, then node outputs in theirs
};

// Name, in the full graph, of the residual stream that enters `layer`: "layers.{layer}.input"
// (layer 0: what the embedding gives), or "norm.input" for layer == num_hidden_layers. In a graph
// of layers [first, last), hidden_in stands for ResidualName(config, first) and hidden_out for
// ResidualName(config, last).
std::string ResidualName(const ModelConfig& config, int64_t layer);

// Inputs, in order: input_ids [1,AR] int32 (or hidden_in), the masks [1,1,AR,CL] and tables
// [1,1,AR,rotary_dim/2] that the layers of the range need, then per layer past_key_{l}_in
// [H,1,D,CL-AR], past_value_{l}_in [H,1,CL-AR,D]. Masks and tables:
//   attention_mask                          layers that see everything before
//   sliding_attention_mask                  layers with a window shorter than the context
//   position_ids_cos, position_ids_sin      layers with RoPE
//   local_position_ids_cos, .._sin          sliding layers of models with a second RoPE
// A graph has only those of them that a layer reads. Outputs: logits [1,AR,V] (or hidden_out), then
// per layer past_key_{l}_out [H,1,D,AR] and past_value_{l}_out [H,1,AR,D]. Only the layers of the
// range appear. Weight sources read from `checkpoint`, which must outlive the graph. Errors:
// kInvalidArgument (cl <= ar, one of them dynamic and the other not, bad layer range), kNotFound (a
// tensor).
Result<DecoderGraph> BuildDecoder(const Checkpoint& checkpoint, const DecoderOptions& options);

// Linear weight in the graph's layout: [in_features, out_features] row-major float32, scale folded
// in. Reads a block of rows at a time. Errors: Checkpoint::ReadRows', kInvalidArgument (size of
// `out`).
Status ReadLinear(const Checkpoint& checkpoint, const LinearWeight& linear, std::span<float> out);

// Rows [first_row, first_row + out.size() / hidden_size) of the embedding as the graph looks them
// up: embedding_scale applied. Errors: Checkpoint::ReadRows'.
Status ReadEmbedding(const Checkpoint& checkpoint, int64_t first_row, std::span<float> out);

// What a call of a graph needs beside the residual or the tokens, for hosts that call it: the
// values of those inputs above that `input` names, for `count` tokens after `past`. [ar, cl] for a
// mask, else [ar, rotary_dim / 2]. `context_length` as in InverseFrequencies. nullopt for another
// name.
struct StepInputs {
  const ModelConfig& config;
  int64_t ar = 0, cl = 0, past = 0, count = 0, context_length = 0;
  float mask_floor = -1000.0f;
};
std::optional<std::vector<float>> StepInput(const StepInputs& step, std::string_view input);

}  // namespace hexport::decoder
