#include "quant/weights.h"

#include <algorithm>
#include <array>
#include <cmath>

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
  return static_cast<int8_t>(std::clamp(std::nearbyint(value / scale), -top - 1.0f, top));
}

void QuantizePerChannel(std::span<const float> weights, float top, QuantizedWeight& out) {
  const size_t columns = static_cast<size_t>(out.out_features);
  out.channel_scales.assign(columns, 0.0f);
  for (size_t i = 0; i < weights.size(); ++i) {
    float& largest = out.channel_scales[i % columns];
    largest = std::max(largest, std::fabs(weights[i]));
  }
  for (float& scale : out.channel_scales) scale = std::max(scale / top, kSmallestScale);
  for (size_t i = 0; i < weights.size(); ++i) {
    out.codes[i] = Code(weights[i], out.channel_scales[i % columns], top);
  }
}

// Squared error of one block (elements `stride` apart) at this scale; `importance` [size] weights
// it, null: evenly.
double BlockError(const float* block, size_t size, size_t stride, float scale,
                  const float* importance) {
  double error = 0.0;
  for (size_t k = 0; k < size; ++k) {
    const float value = block[k * stride];
    const double difference =
        static_cast<double>(value - scale * static_cast<float>(Code(value, scale, kInt4Top)));
    error += difference * difference *
             (importance == nullptr ? 1.0 : static_cast<double>(importance[k]));
  }
  return error;
}

// The rounded integer scale or one near it, whichever restores the block best: clipping a block's
// few largest weights often costs less than coarser steps for the rest, and sometimes more.
uint8_t BestInteger(const float* block, size_t size, size_t stride, float channel, uint8_t rounded,
                    const float* importance) {
  uint8_t best = rounded;
  double least = BlockError(block, size, stride, channel * static_cast<float>(rounded), importance);
  for (const int step : {-4, -3, -2, -1, 1}) {
    const int candidate = rounded + step;
    if (candidate < 1 || candidate > 16) continue;
    const double error =
        BlockError(block, size, stride, channel * static_cast<float>(candidate), importance);
    if (error < least) {
      least = error;
      best = static_cast<uint8_t>(candidate);
    }
  }
  return best;
}

void QuantizeBlocks(std::span<const float> weights, std::span<const float> importance,
                    QuantizedWeight& out) {
  const size_t columns = static_cast<size_t>(out.out_features);
  const size_t size = static_cast<size_t>(out.block_size);
  const size_t blocks = static_cast<size_t>(out.in_features) / size;
  out.channel_scales.resize(columns);
  out.block_scales.resize(blocks * columns);
  std::vector<float> scales(blocks);
  for (size_t n = 0; n < columns; ++n) {
    for (size_t b = 0; b < blocks; ++b) {
      const float* block = weights.data() + b * size * columns + n;
      float largest = 0.0f;
      for (size_t k = 0; k < size; ++k) largest = std::max(largest, std::fabs(block[k * columns]));
      scales[b] = largest / kInt4Top;
    }
    const BlockScales split = SplitBlockScales(scales);
    out.channel_scales[n] = split.channel;
    for (size_t b = 0; b < blocks; ++b) {
      const size_t first = b * size * columns + n;
      const uint8_t integer =
          BestInteger(weights.data() + first, size, columns, split.channel, split.integers[b],
                      importance.empty() ? nullptr : importance.data() + b * size);
      out.block_scales[b * columns + n] = integer;
      const float scale = split.channel * static_cast<float>(integer);
      for (size_t k = 0; k < size; ++k) {
        out.codes[first + k * columns] = Code(weights[first + k * columns], scale, kInt4Top);
      }
    }
  }
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
