// A linear's weight as the integers it is stored as, whatever the file's layout.
#pragma once

#include <cstdint>
#include <vector>

namespace hexport {

// real[k, n] = (codes[k, n] - zero_points[g, n]) * scales[g, n] + offsets[g, n], g = group_of[k];
// k is an input feature, n an output feature.
struct PackedWeight {
  int bits = 4;  // 4 or 8
  int64_t in_features = 0, out_features = 0;
  std::vector<uint8_t> codes;        // [in_features, out_features]
  std::vector<float> scales;         // [groups, out_features]; of any sign in GGUF
  std::vector<uint8_t> zero_points;  // [groups, out_features]
  std::vector<float> offsets;        // [groups, out_features]; empty: all 0
  std::vector<int32_t> group_of;     // [in_features], each below `groups`
};

}  // namespace hexport
