#include "quant/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "quant/linear_algebra.h"
#include "quant/round_to_even.h"

namespace hexport::quant {
namespace {

// Features whose errors are spread among themselves before one product spreads them to the rest.
constexpr size_t kFeaturesAtOnce = 128;

std::vector<float> Permuted(std::span<const float> h, const std::vector<size_t>& order) {
  const size_t n = order.size();
  std::vector<float> out(n * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) out[i * n + j] = h[order[i] * n + order[j]];
  }
  return out;
}

// Weights in the order of rounding, with the errors so far made up for: [in, out].
std::vector<float> InOrder(std::span<const float> weights, const std::vector<size_t>& order,
                           size_t columns) {
  std::vector<float> out(order.size() * columns);
  for (size_t i = 0; i < order.size(); ++i) {
    std::copy_n(weights.begin() + static_cast<std::ptrdiff_t>(order[i] * columns), columns,
                out.begin() + static_cast<std::ptrdiff_t>(i * columns));
  }
  return out;
}

// Rounds feature number `i`; `error` [out] becomes its error over the pivot.
void RoundFeature(const GptqFactors& factors, const std::vector<float>& remaining, size_t i,
                  size_t first, size_t last, float* error, QuantizedWeight& out) {
  const size_t columns = static_cast<size_t>(out.out_features), k = factors.order[i];
  const size_t in = static_cast<size_t>(out.in_features);
  const float over_pivot = 1.0f / factors.factor[i * in + i];
  const float top = out.format == WeightFormat::kInt8 ? 127.0f : 7.0f;
  const float bottom = out.format == WeightFormat::kInt8 ? -127.0f : -8.0f;
  const uint8_t* blocks = nullptr;
  if (!out.block_scales.empty())
    blocks = out.block_scales.data() + k / static_cast<size_t>(out.block_size) * columns;
  const float* row = remaining.data() + i * columns;
  int8_t* codes = out.codes.data() + k * columns;
  for (size_t n = first; n < last; ++n) {
    float scale = out.channel_scales[n];
    if (blocks != nullptr) scale *= static_cast<float>(blocks[n]);
    const float code = RoundToEven(std::min(std::max(row[n] / scale, bottom), top));
    codes[n] = static_cast<int8_t>(code);
    error[n] = (row[n] - code * scale) * over_pivot;
  }
}

void RoundAll(std::span<const float> weights, const GptqFactors& factors, QuantizedWeight& out) {
  const size_t in = static_cast<size_t>(out.in_features);
  const size_t columns = static_cast<size_t>(out.out_features);
  std::vector<float> remaining = InOrder(weights, factors.order, columns);
  std::vector<float> errors(kFeaturesAtOnce * columns), panel;
  for (size_t begin = 0; begin < in; begin += kFeaturesAtOnce) {
    const size_t end = std::min(in, begin + kFeaturesAtOnce);
    // Output channels do not depend on each other.
    ParallelFor(columns, [&](size_t first, size_t last) {
      for (size_t i = begin; i < end; ++i) {
        float* error = errors.data() + (i - begin) * columns;
        RoundFeature(factors, remaining, i, first, last, error, out);
        for (size_t j = i + 1; j < end; ++j) {
          const float share = factors.factor[i * in + j];
          float* row = remaining.data() + j * columns;
          for (size_t n = first; n < last; ++n) row[n] -= share * error[n];
        }
      }
    });
    if (end == in) break;
    // remaining[end..] -= factor[begin..end, end..]^T errors
    panel.resize((in - end) * (end - begin));
    for (size_t j = end; j < in; ++j) {
      for (size_t i = begin; i < end; ++i)
        panel[(j - end) * (end - begin) + (i - begin)] = factors.factor[i * in + j];
    }
    Multiply(panel, std::span<const float>(errors).first((end - begin) * columns), in - end,
             end - begin, columns, -1.0f, 1.0f, std::span<float>(remaining).subspan(end * columns));
  }
}

}  // namespace

Result<GptqFactors> FactorGptq(std::span<const float> hessian, int64_t in_features,
                               const GptqOptions& options) {
  if (in_features < 1 || hessian.size() != static_cast<size_t>(in_features * in_features)) {
    return InvalidArgument("expected a hessian of " + std::to_string(in_features) + " x " +
                           std::to_string(in_features) + ", got " + std::to_string(hessian.size()) +
                           " values");
  }
  const auto in = static_cast<size_t>(in_features);
  GptqFactors out;
  double mean = 0.0;
  for (size_t i = 0; i < in; ++i) {
    mean += static_cast<double>(hessian[i * in + i]);
    if (options.weigh_scales) out.importance.push_back(hessian[i * in + i]);
  }
  mean = std::max(mean / static_cast<double>(in), 1e-12);
  out.order.resize(in);
  std::iota(out.order.begin(), out.order.end(), size_t{0});
  if (options.act_order) {
    std::stable_sort(out.order.begin(), out.order.end(),
                     [&](size_t a, size_t b) { return hessian[a * in + a] > hessian[b * in + b]; });
  }
  std::vector<float> h = Permuted(hessian, out.order);
  // A feature that was never active stands alone.
  for (size_t i = 0; i < in; ++i) {
    if (h[i * in + i] <= 0.0f) h[i * in + i] = static_cast<float>(mean * (1.0 - options.damping));
  }
  HEXPORT_ASSIGN_OR_RETURN(out.factor, InverseFactor(h, in, options.damping * mean));
  return out;
}

Result<QuantizedWeight> QuantizeGptq(std::span<const float> weights, int64_t in_features,
                                     int64_t out_features, const GptqFactors& factors,
                                     const WeightOptions& weight_options) {
  HEXPORT_ASSIGN_OR_RETURN(QuantizedWeight out, QuantizeRtn(weights, in_features, out_features,
                                                            weight_options, factors.importance));
  RoundAll(weights, factors, out);
  return out;
}

Result<QuantizedWeight> QuantizeGptq(std::span<const float> weights, int64_t in_features,
                                     int64_t out_features, std::span<const float> hessian,
                                     const WeightOptions& weight_options,
                                     const GptqOptions& options) {
  Result<GptqFactors> factors = FactorGptq(hessian, in_features, options);
  if (!factors.ok()) return factors.status().WithContext("GPTQ");
  return QuantizeGptq(weights, in_features, out_features, *factors, weight_options);
}

}  // namespace hexport::quant
