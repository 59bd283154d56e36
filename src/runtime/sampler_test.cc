#include "runtime/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace hexport::runtime {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

SamplingOptions Options(double temperature, int64_t top_k = 0, double top_p = 1.0,
                        uint64_t seed = 42) {
  SamplingOptions options;
  options.temperature = temperature;
  options.top_k = top_k;
  options.top_p = top_p;
  options.seed = seed;
  return options;
}

std::vector<int32_t> Draw(Sampler sampler, const std::vector<float>& logits, int count) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) {
    ids.push_back(sampler.Sample(logits, static_cast<int64_t>(logits.size())));
  }
  return ids;
}

std::set<int32_t> Distinct(const std::vector<int32_t>& ids) { return {ids.begin(), ids.end()}; }

TEST(SamplerTest, GreedyTakesTheBest) {
  EXPECT_EQ(Sampler(Options(0)).Sample(std::vector<float>{1, 3, 2}, 3), 1);
}

TEST(SamplerTest, GreedyTiesGoToTheLowerId) {
  EXPECT_EQ(Sampler(Options(0)).Sample(std::vector<float>{1, 3, 3, 3}, 4), 1);
}

TEST(SamplerTest, TopOneTiesGoToTheLowerId) {
  EXPECT_EQ(Distinct(Draw(Sampler(Options(1, 1)), {1, 3, 3, 3}, 50)), std::set<int32_t>{1});
}

TEST(SamplerTest, PaddedRowsAreNeverChosen) {  // 64 rows, 61 ids, the best row is padding
  std::vector<float> logits(64, 0);
  logits[63] = 100;
  logits[61] = 50;
  logits[17] = 1;
  EXPECT_EQ(Sampler(Options(0)).Sample(logits, 61), 17);
  Sampler sampler(Options(5));
  for (int i = 0; i < 2000; ++i) ASSERT_LT(sampler.Sample(logits, 61), 61);
}

TEST(SamplerTest, PaddedRowsDoNotTakeTopKPlaces) {
  EXPECT_EQ(Distinct(Draw(Sampler(Options(1, 2)), {1, 1, 1}, 200)), (std::set<int32_t>{0, 1}));
  Sampler sampler(Options(1, 2));
  std::set<int32_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(sampler.Sample(std::vector<float>{0, 2, 2, 9, 9}, 3));
  EXPECT_EQ(seen, (std::set<int32_t>{1, 2}));
}

TEST(SamplerTest, NanIsNeverChosen) {
  EXPECT_EQ(Sampler(Options(0)).Sample(std::vector<float>{kNaN, -5, kNaN}, 3), 1);
  EXPECT_EQ(Distinct(Draw(Sampler(Options(1)), {kNaN, -5, kNaN}, 100)), std::set<int32_t>{1});
}

TEST(SamplerTest, HopelessLogitsGiveTheFirstId) {
  EXPECT_EQ(Sampler(Options(1)).Sample(std::vector<float>{-kInf, kNaN}, 2), 0);
  EXPECT_EQ(Sampler(Options(1)).Sample(std::vector<float>{}, 5), 0);
}

TEST(SamplerTest, InfinityWins) {
  EXPECT_EQ(Sampler(Options(1)).Sample(std::vector<float>{0, kInf, 3}, 3), 1);
}

TEST(SamplerTest, SameSeedSameDraws) {
  const std::vector<float> uniform(4, 0.0f);
  EXPECT_EQ(Draw(Sampler(Options(1)), uniform, 1000), Draw(Sampler(Options(1)), uniform, 1000));
  EXPECT_NE(Draw(Sampler(Options(1)), uniform, 1000),
            Draw(Sampler(Options(1, 0, 1, 43)), uniform, 1000));
}

// Counts against expected frequencies. 4 cells: 3 degrees of freedom, 16.27 is the .001 quantile.
double ChiSquare(const std::vector<int32_t>& ids, const std::array<double, 4>& probabilities) {
  std::array<double, 4> counts{};
  for (const int32_t id : ids) counts.at(static_cast<size_t>(id)) += 1;
  double sum = 0;
  for (size_t i = 0; i < 4; ++i) {
    const double expected = probabilities[i] * static_cast<double>(ids.size());
    sum += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return sum;
}

TEST(SamplerTest, UniformLogitsDrawUniformly) {
  const std::vector<int32_t> ids = Draw(Sampler(Options(1)), std::vector<float>(4, 0.0f), 1000);
  EXPECT_EQ(Distinct(ids).size(), 4u);  // not reseeded for every token
  EXPECT_LT(ChiSquare(ids, {0.25, 0.25, 0.25, 0.25}), 16.27);
}

TEST(SamplerTest, DrawsFollowTheSoftmaxAtTheTemperature) {
  const std::vector<float> logits = {0, 1, 2, 3};
  std::array<double, 4> probabilities{};
  double total = 0;
  for (size_t i = 0; i < 4; ++i) total += probabilities[i] = std::exp(logits[i] / 2.0);
  for (double& p : probabilities) p /= total;
  EXPECT_LT(ChiSquare(Draw(Sampler(Options(2)), logits, 20000), probabilities), 16.27);
}

TEST(SamplerTest, TopKKeepsTheBest) {
  EXPECT_EQ(Distinct(Draw(Sampler(Options(1, 2)), {1, 3, 2, 0}, 500)), (std::set<int32_t>{1, 2}));
}

TEST(SamplerTest, TopPKeepsTheNucleus) {
  // probabilities .5, .25, .125, .125: .7 needs two ids, .8 three
  const std::vector<float> logits = {std::log(4.0f), std::log(2.0f), 0, 0};
  EXPECT_EQ(Distinct(Draw(Sampler(Options(1, 0, 0.7)), logits, 500)), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(Distinct(Draw(Sampler(Options(1, 0, 0.8)), logits, 500)), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(Distinct(Draw(Sampler(Options(1, 0, 0.0)), logits, 500)), std::set<int32_t>{0});
}

TEST(SamplerTest, TopPCountsAfterTopK) {
  // among the best two, .5 and .25 become .667 and .333: .6 keeps one id, though .6 of all needs
  // two
  const std::vector<float> logits = {std::log(4.0f), std::log(2.0f), 0, 0};
  EXPECT_EQ(Distinct(Draw(Sampler(Options(1, 2, 0.6)), logits, 500)), std::set<int32_t>{0});
}

TEST(SamplerTest, TopPCountsAfterTemperature) {
  // at temperature .5 the weights are squared: 16, 4, 1, 1 of 22; .7 keeps one id
  const std::vector<float> logits = {std::log(4.0f), std::log(2.0f), 0, 0};
  EXPECT_EQ(Distinct(Draw(Sampler(Options(0.5, 0, 0.7)), logits, 500)), std::set<int32_t>{0});
}

}  // namespace
}  // namespace hexport::runtime
