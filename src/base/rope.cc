#include "base/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hexport {
namespace {

double ScaleLlama3(double frequency, const RopeScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor ||
      scaling.high_freq_factor == scaling.low_freq_factor) {
    return frequency / scaling.factor;
  }
  const double blend = (original / wavelength - scaling.low_freq_factor) /
                       (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - blend) * frequency / scaling.factor + blend * frequency;
}

// YaRN's ramp: pairs up to `low` keep their frequency, those from `high` on are divided by factor.
struct YarnRamp {
  double low = 0, high = 0;
};

YarnRamp MakeYarnRamp(const RopeParameters& rope) {
  const RopeScaling& scaling = rope.scaling;
  const auto dim = static_cast<double>(rope.rotary_dim);
  const auto pair_of_turns = [&](double turns) {
    const double length = static_cast<double>(scaling.original_max_position_embeddings);
    return dim * std::log(length / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.rope_theta));
  };
  YarnRamp ramp{pair_of_turns(scaling.beta_fast), pair_of_turns(scaling.beta_slow)};
  if (scaling.truncate) ramp = {std::floor(ramp.low), std::ceil(ramp.high)};
  ramp = {std::max(ramp.low, 0.0), std::min(ramp.high, dim - 1)};
  if (ramp.low == ramp.high) ramp.high += 0.001;  // as transformers, against a division by zero
  return ramp;
}

double ScaleYarn(double frequency, int64_t pair, const YarnRamp& ramp, double factor) {
  const double slowed =
      std::clamp((static_cast<double>(pair) - ramp.low) / (ramp.high - ramp.low), 0.0, 1.0);
  return frequency / factor * slowed + frequency * (1 - slowed);
}

}  // namespace

std::string_view RopeTypeName(RopeScaling::Type type) {
  switch (type) {
    case RopeScaling::Type::kNone:
      return "none";
    case RopeScaling::Type::kLinear:
      return "linear";
    case RopeScaling::Type::kLlama3:
      return "llama3";
    case RopeScaling::Type::kYarn:
      return "yarn";
    case RopeScaling::Type::kLongrope:
      return "longrope";
  }
  return "unknown";
}

std::vector<double> InverseFrequencies(const RopeParameters& rope, int64_t context_length) {
  const RopeScaling& scaling = rope.scaling;
  const bool is_long = context_length > scaling.original_max_position_embeddings;
  const YarnRamp ramp = scaling.type == RopeScaling::Type::kYarn ? MakeYarnRamp(rope) : YarnRamp{};
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < rope.rotary_dim / 2; ++pair) {
    const double exponent = -2.0 * static_cast<double>(pair) / static_cast<double>(rope.rotary_dim);
    double frequency = std::pow(rope.rope_theta, exponent);
    switch (scaling.type) {
      case RopeScaling::Type::kNone:
        break;
      case RopeScaling::Type::kLinear:
        frequency /= scaling.factor;
        break;
      case RopeScaling::Type::kLlama3:
        frequency = ScaleLlama3(frequency, scaling);
        break;
      case RopeScaling::Type::kYarn:
        frequency = ScaleYarn(frequency, pair, ramp, scaling.factor);
        break;
      case RopeScaling::Type::kLongrope:
        frequency /=
            (is_long ? scaling.long_factor : scaling.short_factor)[static_cast<size_t>(pair)];
        break;
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

void RopeTable(std::span<const double> frequencies, double attention_factor, int64_t first,
               int64_t count, std::vector<float>& cos, std::vector<float>& sin) {
  const size_t pairs = frequencies.size();
  cos.resize(static_cast<size_t>(count) * pairs);
  sin.resize(cos.size());
  for (size_t row = 0; row < static_cast<size_t>(count); ++row) {
    const auto position = static_cast<double>(first + static_cast<int64_t>(row));
    for (size_t i = 0; i < pairs; ++i) {
      const double phase = position * frequencies[i];
      cos[row * pairs + i] = static_cast<float>(std::cos(phase) * attention_factor);
      sin[row * pairs + i] = static_cast<float>(std::sin(phase) * attention_factor);
    }
  }
}

}  // namespace hexport
