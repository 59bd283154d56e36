#include "base/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace hexport {
namespace {

TEST(DTypeTest, CountsElementsAndBytes) {
  EXPECT_EQ(NumElements({}), 1);
  EXPECT_EQ(NumElements({2, 3, 4}), 24);
  EXPECT_EQ(NumBytes(DType::kFloat16, {3, 5}), 30);
  EXPECT_EQ(NumBytes(DType::kInt4, {3}), 2);
}

TEST(DTypeTest, RefusesNegativeAndOverflowingShapes) {
  constexpr int64_t kBig = int64_t{1} << 32;
  EXPECT_EQ(NumElements({2, kDynamicDim}), -1);
  EXPECT_EQ(NumElements({kBig, kBig}), -1);
  EXPECT_EQ(NumBytes(DType::kFloat32, {kBig, kBig / 4}), -1);
  EXPECT_EQ(NumBytes(DType::kInt4, {std::numeric_limits<int64_t>::max()}), int64_t{1} << 62);
}

TEST(DTypeTest, ZeroDimensionWinsOverOverflow) {
  constexpr int64_t kBig = int64_t{1} << 40;
  EXPECT_EQ(NumElements({kBig, kBig, 0}), 0);
}

TEST(DTypeTest, NamesAndShapesReadWell) {
  EXPECT_EQ(DTypeName(DType::kBFloat16), "bfloat16");
  EXPECT_EQ(ShapeString({1, 9}), "[1, 9]");
  EXPECT_EQ(ShapeString({}), "[]");
}

TEST(HalfTest, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = HalfToFloat(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value)))) << bits;
    } else {
      ASSERT_EQ(FloatToHalf(value), half) << bits;
    }
  }
}

#ifdef __FLT16_MANT_DIG__
TEST(HalfTest, EveryHalfHasTheCompilersValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const auto expected = static_cast<float>(std::bit_cast<_Float16>(half));
    if (std::isnan(expected)) continue;
    ASSERT_EQ(HalfToFloat(half), expected) << bits;
  }
}
#endif

// The middle between two neighbouring halves goes to the even one, a hair beside it to the nearer.
TEST(HalfTest, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint16_t low = 0; low < 0x7bff; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const float middle = (HalfToFloat(low) + HalfToFloat(high)) / 2;
    ASSERT_EQ(FloatToHalf(middle), (low & 1) == 0 ? low : high) << low;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), low) << low;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 1e9f)), high) << low;
    ASSERT_EQ(FloatToHalf(-middle), 0x8000 | ((low & 1) == 0 ? low : high)) << low;
  }
}

TEST(HalfTest, OverflowsToInfinityFrom65520) {
  EXPECT_EQ(FloatToHalf(65519.996f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(1e30f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-std::numeric_limits<float>::infinity()), 0xfc00);
}

TEST(BFloat16Test, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = BFloat16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(value)))) << bits;
    } else {
      ASSERT_EQ(FloatToBFloat16(value), bits) << bits;
    }
  }
}

TEST(BFloat16Test, RoundsToNearestEven) {
  EXPECT_EQ(FloatToBFloat16(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(FloatToBFloat16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(FloatToBFloat16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
}

TEST(BFloat16Test, NanWithLowPayloadStaysNan) {
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace hexport
