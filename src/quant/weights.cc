#include "quant/weights.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "quant/linear_algebra.h"
#include "quant/round_to_even.h"

namespace hexport::quant {
namespace {

// Below it a channel is dead: its codes are zero whatever the scale, which must stay finite and
// positive.
constexpr float kSmallestScale = 1e-9f;
constexpr float kInt4Top = 7.0f;

Status CheckArguments(std::span<const float> weights, int64_t in_features, int64_t out_features,
                      const WeightOptions& options) {
  if (in_features <= 0 || out_features <= 0 ||
      static_cast<int64_t>(weights.size()) != in_features * out_features) {
    return InvalidArgument("weights: expected " + ShapeString({in_features, out_features}) +
                           " elements, got " + std::to_string(weights.size()));
  }
  if (options.format == WeightFormat::kLpbq &&
      (options.block_size <= 0 || in_features % options.block_size != 0)) {
    return InvalidArgument("LPBQ block: expected a divisor of in_features " +
                           std::to_string(in_features) + ", got " +
                           std::to_string(options.block_size) + "; use int8 for this tensor");
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i])) {
      return DataLoss("weights[" + std::to_string(static_cast<int64_t>(i) / out_features) + ", " +
                      std::to_string(static_cast<int64_t>(i) % out_features) +
                      "]: expected a finite number, got " + std::to_string(weights[i]));
    }
  }
  return OkStatus();
}

int8_t Code(float value, float scale, float top) {
  return static_cast<int8_t>(RoundToEven(std::min(std::max(value / scale, -top - 1.0f), top)));
}

void QuantizePerChannel(std::span<const float> weights, float top, QuantizedWeight& out) {
  const size_t columns = static_cast<size_t>(out.out_features);
  out.channel_scales.assign(columns, 0.0f);
  float* scales = out.channel_scales.data();
  ParallelFor(columns, [&](size_t first, size_t last) {
    for (size_t row = 0; row < weights.size(); row += columns) {
      for (size_t n = first; n < last; ++n)
        scales[n] = std::max(scales[n], std::fabs(weights[row + n]));
    }
    for (size_t n = first; n < last; ++n) scales[n] = std::max(scales[n] / top, kSmallestScale);
    for (size_t row = 0; row < weights.size(); row += columns) {
      for (size_t n = first; n < last; ++n)
        out.codes[row + n] = Code(weights[row + n], scales[n], top);
    }
  });
}

// Squared error of one block at this scale; `importance` (as many) weighs it, empty: evenly.
double BlockError(std::span<const float> block, float scale, std::span<const float> importance) {
  double error = 0.0;
  for (size_t k = 0; k < block.size(); ++k) {
    const double difference =
        static_cast<double>(block[k] - scale * static_cast<float>(Code(block[k], scale, kInt4Top)));
    error +=
        difference * difference * (importance.empty() ? 1.0 : static_cast<double>(importance[k]));
  }
  return error;
}

// The rounded integer scale or one near it, whichever restores the block best: clipping a block's
// few largest weights often costs less than coarser steps for the rest, and sometimes more.
uint8_t BestInteger(std::span<const float> block, float channel, uint8_t rounded,
                    std::span<const float> importance) {
  uint8_t best = rounded;
  double least = BlockError(block, channel * static_cast<float>(rounded), importance);
  for (const int step : {-4, -3, -2, -1, 1}) {
    const int candidate = rounded + step;
    if (candidate < 1 || candidate > 16) continue;
    const double error = BlockError(block, channel * static_cast<float>(candidate), importance);
    if (error < least) {
      least = error;
      best = static_cast<uint8_t>(candidate);
    }
  }
  return best;
}

// Channel scales and rounded integers of columns [first, last).
void SplitColumns(std::span<const float> weights, size_t first, size_t last, QuantizedWeight& out) {
  const size_t columns = static_cast<size_t>(out.out_features), width = last - first;
  const size_t size = static_cast<size_t>(out.block_size);
  const size_t blocks = static_cast<size_t>(out.in_features) / size;
  std::vector<float> largest(blocks * width, 0.0f), scales(blocks);
  for (size_t k = 0; k < blocks * size; ++k) {
    const float* row = weights.data() + k * columns + first;
    float* most = largest.data() + k / size * width;
    for (size_t n = 0; n < width; ++n) most[n] = std::max(most[n], std::fabs(row[n]));
  }
  for (size_t n = 0; n < width; ++n) {
    for (size_t b = 0; b < blocks; ++b) scales[b] = largest[b * width + n] / kInt4Top;
    const BlockScales split = SplitBlockScales(scales);
    out.channel_scales[first + n] = split.channel;
    for (size_t b = 0; b < blocks; ++b)
      out.block_scales[b * columns + first + n] = split.integers[b];
  }
}

// Integers and codes of one block in columns [first, last), whose rows stay in the cache.
void QuantizeBlock(std::span<const float> weights, std::span<const float> importance, size_t block,
                   size_t first, size_t last, QuantizedWeight& out) {
  const size_t columns = static_cast<size_t>(out.out_features);
  const size_t size = static_cast<size_t>(out.block_size);
  std::vector<float> values(size);
  for (size_t n = first; n < last; ++n) {
    for (size_t k = 0; k < size; ++k) values[k] = weights[(block * size + k) * columns + n];
    uint8_t& integer = out.block_scales[block * columns + n];
    integer = BestInteger(values, out.channel_scales[n], integer, importance);
    const float scale = out.channel_scales[n] * static_cast<float>(integer);
    for (size_t k = 0; k < size; ++k)
      out.codes[(block * size + k) * columns + n] = Code(values[k], scale, kInt4Top);
  }
}

void QuantizeBlocks(std::span<const float> weights, std::span<const float> importance,
                    QuantizedWeight& out) {
  const size_t columns = static_cast<size_t>(out.out_features);
  const size_t size = static_cast<size_t>(out.block_size);
  const size_t blocks = static_cast<size_t>(out.in_features) / size;
  out.channel_scales.resize(columns);
  out.block_scales.resize(blocks * columns);
  ParallelFor(columns, [&](size_t first, size_t last) {
    SplitColumns(weights, first, last, out);
    for (size_t b = 0; b < blocks; ++b) {
      QuantizeBlock(weights, importance.empty() ? importance : importance.subspan(b * size, size),
                    b, first, last, out);
    }
  });
}

constexpr std::array<std::pair<std::string_view, WeightFormat>, 3> kFormats = {
    {{"int8", WeightFormat::kInt8}, {"int4", WeightFormat::kInt4}, {"lpbq", WeightFormat::kLpbq}}};

}  // namespace

Result<WeightFormat> ParseWeightFormat(std::string_view text) {
  for (const auto& [name, format] : kFormats) {
    if (name == text) return format;
  }
  return InvalidArgument("weight format: expected int8, int4 or lpbq, got \"" + std::string(text) +
                         "\"");
}

std::string_view WeightFormatName(WeightFormat format) {
  for (const auto& [name, value] : kFormats) {
    if (value == format) return name;
  }
  return "unknown";
}

BlockScales SplitBlockScales(std::span<const float> block_scales) {
  BlockScales out;
  float largest = 0.0f;
  for (const float scale : block_scales) largest = std::max(largest, scale);
  out.channel = std::max(largest / 16.0f, kSmallestScale);
  out.integers.reserve(block_scales.size());
  for (const float scale : block_scales) {
    out.integers.push_back(
        static_cast<uint8_t>(std::clamp(std::nearbyint(scale / out.channel), 1.0f, 16.0f)));
  }
  return out;
}

Result<QuantizedWeight> QuantizeRtn(std::span<const float> weights, int64_t in_features,
                                    int64_t out_features, const WeightOptions& options,
                                    std::span<const float> importance) {
  HEXPORT_RETURN_IF_ERROR(CheckArguments(weights, in_features, out_features, options));
  QuantizedWeight out;
  out.format = options.format;
  out.in_features = in_features;
  out.out_features = out_features;
  out.codes.resize(weights.size());
  switch (options.format) {
    case WeightFormat::kInt8:
      QuantizePerChannel(weights, 127.0f, out);
      break;
    case WeightFormat::kInt4:
      QuantizePerChannel(weights, kInt4Top, out);
      break;
    case WeightFormat::kLpbq:
      out.block_size = options.block_size;
      QuantizeBlocks(weights, importance, out);
      break;
  }
  return out;
}

int64_t StoredBits(const WeightOptions& options, int64_t in_features, int64_t out_features) {
  const int64_t code_bits = options.format == WeightFormat::kInt8 ? 8 : 4;
  const int64_t blocks =
      options.format == WeightFormat::kLpbq ? in_features / options.block_size : 0;
  return (in_features * code_bits + blocks * 8 + 32) * out_features;
}

int64_t StoredBits(const QuantizedWeight& weight) {
  return StoredBits({weight.format, weight.block_size}, weight.in_features, weight.out_features);
}

std::vector<float> Dequantize(const QuantizedWeight& weight) {
  const size_t columns = static_cast<size_t>(weight.out_features);
  const bool blocks = !weight.block_scales.empty();
  std::vector<float> out(weight.codes.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t n = i % columns;
    float scale = weight.channel_scales[n];
    if (blocks) {
      const size_t block = i / columns / static_cast<size_t>(weight.block_size);
      scale *= static_cast<float>(weight.block_scales[block * columns + n]);
    }
    out[i] = static_cast<float>(weight.codes[i]) * scale;
  }
  return out;
}

}  // namespace hexport::quant
