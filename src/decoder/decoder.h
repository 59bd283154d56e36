// Architecture -> float decoder graph with Genie's tensor names (docs/architecture.md lists them).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "graph/graph.h"

namespace hexport::decoder {

// One call of the graph: `ar` new tokens, `cl` = past + new. kDynamicDim for both gives symbolic dimensions
// "ar", "past" and "cl", valid for any text in one call (float reference, CPU engine).
// Layers [first_layer, last_layer) with the embedding before (input `input_ids`, else `hidden_in` [1,AR,E])
// and/or the final norm + lm_head after (output `logits`, else `hidden_out` [1,AR,E]).
struct DecoderOptions {
  int64_t ar = kDynamicDim;
  int64_t cl = kDynamicDim;
  int64_t first_layer = 0;
  int64_t last_layer = -1;  // -1: num_hidden_layers
  bool embedding = true;
  bool head = true;
};

// The kind of each weight, so that later passes need not parse names.
struct LinearWeight {
  std::string name;         // initializer's name, "layers.0.q_proj.weight" as [in_features, out_features]
  std::string tensor;       // checkpoint tensor it was made from
  int64_t in_features = 0, out_features = 0;
  double scale = 1.0;       // folded in: 1/sqrt(head_dim) for q_proj
  bool lm_head = false;
  int64_t layer = -1;
};

// A float32 graph. Activations are every node output plus the float inputs. Nodes named by convention:
// MatMul "layers.3.mlp.down_proj", outputs likewise. Identity nodes "past_key_3_out", "past_value_3_out" mark the
// change of encoding from activation to cache.
struct DecoderGraph {
  graph::Graph graph;
  std::vector<LinearWeight> linears;
  std::string embedding;    // initializer's name, "" when not embedded
};

// Inputs, in order: input_ids [1,AR] int32 (or hidden_in), attention_mask [1,1,AR,CL], position_ids_cos and
// position_ids_sin [1,1,AR,head_dim/2], then per layer past_key_{l}_in [H,1,D,CL-AR], past_value_{l}_in
// [H,1,CL-AR,D]. Outputs: logits [1,AR,V] (or hidden_out), then per layer past_key_{l}_out [H,1,D,AR] and
// past_value_{l}_out [H,1,AR,D]. Only the layers of the range appear.
// Weight sources read from `checkpoint`, which must outlive the graph.
// Errors: kInvalidArgument (cl <= ar, bad layer range).
Result<DecoderGraph> BuildDecoder(const Checkpoint& checkpoint, const DecoderOptions& options);

// Linear weight in the graph's layout: [in_features, out_features] row-major float32, scale folded in.
Status ReadLinear(const Checkpoint& checkpoint, const LinearWeight& linear, std::span<float> out);

// cos and sin of RoPE for positions [first, first+count): each [count, head_dim/2] row-major. Phases in double,
// rope_scaling applied (llama3: wavelengths 2*pi/f; linear). RoPE: arXiv:2104.09864.
void RopeTable(const ModelConfig& config, int64_t first, int64_t count, std::vector<float>& cos,
               std::vector<float>& sin);

}  // namespace hexport::decoder
