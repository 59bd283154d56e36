#include "quant/seqmse.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "quant/linear_algebra.h"

namespace hexport::quant {
namespace {

constexpr int kRatios = 20;
constexpr float kLeastRatio = 0.4f;
constexpr int kStepsDown = 6, kStepsUp = 1;

float Round(float value, float scale, float bottom, float top) {
  return std::clamp(std::nearbyint(value / scale), bottom, top);
}

// Per output channel: sum over k of d[k, n] (H d)[k, n].
std::vector<double> OutputErrors(std::span<const float> difference, std::span<const float> hessian,
                                 size_t in, size_t columns) {
  std::vector<float> product(in * columns);
  Multiply(hessian, difference, in, in, columns, 1.0f, 0.0f, product);
  std::vector<double> out(columns, 0.0);
  for (size_t i = 0; i < product.size(); ++i)
    out[i % columns] += static_cast<double>(product[i]) * static_cast<double>(difference[i]);
  return out;
}

void ChooseChannelScales(std::span<const float> weights, std::span<const float> hessian,
                         QuantizedWeight& out) {
  const auto in = static_cast<size_t>(out.in_features);
  const auto columns = static_cast<size_t>(out.out_features);
  const float top = out.format == WeightFormat::kInt8 ? 127.0f : 7.0f, bottom = -top - 1.0f;
  const std::vector<float> widest = out.channel_scales;
  std::vector<double> least(columns, INFINITY);
  std::vector<float> difference(weights.size());
  for (int step = 0; step < kRatios; ++step) {
    const float ratio =
        1.0f - (1.0f - kLeastRatio) * static_cast<float>(step) / static_cast<float>(kRatios - 1);
    for (size_t i = 0; i < weights.size(); ++i) {
      const float scale = widest[i % columns] * ratio;
      difference[i] = weights[i] - scale * Round(weights[i], scale, bottom, top);
    }
    const std::vector<double> errors = OutputErrors(difference, hessian, in, columns);
    for (size_t n = 0; n < columns; ++n) {
      if (errors[n] >= least[n]) continue;
      least[n] = errors[n];
      out.channel_scales[n] = widest[n] * ratio;
    }
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    out.codes[i] =
        static_cast<int8_t>(Round(weights[i], out.channel_scales[i % columns], bottom, top));
  }
}

// One block of one output channel.
struct BlockSearch {
  std::vector<float> values;       // [size]
  std::vector<double> past;        // [size]: (H of block and earlier features) times their errors
  std::vector<double> within;      // [size, size]: H of the block
  std::vector<float> differences;  // of the candidate at hand
  double Error(float scale) {
    const size_t size = values.size();
    for (size_t k = 0; k < size; ++k)
      differences[k] = values[k] - scale * Round(values[k], scale, -8.0f, 7.0f);
    double error = 0.0;
    for (size_t i = 0; i < size; ++i) {
      double sum = 2.0 * past[i];
      for (size_t j = 0; j < size; ++j)
        sum += within[i * size + j] * static_cast<double>(differences[j]);
      error += sum * static_cast<double>(differences[i]);
    }
    return error;
  }
};

void ChooseBlockScales(std::span<const float> weights, std::span<const float> hessian,
                       QuantizedWeight& out) {
  const auto in = static_cast<size_t>(out.in_features);
  const auto columns = static_cast<size_t>(out.out_features);
  const auto size = static_cast<size_t>(out.block_size);
  std::vector<float> errors(in * columns, 0.0f), past(size * columns);
  for (size_t b = 0; b < in / size; ++b) {
    std::fill(past.begin(), past.end(), 0.0f);
    if (b > 0) {
      std::vector<float> rows(size * b * size);
      for (size_t i = 0; i < size; ++i)
        std::copy_n(hessian.data() + (b * size + i) * in, b * size, rows.data() + i * b * size);
      Multiply(rows, std::span<const float>(errors).first(b * size * columns), size, b * size,
               columns, 1.0f, 0.0f, past);
    }
    ParallelFor(columns, [&](size_t first, size_t last) {
      BlockSearch search{std::vector<float>(size), std::vector<double>(size),
                         std::vector<double>(size * size), std::vector<float>(size)};
      for (size_t i = 0; i < size; ++i) {
        for (size_t j = 0; j < size; ++j)
          search.within[i * size + j] =
              static_cast<double>(hessian[(b * size + i) * in + b * size + j]);
      }
      for (size_t n = first; n < last; ++n) {
        float largest = 0.0f;
        for (size_t k = 0; k < size; ++k) {
          search.values[k] = weights[(b * size + k) * columns + n];
          search.past[k] = static_cast<double>(past[k * columns + n]);
          largest = std::max(largest, std::fabs(search.values[k]));
        }
        const float channel = out.channel_scales[n];
        const int widest =
            static_cast<int>(std::clamp(std::ceil(largest / 7.0f / channel), 1.0f, 16.0f));
        double least = INFINITY;
        int best = widest;
        for (int i = std::max(1, widest - kStepsDown); i <= std::min(16, widest + kStepsUp); ++i) {
          const double error = search.Error(channel * static_cast<float>(i));
          if (error < least) least = error, best = i;
        }
        const float scale = channel * static_cast<float>(best);
        out.block_scales[b * columns + n] = static_cast<uint8_t>(best);
        for (size_t k = 0; k < size; ++k) {
          const float code = Round(search.values[k], scale, -8.0f, 7.0f);
          out.codes[(b * size + k) * columns + n] = static_cast<int8_t>(code);
          errors[(b * size + k) * columns + n] = search.values[k] - scale * code;
        }
      }
    });
  }
}

}  // namespace

Result<QuantizedWeight> QuantizeSeqMse(std::span<const float> weights, int64_t in_features,
                                       int64_t out_features, std::span<const float> hessian,
                                       const WeightOptions& options) {
  HEXPORT_ASSIGN_OR_RETURN(QuantizedWeight out,
                           QuantizeRtn(weights, in_features, out_features, options));
  if (hessian.size() != static_cast<size_t>(in_features * in_features)) {
    return InvalidArgument("SeqMSE: expected a hessian of " + std::to_string(in_features) + " x " +
                           std::to_string(in_features) + ", got " + std::to_string(hessian.size()) +
                           " values");
  }
  if (options.format == WeightFormat::kLpbq) {
    ChooseBlockScales(weights, hessian, out);
  } else {
    ChooseChannelScales(weights, hessian, out);
  }
  return out;
}

}  // namespace hexport::quant
