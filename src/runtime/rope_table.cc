#include "runtime/rope_table.h"

#include <cmath>
#include <numbers>

namespace hexport::runtime {
namespace {

// Long wavelengths are divided by the factor, short ones kept, those between blended.
double Llama3Frequency(double frequency, const bundle::ModelFacts& model) {
  const double original = static_cast<double>(model.rope_original_max_position_embeddings);
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double low = model.rope_low_freq_factor, high = model.rope_high_freq_factor;
  if (wavelength < original / high) return frequency;
  if (wavelength > original / low || high == low) return frequency / model.rope_factor;
  const double smooth = (original / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / model.rope_factor + smooth * frequency;
}

}  // namespace

RopeTable::RopeTable(const bundle::ModelFacts& model) {
  const int64_t half = model.head_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    double frequency =
        std::pow(model.rope_theta, -static_cast<double>(i) / static_cast<double>(half));
    if (model.rope_scaling == "linear") frequency /= model.rope_factor;
    if (model.rope_scaling == "llama3") frequency = Llama3Frequency(frequency, model);
    frequencies_.push_back(frequency);
  }
}

void RopeTable::Fill(int64_t first, int64_t count, std::vector<float>& cos,
                     std::vector<float>& sin) const {
  const size_t half = frequencies_.size();
  cos.resize(static_cast<size_t>(count) * half);
  sin.resize(static_cast<size_t>(count) * half);
  for (size_t row = 0; row < static_cast<size_t>(count); ++row) {
    const double position = static_cast<double>(first + static_cast<int64_t>(row));
    for (size_t i = 0; i < half; ++i) {
      cos[row * half + i] = static_cast<float>(std::cos(position * frequencies_[i]));
      sin[row * half + i] = static_cast<float>(std::sin(position * frequencies_[i]));
    }
  }
}

}  // namespace hexport::runtime
