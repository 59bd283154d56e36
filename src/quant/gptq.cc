#include "quant/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "quant/linear_algebra.h"

namespace hexport::quant {
namespace {

// Features whose errors are spread among themselves before one product spreads them to the rest.
constexpr size_t kFeaturesAtOnce = 128;

// The order in which features are rounded, and everything else in that order.
struct Ordered {
  std::vector<size_t> order;     // order[i]: the feature that is rounded as number i
  std::vector<float> factor;     // InverseFactor of the hessian in that order
  std::vector<float> remaining;  // [in, out]: weights with the errors so far made up for
};

std::vector<float> Permuted(std::span<const float> h, const std::vector<size_t>& order) {
  const size_t n = order.size();
  std::vector<float> out(n * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) out[i * n + j] = h[order[i] * n + order[j]];
  }
  return out;
}

Result<Ordered> Prepare(std::span<const float> weights, std::span<const float> hessian, size_t in,
                        size_t out, const GptqOptions& options) {
  Ordered result;
  double mean = 0.0;
  for (size_t i = 0; i < in; ++i) mean += static_cast<double>(hessian[i * in + i]);
  mean = std::max(mean / static_cast<double>(in), 1e-12);
  result.order.resize(in);
  std::iota(result.order.begin(), result.order.end(), size_t{0});
  if (options.act_order) {
    std::stable_sort(result.order.begin(), result.order.end(),
                     [&](size_t a, size_t b) { return hessian[a * in + a] > hessian[b * in + b]; });
  }
  std::vector<float> h = Permuted(hessian, result.order);
  // A feature that was never active stands alone.
  for (size_t i = 0; i < in; ++i) {
    if (h[i * in + i] <= 0.0f) h[i * in + i] = static_cast<float>(mean * (1.0 - options.damping));
  }
  HEXPORT_ASSIGN_OR_RETURN(result.factor, InverseFactor(h, in, options.damping * mean));
  result.remaining.resize(in * out);
  for (size_t i = 0; i < in; ++i) {
    std::copy_n(weights.begin() + static_cast<std::ptrdiff_t>(result.order[i] * out), out,
                result.remaining.begin() + static_cast<std::ptrdiff_t>(i * out));
  }
  return result;
}

// Rounds feature number `i`; `error` [out] becomes its error over the pivot.
void RoundFeature(const Ordered& ordered, size_t i, size_t first, size_t last, float* error,
                  QuantizedWeight& out) {
  const size_t columns = static_cast<size_t>(out.out_features), k = ordered.order[i];
  const size_t in = static_cast<size_t>(out.in_features);
  const float over_pivot = 1.0f / ordered.factor[i * in + i];
  const float top = out.format == WeightFormat::kInt8 ? 127.0f : 7.0f;
  const float bottom = out.format == WeightFormat::kInt8 ? -127.0f : -8.0f;
  const uint8_t* blocks = nullptr;
  if (!out.block_scales.empty())
    blocks = out.block_scales.data() + k / static_cast<size_t>(out.block_size) * columns;
  const float* row = ordered.remaining.data() + i * columns;
  int8_t* codes = out.codes.data() + k * columns;
  for (size_t n = first; n < last; ++n) {
    float scale = out.channel_scales[n];
    if (blocks != nullptr) scale *= static_cast<float>(blocks[n]);
    const float code = std::clamp(std::nearbyint(row[n] / scale), bottom, top);
    codes[n] = static_cast<int8_t>(code);
    error[n] = (row[n] - code * scale) * over_pivot;
  }
}

void RoundAll(Ordered& ordered, QuantizedWeight& out) {
  const size_t in = static_cast<size_t>(out.in_features);
  const size_t columns = static_cast<size_t>(out.out_features);
  std::vector<float> errors(kFeaturesAtOnce * columns), panel;
  for (size_t begin = 0; begin < in; begin += kFeaturesAtOnce) {
    const size_t end = std::min(in, begin + kFeaturesAtOnce);
    // Output channels do not depend on each other.
    ParallelFor(columns, [&](size_t first, size_t last) {
      for (size_t i = begin; i < end; ++i) {
        float* error = errors.data() + (i - begin) * columns;
        RoundFeature(ordered, i, first, last, error, out);
        for (size_t j = i + 1; j < end; ++j) {
          const float share = ordered.factor[i * in + j];
          float* row = ordered.remaining.data() + j * columns;
          for (size_t n = first; n < last; ++n) row[n] -= share * error[n];
        }
      }
    });
    if (end == in) break;
    // remaining[end..] -= factor[begin..end, end..]^T errors
    panel.resize((in - end) * (end - begin));
    for (size_t j = end; j < in; ++j) {
      for (size_t i = begin; i < end; ++i)
        panel[(j - end) * (end - begin) + (i - begin)] = ordered.factor[i * in + j];
    }
    Multiply(panel, std::span<const float>(errors).first((end - begin) * columns), in - end,
             end - begin, columns, -1.0f, 1.0f,
             std::span<float>(ordered.remaining).subspan(end * columns));
  }
}

}  // namespace

Status GptqRound(std::span<const float> weights, std::span<const float> hessian,
                 const GptqOptions& options, QuantizedWeight& out) {
  const auto in = static_cast<size_t>(out.in_features);
  const auto columns = static_cast<size_t>(out.out_features);
  if (in < 1 || hessian.size() != in * in || weights.size() != in * columns) {
    return InvalidArgument("GPTQ: expected a hessian of " + std::to_string(in) + " x " +
                           std::to_string(in) + ", got " + std::to_string(hessian.size()) +
                           " values");
  }
  Result<Ordered> ordered = Prepare(weights, hessian, in, columns, options);
  if (!ordered.ok()) return ordered.status().WithContext("GPTQ");
  RoundAll(*ordered, out);
  return OkStatus();
}

Result<QuantizedWeight> QuantizeGptq(std::span<const float> weights, int64_t in_features,
                                     int64_t out_features, std::span<const float> hessian,
                                     const WeightOptions& weight_options,
                                     const GptqOptions& options) {
  std::vector<float> importance;
  const auto in = static_cast<size_t>(in_features);
  for (size_t i = 0; options.weigh_scales && i < in && i * in + i < hessian.size(); ++i)
    importance.push_back(hessian[i * in + i]);
  HEXPORT_ASSIGN_OR_RETURN(QuantizedWeight out, QuantizeRtn(weights, in_features, out_features,
                                                            weight_options, importance));
  HEXPORT_RETURN_IF_ERROR(GptqRound(weights, hessian, options, out));
  return out;
}

}  // namespace hexport::quant
