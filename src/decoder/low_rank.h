// Low-rank branches beside the linear layers of a decoder graph: a LoRA adapter applied unmerged.
#pragma once

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "decoder/decoder.h"

namespace hexport::decoder {

// y = base_gain * (x W) + sum over terms of (x right^T) left^T, as in LoRA (arXiv:2106.09685).
// Every scale is folded into `left`; DoRA's row norms are folded into `left` and `base_gain`
// (arXiv:2402.09353).
struct LowRankBranch {
  struct Term {
    int64_t rank = 0;
    std::vector<float> left;   // [out_features, rank] row-major
    std::vector<float> right;  // [rank, in_features] row-major
  };
  std::vector<Term> terms;
  std::vector<float> base_gain;  // [out_features]; empty: 1
};

// Puts the branch beside the MatMul of graph.linears[linear]; the sum takes the MatMul's name, so
// that what follows (a bias, a norm) reads it. The linear's own `scale` is applied to the branch
// too. The nodes stay topologically sorted; the new activations are not added to graph.activations.
// Errors: kInvalidArgument (sizes that do not fit, no such linear), kInternal (graph without that
// MatMul).
Status AddLowRankBranch(DecoderGraph& graph, size_t linear, const LowRankBranch& branch);

}  // namespace hexport::decoder
