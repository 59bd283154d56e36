#include "adapter/rounding.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "adapter/float_values.h"

namespace hexport::adapter {
namespace {

// Every upper half with the lower halves around the ties: all that decides a rounding.
TEST(BFloat16Test, InlineRoundingIsThatOfBase) {
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const auto value = std::bit_cast<float>(high << 16 | low);
      const uint16_t expected = FloatToBFloat16(value);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(FromBFloat16(ToBFloat16(value))));
      } else {
        ASSERT_EQ(ToBFloat16(value), expected) << std::hex << (high << 16 | low);
      }
    }
    ASSERT_EQ(std::bit_cast<uint32_t>(FromBFloat16(static_cast<uint16_t>(high))), high << 16);
  }
}

TEST(StoreRoundedTest, CountsWhatBecameOfTheChange) {
  // 5000 values: more than a block and no multiple of a lane.
  const size_t size = 5003;
  std::vector<float> base(size, 1.0f), delta(size), merged(size);
  for (size_t i = 0; i < size; ++i) {
    delta[i] = i % 2 == 0 ? 0.003f : 0.005f;
    merged[i] = base[i] + delta[i];
  }
  std::vector<std::byte> out(size * 2);
  const ChangeStats stats = StoreRounded(DType::kBFloat16, merged, base, delta, out);
  EXPECT_EQ(stats.changed, 2501);
  EXPECT_EQ(stats.nonfinite, 0);
  EXPECT_NEAR(stats.delta_abs, 2502 * 0.003 + 2501 * 0.005, 1e-3);
  EXPECT_NEAR(stats.lost_abs, 2502 * 0.003, 1e-3);
  EXPECT_NEAR(stats.delta_squares, 2502 * 9e-6 + 2501 * 25e-6, 1e-6);
  EXPECT_NEAR(stats.error_squares, 2502 * 9e-6 + 2501 * 0.0028125 * 0.0028125, 1e-6);
  for (size_t i = 0; i < size; ++i) {
    uint16_t bits;
    std::memcpy(&bits, out.data() + 2 * i, sizeof(bits));
    ASSERT_EQ(BFloat16ToFloat(bits), i % 2 == 0 ? 1.0f : 1.0078125f) << i;
  }
}

TEST(StoreRoundedTest, AnotherTypeAloneIsNoChange) {
  const std::vector<float> base(10, 0.1f), delta(10, 0.0f);
  std::vector<std::byte> out(20);
  EXPECT_EQ(StoreRounded(DType::kBFloat16, base, base, delta, out).changed, 0);
  EXPECT_EQ(StoreRounded(DType::kFloat16, base, base, delta, out).changed, 0);
}

TEST(StoreRoundedTest, CountsNonfinite) {
  const std::vector<float> values{1.0f, std::numeric_limits<float>::infinity(), std::nanf(""),
                                  70000.0f};
  std::vector<std::byte> out(16);
  EXPECT_EQ(StoreRounded(DType::kFloat32, values, {}, {}, out).nonfinite, 2);
  EXPECT_EQ(CountNonfinite(DType::kFloat32, out), 2);
  out.resize(8);
  EXPECT_EQ(StoreRounded(DType::kFloat16, values, values, values, out).nonfinite, 3);
  EXPECT_EQ(CountNonfinite(DType::kFloat16, out), 3);
  EXPECT_EQ(StoreRounded(DType::kBFloat16, values, values, values, out).nonfinite, 2);
  EXPECT_EQ(CountNonfinite(DType::kBFloat16, out), 2);
}

}  // namespace
}  // namespace hexport::adapter
