// GPTQ: rounding that makes up for its own error, from the inputs that calibration saw.
// arXiv:2210.17323.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"
#include "quant/calibrate.h"
#include "quant/weights.h"

namespace hexport::quant {

// Scales and formats are those of QuantizeRtn; only the codes differ. Input features are rounded
// one after the other, and the error of each is spread over those not yet rounded, as H^-1 says,
// with H = X^T X + damping. weights: [in_features, out_features]; hessian: X^T X of the inputs
// [tokens, in_features], [in_features, in_features] row-major, symmetric. `damping` is a share of
// the mean of H's diagonal. Features that were never active are rounded to nearest. Errors:
// QuantizeRtn's; kInvalidArgument for a wrong size or a hessian that is not positive even when
// damped.
Result<QuantizedWeight> QuantizeGptq(std::span<const float> weights, int64_t in_features,
                                     int64_t out_features, std::span<const double> hessian,
                                     const WeightOptions& options, double damping = 0.01);

// QuantizeWeights with GPTQ for every linear but lm_head: the float model walks over `samples`
// layer by layer, and a layer is quantized when all samples have passed it. Errors: WalkDecoder's
// and QuantizeWeights's. `context_length`: WalkOptions'.
Status QuantizeWeightsGptq(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
                           const WeightOptions& options, const std::vector<TokenIds>& samples,
                           const std::filesystem::path& path, Progress& progress,
                           int64_t context_length = 0);

}  // namespace hexport::quant
