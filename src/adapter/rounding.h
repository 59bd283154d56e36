// Rounds merged values to the stored type and counts what became of the change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace hexport::adapter {

// Sums over the values of a tensor, or of many.
struct ChangeStats {
  double delta_abs = 0;      // sum |delta|
  double lost_abs = 0;       // of it, where the stored value is the base's
  double delta_squares = 0;  // sum delta^2
  double error_squares = 0;  // sum (stored - base - delta)^2
  int64_t changed = 0;       // stored values that differ from the base's
  int64_t nonfinite = 0;     // NaN or infinite values stored

  ChangeStats& operator+=(const ChangeStats& other);
};

// Writes `merged` to `out` as `dtype` (float32, float16 or bfloat16), rounded to nearest even. With
// `base` and `delta` (both empty, or of the same size) it also fills the sums: base is what the
// base model stores, delta the change that was wanted. A value counts as unchanged when it is
// stored as the base's value would be. `out` holds merged.size() values.
ChangeStats StoreRounded(DType dtype, std::span<const float> merged, std::span<const float> base,
                         std::span<const float> delta, std::span<std::byte> out);

// NaN and infinite values among stored ones; 0 for types without them.
int64_t CountNonfinite(DType dtype, std::span<const std::byte> bytes);

}  // namespace hexport::adapter
