// GPTQ: rounding that makes up for its own error, from the inputs that calibration saw.
// arXiv:2210.17323.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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

// What the inputs alone decide: of a linear whose columns are quantized piece by piece.
struct GptqFactors {
  std::vector<size_t> order;      // order[i]: the feature that is rounded as number i
  std::vector<float> factor;      // InverseFactor of the hessian in that order
  std::vector<float> importance;  // H's diagonal; empty unless weigh_scales
};
// hessian: X^T X of the inputs [tokens, in_features], [in_features, in_features] row-major,
// symmetric. Errors: kInvalidArgument for a wrong size or a hessian that is not positive even when
// damped.
Result<GptqFactors> FactorGptq(std::span<const float> hessian, int64_t in_features,
                               const GptqOptions& options = {});

// QuantizeRtn's scales (see weigh_scales), and codes for them: input features are rounded one after
// the other, and the error of each is spread over those not yet rounded, as H^-1 says, with H = X^T
// X + damping. weights: [in_features, out_features]. Features that were never active are rounded to
// nearest. Uses all cores. Errors: QuantizeRtn's.
Result<QuantizedWeight> QuantizeGptq(std::span<const float> weights, int64_t in_features,
                                     int64_t out_features, const GptqFactors& factors,
                                     const WeightOptions& weight_options);
// The same with a hessian's factors. Errors: FactorGptq's too.
Result<QuantizedWeight> QuantizeGptq(std::span<const float> weights, int64_t in_features,
                                     int64_t out_features, std::span<const float> hessian,
                                     const WeightOptions& weight_options,
                                     const GptqOptions& options = {});

}  // namespace hexport::quant
