#include "quant/histogram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/status_matchers.h"
#include "quant/fake_checkpoint.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::HasSubstr;

Histogram Of(const std::vector<float>& values) {
  Histogram histogram;
  EXPECT_THAT(histogram.Add(values), IsOk());
  return histogram;
}

// Normal values, and a few far ones.
std::vector<float> WithOutliers() {
  std::vector<float> values = RandomValues(20000, 4, 1.0f);
  values[17] = 60.0f;
  values[18] = -40.0f;
  return values;
}

TEST(Histogram, GrowsToTheSameWhateverTheOrder) {
  std::vector<float> values = WithOutliers();
  values.push_back(1e-20f);
  values.push_back(3e20f);
  const Histogram at_once = Of(values);
  std::sort(values.begin(), values.end(),
            [](float a, float b) { return std::abs(a) < std::abs(b); });
  Histogram piecewise;
  for (const float& value : values) ASSERT_THAT(piecewise.Add({&value, 1}), IsOk());
  EXPECT_EQ(at_once.bins(), piecewise.bins());
  EXPECT_EQ(at_once.bin_width(), piecewise.bin_width());
  EXPECT_EQ(piecewise.min(), -40.0f);
  EXPECT_EQ(piecewise.max(), 3e20f);
  EXPECT_EQ(piecewise.count(), values.size());
}

TEST(Histogram, MergedEqualsAddedTogether) {
  const std::vector<float> small = RandomValues(500, 1, 0.01f), large = RandomValues(700, 2, 9.0f);
  Histogram merged = Of(small);
  merged.Merge(Of(large));
  merged.Merge(Histogram());
  std::vector<float> all = small;
  all.insert(all.end(), large.begin(), large.end());
  EXPECT_EQ(merged.bins(), Of(all).bins());
  EXPECT_EQ(merged.min(), Of(all).min());
  EXPECT_EQ(merged.count(), all.size());
}

TEST(Histogram, EveryValueIsInTheBinOfItsPlace) {
  const Histogram histogram = Of({-1.0f, 0.0f, 0.75f, 1.5f});  // limit 2
  EXPECT_EQ(histogram.bin_width(), 4.0 / 2048);
  EXPECT_EQ(histogram.bins()[512], 1u);
  EXPECT_EQ(histogram.bins()[1024], 1u);
  EXPECT_EQ(histogram.bins()[1408], 1u);
  EXPECT_EQ(histogram.bins()[1792], 1u);
}

TEST(Histogram, RefusesNanAndInfAndAddsNothing) {
  Histogram histogram = Of({1.0f});
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    EXPECT_THAT(histogram.Add(std::vector<float>{2.0f, bad}),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("at element 1")));
  }
  EXPECT_EQ(histogram.count(), 1u);
  EXPECT_EQ(histogram.max(), 1.0f);
}

TEST(Histogram, ZerosAlone) {
  const Histogram histogram = Of({0.0f, 0.0f});
  EXPECT_EQ(histogram.max(), 0.0f);
  EXPECT_EQ(PercentileRange(histogram, 99.0).max, 0.0f);
  EXPECT_EQ(MseRange(histogram, 8, false).max, 0.0f);
  EXPECT_EQ(EntropyRange(histogram, 8).max, 0.0f);
}

TEST(PercentileRange, NearsTheSortedValues) {
  std::vector<float> values = WithOutliers();
  const Histogram histogram = Of(values);
  std::sort(values.begin(), values.end());
  for (const double percentile : {90.0, 99.0, 99.9}) {
    const auto place = [&](double share) {
      return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
    };
    const Range range = PercentileRange(histogram, percentile);
    const double step = 2 * histogram.bin_width();
    EXPECT_NEAR(range.max, place(percentile / 100.0), step) << percentile;
    EXPECT_NEAR(range.min, place(1.0 - percentile / 100.0), step) << percentile;
  }
}

TEST(PercentileRange, HundredIsMinMax) {
  const Histogram histogram = Of(WithOutliers());
  EXPECT_EQ(PercentileRange(histogram, 100.0).min, -40.0f);
  EXPECT_EQ(PercentileRange(histogram, 100.0).max, 60.0f);
}

// Mean squared error of quantizing the values themselves, in double.
double MeasuredError(const std::vector<float>& values, Range range, int bits, bool symmetric) {
  const Encoding encoding = MakeEncoding(range, bits, symmetric);
  std::vector<uint16_t> codes(values.size());
  QuantizeValues(values, encoding, codes);
  double sum = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double real =
        static_cast<double>(codes[i] - encoding.zero_point) * static_cast<double>(encoding.scale);
    sum += (real - static_cast<double>(values[i])) * (real - static_cast<double>(values[i]));
  }
  return sum / static_cast<double>(values.size());
}

class MseRangeTest : public ::testing::TestWithParam<bool> {};

TEST_P(MseRangeTest, MeasureIsNearTheErrorOfTheValues) {
  const std::vector<float> values = WithOutliers();
  const Histogram histogram = Of(values);
  for (const Range range : {Range{-40.0f, 60.0f}, Range{-3.0f, 3.0f}, Range{-2.0f, 1.0f}}) {
    const double measured = MeasuredError(values, range, 8, GetParam());
    EXPECT_NEAR(ExpectedSquaredError(histogram, range, 8, GetParam()), measured, 0.1 * measured);
  }
}

TEST_P(MseRangeTest, BeatsMinMaxWhereThereAreOutliers) {
  std::vector<float> values = WithOutliers();
  for (float& value : values) value = std::clamp(value, -8.0f, 8.0f);
  const Range range = MseRange(Of(values), 4, GetParam());
  EXPECT_LT(MeasuredError(values, range, 4, GetParam()),
            0.8 * MeasuredError(values, {-8.0f, 8.0f}, 4, GetParam()));
}

TEST_P(MseRangeTest, IsNeverWorseThanMinMaxUnderItsOwnMeasure) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::vector<float> values = RandomValues(300, seed, 1.0f);
    for (float& value : values) value = std::pow(value, 3.0f) + static_cast<float>(seed % 5) - 2.0f;
    const Histogram histogram = Of(values);
    for (const int bits : {8, 16}) {
      EXPECT_LE(
          ExpectedSquaredError(histogram, MseRange(histogram, bits, GetParam()), bits, GetParam()),
          ExpectedSquaredError(histogram, {histogram.min(), histogram.max()}, bits, GetParam()))
          << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Symmetry, MseRangeTest, ::testing::Bool());

// The same search on a plain array of doubles.
double ReferenceThreshold(const std::vector<float>& values, double width, int bits) {
  std::vector<double> counts(1024);
  for (const float value : values) {
    const auto bin = static_cast<int>(std::floor(static_cast<double>(value) / width));
    counts[static_cast<size_t>(bin >= 0 ? bin : -bin - 1)] += 1.0;
  }
  const size_t levels = size_t{1} << (bits - 1);
  double least = 1e300, best = 0.0;
  for (size_t kept = levels; kept <= counts.size(); ++kept) {
    std::vector<double> p(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(kept));
    std::vector<double> q(kept);
    for (size_t level = 0; level < levels; ++level) {
      const size_t begin = level * kept / levels, end = (level + 1) * kept / levels;
      double sum = 0.0, filled = 0.0;
      for (size_t i = begin; i < end; ++i) {
        sum += p[i];
        filled += p[i] > 0 ? 1 : 0;
      }
      for (size_t i = begin; i < end; ++i) q[i] = p[i] > 0 ? sum / filled : 0.0;
    }
    p[kept - 1] +=
        std::accumulate(counts.begin() + static_cast<std::ptrdiff_t>(kept), counts.end(), 0.0);
    const double p_sum = std::accumulate(p.begin(), p.end(), 0.0);
    const double q_sum = std::accumulate(q.begin(), q.end(), 0.0);
    double divergence = 0.0;
    for (size_t i = 0; i < kept; ++i) {
      if (p[i] > 0) divergence += p[i] / p_sum * std::log(p[i] / p_sum / (q[i] / q_sum));
    }
    if (std::isfinite(divergence) && divergence <= least) {
      least = divergence;
      best = static_cast<double>(kept) * width;
    }
  }
  return best;
}

TEST(EntropyRange, EqualsAPlainReference) {
  for (unsigned seed = 1; seed < 4; ++seed) {
    std::vector<float> values = RandomValues(5000, seed, 1.0f);
    values[3] = 12.0f;
    values[4] = -7.0f;
    const Histogram histogram = Of(values);
    const double expected = ReferenceThreshold(values, histogram.bin_width(), 8);
    const Range range = EntropyRange(histogram, 8);
    EXPECT_NEAR(range.max, std::min(expected, 12.0), histogram.bin_width()) << seed;
    EXPECT_NEAR(range.min, -std::min(expected, 7.0), histogram.bin_width()) << seed;
    EXPECT_LT(range.max, 11.0f) << seed;
  }
}

TEST(EntropyRange, SixteenBitsKeepMinAndMax) {
  const Range range = EntropyRange(Of(WithOutliers()), 16);
  EXPECT_EQ(range.min, -40.0f);
  EXPECT_EQ(range.max, 60.0f);
}

TEST(HistogramToJson, HoldsEveryValueIn64Bins) {
  const std::string text = HistogramToJson(Of({-1.0f, 0.0f, 1.0f, 1.0f}));
  EXPECT_THAT(text, HasSubstr("\"count\":4"));
  EXPECT_THAT(text, HasSubstr("\"max\":1.0"));
  EXPECT_THAT(text, HasSubstr("\"bins\":[1,0,"));
  EXPECT_THAT(text, HasSubstr(",2],"));
}

}  // namespace
}  // namespace hexport::quant
