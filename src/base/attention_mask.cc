#include "base/attention_mask.h"

#include <algorithm>

namespace hexport {

std::vector<float> AttentionMask(int64_t ar, int64_t cl, int64_t past, int64_t count, float floor,
                                 int64_t window) {
  std::vector<float> mask(static_cast<size_t>(ar * cl), floor);
  const int64_t past_columns = cl - ar;
  past = std::clamp<int64_t>(past, 0, past_columns);
  count = std::clamp<int64_t>(count, 0, ar);
  for (int64_t row = 0; row < count; ++row) {
    // The row's position is past + row; it sees positions [oldest, past + row].
    const int64_t oldest = window > 0 ? std::max<int64_t>(0, past + row + 1 - window) : 0;
    const auto begin = mask.begin() + row * cl;
    if (oldest < past) std::fill(begin + oldest, begin + past, 0.0f);
    const int64_t first_new = std::max<int64_t>(0, oldest - past);
    std::fill(begin + past_columns + first_new, begin + past_columns + row + 1, 0.0f);
  }
  return mask;
}

std::vector<float> CausalMask(int64_t n, float floor, int64_t window) {
  return AttentionMask(n, n, 0, n, floor, window);
}

}  // namespace hexport
