#include "quant/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/status_matchers.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<float> RandomWeights(size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  std::vector<float> out(count);
  for (float& value : out) value = normal(generator);
  return out;
}

TEST(ParseWeightFormatTest, NamesRoundTrip) {
  for (const WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kLpbq}) {
    const Result<WeightFormat> parsed = ParseWeightFormat(WeightFormatName(format));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, format);
  }
}

TEST(ParseWeightFormatTest, UnknownNameListsTheKnownOnes) {
  EXPECT_THAT(ParseWeightFormat("int3"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("int8, int4 or lpbq")));
}

TEST(SplitBlockScalesTest, Q01IntegersAreRoundedSixteenthsOfTheLargest) {
  const std::vector<float> scales = {0.011f, 0.024f, 0.003f, 0.16f};
  const BlockScales split = SplitBlockScales(scales);
  EXPECT_FLOAT_EQ(split.channel, 0.01f);
  EXPECT_THAT(split.integers, ElementsAre(1, 2, 1, 16));
}

TEST(SplitBlockScalesTest, DeadChannelHasPositiveFiniteScale) {
  const std::vector<float> scales = {0.0f, 0.0f};
  const BlockScales split = SplitBlockScales(scales);
  EXPECT_GT(split.channel, 0.0f);
  EXPECT_TRUE(std::isfinite(split.channel));
  EXPECT_THAT(split.integers, ElementsAre(1, 1));
}

TEST(QuantizeRtnTest, Int8RoundsTiesToEvenAgainstTheLargestOfItsColumn) {
  // Columns: scale 1 and scale 2.
  const std::vector<float> weights = {127.0f, 254.0f, 2.5f, -5.0f, 3.5f, 1.0f};
  const Result<QuantizedWeight> weight = QuantizeRtn(weights, 3, 2, {});
  ASSERT_TRUE(weight.ok());
  EXPECT_THAT(weight->channel_scales, ElementsAre(1.0f, 2.0f));
  EXPECT_THAT(weight->codes, ElementsAre(127, 127, 2, -2, 4, 0));
}

TEST(QuantizeRtnTest, PerChannelErrorIsAtMostHalfAStep) {
  const std::vector<float> weights = RandomWeights(64 * 24, 1);
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    const Result<QuantizedWeight> weight = QuantizeRtn(weights, 64, 24, {format, 32});
    ASSERT_TRUE(weight.ok());
    const std::vector<float> restored = Dequantize(*weight);
    for (size_t i = 0; i < weights.size(); ++i) {
      ASSERT_LE(std::fabs(weights[i] - restored[i]), weight->channel_scales[i % 24] * 0.5001f) << i;
    }
  }
}

TEST(QuantizeRtnTest, LpbqStoresIntegersInRangeAndBeatsPerChannelInt4) {
  std::vector<float> weights = RandomWeights(128 * 16, 2);
  for (size_t i = 0; i < weights.size(); i += 97)
    weights[i] *= 8.0f;  // outliers that hurt a whole channel
  const auto squared_error = [&](WeightFormat format) {
    const Result<QuantizedWeight> weight = QuantizeRtn(weights, 128, 16, {format, 32});
    const std::vector<float> restored = Dequantize(*weight);
    double sum = 0.0;
    for (size_t i = 0; i < weights.size(); ++i) sum += std::pow(weights[i] - restored[i], 2);
    return sum;
  };
  const Result<QuantizedWeight> weight = QuantizeRtn(weights, 128, 16, {WeightFormat::kLpbq, 32});
  ASSERT_TRUE(weight.ok());
  EXPECT_EQ(weight->block_scales.size(), 4u * 16u);
  for (const uint8_t integer : weight->block_scales) {
    EXPECT_GE(integer, 1);
    EXPECT_LE(integer, 16);
  }
  EXPECT_LT(squared_error(WeightFormat::kLpbq), 0.7 * squared_error(WeightFormat::kInt4));
}

TEST(QuantizeRtnTest, DeadChannelIsFiniteInEveryFormat) {
  const std::vector<float> weights(32 * 2, 0.0f);
  for (const WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kLpbq}) {
    const Result<QuantizedWeight> weight = QuantizeRtn(weights, 32, 2, {format, 32});
    ASSERT_TRUE(weight.ok());
    for (const float scale : weight->channel_scales) {
      EXPECT_GT(scale, 0.0f);
      EXPECT_TRUE(std::isfinite(scale));
    }
    for (const float value : Dequantize(*weight)) EXPECT_EQ(value, 0.0f);
  }
}

TEST(QuantizeRtnTest, NanNamesTheElement) {
  std::vector<float> weights(8, 1.0f);
  weights[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(QuantizeRtn(weights, 4, 2, {}), StatusIs(StatusCode::kDataLoss, HasSubstr("[2, 1]")));
}

TEST(QuantizeRtnTest, Q07BlockThatDoesNotDivideIsRefused) {
  const std::vector<float> weights(96, 1.0f);
  EXPECT_THAT(QuantizeRtn(weights, 96, 1, {WeightFormat::kLpbq, 64}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("96")));
}

TEST(StoredBits, CountsCodesAndEveryScale) {
  EXPECT_EQ(StoredBits({WeightFormat::kInt8, 0}, 64, 10), 8 * 640 + 32 * 10);
  EXPECT_EQ(StoredBits({WeightFormat::kInt4, 0}, 64, 10), 4 * 640 + 32 * 10);
  // 64 inputs in blocks of 32: two block scales a channel.
  EXPECT_EQ(StoredBits({WeightFormat::kLpbq, 32}, 64, 10), 4 * 640 + 8 * 20 + 32 * 10);
}

}  // namespace
}  // namespace hexport::quant
