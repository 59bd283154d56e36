// Rows of stored floats to float32 and back, without a call per value.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "checkpoint/block_format.h"

namespace hexport::adapter {

// checkpoint::Widen with straight loops for F32 and BF16. Errors: as there.
Status WidenValues(const checkpoint::BlockFormat& format, std::span<const std::byte> bytes,
                   std::span<float> out);

// base's FloatToBFloat16 (round to nearest even, NaN stays NaN), inline so that it vectorizes.
inline uint16_t ToBFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? quiet : rounded);
}

inline float FromBFloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

}  // namespace hexport::adapter
