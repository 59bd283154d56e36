// Calibration and the float reference, layer by layer: one decoder layer's weights in memory at a
// time.
#pragma once

#include <cstdint>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "quant/encoding.h"

namespace hexport::quant {

using TokenIds = std::vector<int32_t>;

struct Calibration {
  // For every activation of the whole decoder graph, by the names BuildDecoder gives it (they do
  // not depend on AR or CL). MinMax over all samples. position_ids_cos/sin: one fixed range with
  // headroom; the masks: [mask floor, 0]; softmax outputs [0, 1]; past_*_in shares the range
  // of its past_*_out.
  RangeMap ranges;
  int64_t samples = 0;
  int64_t tokens = 0;
};

// Runs each sample through each layer with ONNX Runtime's CPU (one session at a time, hidden states
// kept between layers). Errors: kInvalidArgument (no samples, id outside the vocabulary), a NaN/Inf
// activation as kDataLoss naming the tensor. `context_length`: WalkOptions'.
Result<Calibration> Calibrate(const Checkpoint& checkpoint, const std::vector<TokenIds>& samples,
                              Progress& progress, int64_t context_length = 0);

// Float32 logits of every position of each sample: result[s] is [tokens, vocab_size] row-major.
// `context_length`: the longest text of the bundle that is compared; it chooses between longrope's
// factors. 0: each sample's own length, as transformers does.
Result<std::vector<std::vector<float>>> FloatLogits(const Checkpoint& checkpoint,
                                                    const std::vector<TokenIds>& samples,
                                                    Progress& progress, int64_t context_length = 0);

inline constexpr float kMaskFloor =
    -1000.0f;  // masked logit; u16 code 0. See docs/architecture.md.

}  // namespace hexport::quant
