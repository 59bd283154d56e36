#include "adapter/rounding.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "adapter/float_values.h"

namespace hexport::adapter {
namespace {

struct Float32Codec {
  using Stored = uint32_t;
  static Stored Encode(float value) { return std::bit_cast<uint32_t>(value); }
  static float Decode(Stored bits) { return std::bit_cast<float>(bits); }
  static constexpr Stored kExponent = 0x7f800000u;
};
struct BFloat16Codec {
  using Stored = uint16_t;
  static Stored Encode(float value) { return ToBFloat16(value); }
  static float Decode(Stored bits) { return FromBFloat16(bits); }
  static constexpr Stored kExponent = 0x7f80u;
};
struct Float16Codec {
  using Stored = uint16_t;
  static Stored Encode(float value) { return FloatToHalf(value); }
  static float Decode(Stored bits) { return HalfToFloat(bits); }
  static constexpr Stored kExponent = 0x7c00u;
};

// Sums run in this many lanes of float over a short block and then in double: fast and exact
// enough.
constexpr size_t kLanes = 8;
constexpr size_t kBlock = 2048;

template <typename Codec>
void StoreBlock(const float* merged, const float* base, const float* delta, size_t count,
                typename Codec::Stored* out, ChangeStats& stats) {
  std::array<float, kLanes> delta_abs{}, lost_abs{}, delta_squares{}, error_squares{};
  std::array<int32_t, kLanes> changed{}, nonfinite{};
  const auto one = [&](size_t i, size_t lane) {
    const typename Codec::Stored bits = Codec::Encode(merged[i]);
    out[i] = bits;
    const float stored = Codec::Decode(bits);
    const float before = Codec::Decode(Codec::Encode(base[i]));
    const float size = std::fabs(delta[i]);
    const float error = stored - base[i] - delta[i];
    const bool same = stored == before;
    delta_abs[lane] += size;
    lost_abs[lane] += same ? size : 0.0f;
    delta_squares[lane] += delta[i] * delta[i];
    error_squares[lane] += error * error;
    changed[lane] += same ? 0 : 1;
    nonfinite[lane] += (bits & Codec::kExponent) == Codec::kExponent ? 1 : 0;
  };
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) one(i + lane, lane);
  }
  for (; i < count; ++i) one(i, 0);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    stats.delta_abs += static_cast<double>(delta_abs[lane]);
    stats.lost_abs += static_cast<double>(lost_abs[lane]);
    stats.delta_squares += static_cast<double>(delta_squares[lane]);
    stats.error_squares += static_cast<double>(error_squares[lane]);
    stats.changed += changed[lane];
    stats.nonfinite += nonfinite[lane];
  }
}

template <typename Codec>
ChangeStats Store(std::span<const float> merged, std::span<const float> base,
                  std::span<const float> delta, std::span<std::byte> out) {
  using Stored = typename Codec::Stored;
  ChangeStats stats;
  std::array<Stored, kBlock> stored;
  for (size_t at = 0; at < merged.size(); at += kBlock) {
    const size_t count = std::min(kBlock, merged.size() - at);
    if (base.empty()) {
      for (size_t i = 0; i < count; ++i) {
        stored[i] = Codec::Encode(merged[at + i]);
        stats.nonfinite += (stored[i] & Codec::kExponent) == Codec::kExponent ? 1 : 0;
      }
    } else {
      StoreBlock<Codec>(merged.data() + at, base.data() + at, delta.data() + at, count,
                        stored.data(), stats);
    }
    std::memcpy(out.data() + at * sizeof(Stored), stored.data(), count * sizeof(Stored));
  }
  return stats;
}

template <typename Codec>
int64_t CountBlocks(std::span<const std::byte> bytes) {
  using Stored = typename Codec::Stored;
  std::array<Stored, kBlock> values;
  int64_t total = 0;
  const size_t size = bytes.size() / sizeof(Stored);
  for (size_t at = 0; at < size; at += kBlock) {
    const size_t count = std::min(kBlock, size - at);
    std::memcpy(values.data(), bytes.data() + at * sizeof(Stored), count * sizeof(Stored));
    int32_t found = 0;
    for (size_t i = 0; i < count; ++i) {
      found += (values[i] & Codec::kExponent) == Codec::kExponent ? 1 : 0;
    }
    total += found;
  }
  return total;
}

}  // namespace

ChangeStats& ChangeStats::operator+=(const ChangeStats& other) {
  delta_abs += other.delta_abs;
  lost_abs += other.lost_abs;
  delta_squares += other.delta_squares;
  error_squares += other.error_squares;
  changed += other.changed;
  nonfinite += other.nonfinite;
  return *this;
}

ChangeStats StoreRounded(DType dtype, std::span<const float> merged, std::span<const float> base,
                         std::span<const float> delta, std::span<std::byte> out) {
  if (dtype == DType::kFloat32) return Store<Float32Codec>(merged, base, delta, out);
  if (dtype == DType::kFloat16) return Store<Float16Codec>(merged, base, delta, out);
  return Store<BFloat16Codec>(merged, base, delta, out);
}

int64_t CountNonfinite(DType dtype, std::span<const std::byte> bytes) {
  if (dtype == DType::kFloat32) return CountBlocks<Float32Codec>(bytes);
  if (dtype == DType::kFloat16) return CountBlocks<Float16Codec>(bytes);
  if (dtype == DType::kBFloat16) return CountBlocks<BFloat16Codec>(bytes);
  return 0;
}

}  // namespace hexport::adapter
