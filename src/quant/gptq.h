// GPTQ: rounding that makes up for its own error, from the inputs that calibration saw.
// arXiv:2210.17323.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "quant/weights.h"

namespace hexport::quant {

struct GptqOptions {
  double damping = 0.01;  // added to H's diagonal, as a share of its mean
  // Features with the largest inputs first (the reference code's desc_act). Scales stay where they
  // are: blocks are of neighbouring features whatever the order.
  bool act_order = true;
  // LPBQ's integer scales are those that lose least when errors weigh as H's diagonal says.
  bool weigh_scales = true;
};

// Codes of `out` for the scales it holds. Input features are rounded one after the other, and the
// error of each is spread over those not yet rounded, as H^-1 says, with H = X^T X + damping.
// weights: [in_features, out_features]; hessian: X^T X of the inputs [tokens, in_features],
// [in_features, in_features] row-major, symmetric. Features that were never active are rounded to
// nearest. Errors: kInvalidArgument for a wrong size or a hessian that is not positive even when
// damped. Uses all cores.
Status GptqRound(std::span<const float> weights, std::span<const float> hessian,
                 const GptqOptions& options, QuantizedWeight& out);

// GptqRound with QuantizeRtn's scales (see weigh_scales). Errors: both's.
Result<QuantizedWeight> QuantizeGptq(std::span<const float> weights, int64_t in_features,
                                     int64_t out_features, std::span<const float> hessian,
                                     const WeightOptions& weight_options,
                                     const GptqOptions& options = {});

}  // namespace hexport::quant
