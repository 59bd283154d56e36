// What a call of the graph needs besides tokens: RoPE's tables and the attention mask.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "decoder/decoder.h"

namespace hexport::decoder {
namespace {

// Llama 3.1's rule: long waves are slowed down by `factor`, short ones kept, those between blended.
double ScaleLlama3(double frequency, const RopeScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  const double blend = (original / wavelength - scaling.low_freq_factor) /
                       (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - blend) * frequency / scaling.factor + blend * frequency;
}

}  // namespace

std::vector<double> InverseFrequencies(const ModelConfig& config) {
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < config.head_dim / 2; ++pair) {
    double frequency = std::pow(
        config.rope_theta, -2.0 * static_cast<double>(pair) / static_cast<double>(config.head_dim));
    switch (config.rope_scaling.type) {
      case RopeScaling::Type::kNone:
        break;
      case RopeScaling::Type::kLinear:
        frequency /= config.rope_scaling.factor;
        break;
      case RopeScaling::Type::kLlama3:
        frequency = ScaleLlama3(frequency, config.rope_scaling);
        break;
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

void RopeTable(const ModelConfig& config, int64_t first, int64_t count, std::vector<float>& cos,
               std::vector<float>& sin) {
  const std::vector<double> frequencies = InverseFrequencies(config);
  cos.clear();
  sin.clear();
  for (int64_t position = first; position < first + count; ++position) {
    for (double frequency : frequencies) {
      const double phase = static_cast<double>(position) * frequency;
      cos.push_back(static_cast<float>(std::cos(phase)));
      sin.push_back(static_cast<float>(std::sin(phase)));
    }
  }
}

std::vector<float> AttentionMask(int64_t ar, int64_t cl, int64_t past, int64_t count, float floor) {
  std::vector<float> mask(static_cast<size_t>(ar * cl), floor);
  const int64_t past_columns = cl - ar;
  past = std::clamp<int64_t>(past, 0, past_columns);
  count = std::clamp<int64_t>(count, 0, ar);
  for (int64_t row = 0; row < count; ++row) {
    const auto begin = mask.begin() + row * cl;
    std::fill(begin, begin + past, 0.0f);
    std::fill(begin + past_columns, begin + past_columns + row + 1, 0.0f);
  }
  return mask;
}

std::vector<float> CausalMask(int64_t n, float floor) { return AttentionMask(n, n, 0, n, floor); }

}  // namespace hexport::decoder
