#include "quant/encoding.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace hexport::quant {
namespace {

float Real(const Encoding& encoding, int32_t code) {
  return static_cast<float>(code - encoding.zero_point) * encoding.scale;
}

TEST(MakeEncodingTest, AsymmetricCoversTheRangeAndHoldsZeroExactly) {
  const Encoding encoding = MakeEncoding({-1.0f, 3.0f}, 16, /*symmetric=*/false);
  EXPECT_EQ(encoding.zero_point, 16384);
  EXPECT_NEAR(Real(encoding, 0), -1.0f, encoding.scale);
  EXPECT_NEAR(Real(encoding, 65535), 3.0f, encoding.scale);
}

TEST(MakeEncodingTest, RangeAboveZeroIsStretchedToZero) {
  const Encoding encoding = MakeEncoding({2.0f, 4.0f}, 8, /*symmetric=*/false);
  EXPECT_EQ(encoding.zero_point, 0);
  EXPECT_FLOAT_EQ(encoding.scale, 4.0f / 255.0f);
}

TEST(MakeEncodingTest, RangeBelowZeroHasItsMaximumAtExactlyZero) {
  // Genie writes 65535 for "attend": it must be 0.0.
  const Encoding encoding = MakeEncoding({-1000.0f, 0.0f}, 16, /*symmetric=*/false);
  EXPECT_EQ(Real(encoding, 65535), 0.0f);
}

TEST(MakeEncodingTest, SymmetricSpansTheLargerSideAroundTheMiddle) {
  const Encoding encoding = MakeEncoding({-2.0f, 12.7f}, 8, /*symmetric=*/true);
  EXPECT_EQ(encoding.zero_point, 128);
  EXPECT_FLOAT_EQ(encoding.scale, 0.1f);
}

TEST(MakeEncodingTest, EmptyRangeStillHasAPositiveFiniteScale) {
  for (const bool symmetric : {false, true}) {
    const Encoding encoding = MakeEncoding({0.0f, 0.0f}, 16, symmetric);
    EXPECT_GT(encoding.scale, 0.0f);
    EXPECT_TRUE(std::isfinite(encoding.scale));
  }
}

TEST(QuantizeValuesTest, RoundsTiesToEvenAndSaturates) {
  const Encoding encoding{0.5f, 10, 8};
  const std::array<float, 5> values = {0.25f, 0.75f, -0.25f, 1000.0f, -1000.0f};
  std::array<uint16_t, 5> codes{};
  QuantizeValues(values, encoding, codes);
  EXPECT_EQ(codes, (std::array<uint16_t, 5>{10, 12, 10, 255, 0}));
}

}  // namespace
}  // namespace hexport::quant
