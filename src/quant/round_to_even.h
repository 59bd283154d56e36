// Rounding that the compiler can turn into vectors. Private to src/quant.
#pragma once

namespace hexport::quant {

// To the nearest integer, ties to even, for |value| < 2^22: float32 has no room for a fraction
// beside 1.5 * 2^23. std::nearbyint is a call for every element on x86-64 without SSE4.1.
inline float RoundToEven(float value) {
  constexpr float kNoFraction = 12582912.0f;
  return (value + kNoFraction) - kNoFraction;
}

}  // namespace hexport::quant
