// Architecture -> float decoder graph with Genie's tensor names (docs/architecture.md lists them).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
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
  bool embedding = true;    // only with first_layer 0
  bool head = true;         // only with last_layer == num_hidden_layers
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

// Inputs, in order: input_ids [1,AR] int32 (or hidden_in), attention_mask [1,1,AR,CL],
// position_ids_cos and position_ids_sin [1,1,AR,head_dim/2], then per layer past_key_{l}_in
// [H,1,D,CL-AR], past_value_{l}_in [H,1,CL-AR,D]. Outputs: logits [1,AR,V] (or hidden_out), then
// per layer past_key_{l}_out [H,1,D,AR] and past_value_{l}_out [H,1,AR,D]. Only the layers of the
// range appear; without layers neither mask, cos nor sin. Weight sources read from `checkpoint`,
// which must outlive the graph. Errors: kInvalidArgument (cl <= ar, one of them dynamic and the
// other not, bad layer range), kNotFound (a tensor).
Result<DecoderGraph> BuildDecoder(const Checkpoint& checkpoint, const DecoderOptions& options);

// Linear weight in the graph's layout: [in_features, out_features] row-major float32, scale folded
// in. Reads a block of rows at a time. Errors: Checkpoint::ReadRows', kInvalidArgument (size of
// `out`).
Status ReadLinear(const Checkpoint& checkpoint, const LinearWeight& linear, std::span<float> out);

// Frequencies of RoPE's head_dim/2 pairs in radians a position, rope_scaling applied.
std::vector<double> InverseFrequencies(const ModelConfig& config);

// cos and sin of RoPE for positions [first, first+count): each [count, head_dim/2] row-major.
// Phases in double, rope_scaling applied (llama3: wavelengths 2*pi/f; linear). RoPE:
// arXiv:2104.09864.
void RopeTable(const ModelConfig& config, int64_t first, int64_t count, std::vector<float>& cos,
               std::vector<float>& sin);

// attention_mask of one call, [ar, cl] row-major: 0 where a token may look, `floor` elsewhere. The
// past is left-aligned in columns [0, cl-ar) with `past` valid ones; the `count` new tokens sit
// from column cl-ar on and each sees itself and those before it. Rows of padding (>= count) are all
// `floor`. Requires 0 <= past <= cl-ar and 0 <= count <= ar; values beyond are cut to that.
std::vector<float> AttentionMask(int64_t ar, int64_t cl, int64_t past, int64_t count, float floor);

// AttentionMask of a whole text without past: [n, n].
std::vector<float> CausalMask(int64_t n, float floor);

}  // namespace hexport::decoder
