#include "diagnose/agreement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace hexport::diagnose {
namespace {

Agreement Compare(const std::vector<float>& expected, const std::vector<float>& got,
                  const std::vector<double>& weights = {}) {
  AgreementSum sum;
  sum.Add(expected, got, weights.empty() ? expected.size() : weights.size(), weights);
  return sum.Get();
}

TEST(Agreement, OfEqualTensorsIsWhole) {
  const Agreement agreement = Compare({1.0f, -2.0f}, {1.0f, -2.0f});
  EXPECT_EQ(agreement.cosine, 1.0);
  EXPECT_EQ(agreement.SqnrDb(), kMostDb);
  EXPECT_FALSE(agreement.IsBelow(0.999));
}

TEST(Agreement, IsCosineAndNoise) {
  const Agreement agreement = Compare({3.0f, 4.0f}, {4.0f, 3.0f});
  EXPECT_NEAR(agreement.cosine, 24.0 / 25.0, 1e-12);
  EXPECT_NEAR(agreement.noise, 2.0 / 25.0, 1e-12);
  EXPECT_NEAR(agreement.SqnrDb(), 10.0 * std::log10(12.5), 1e-9);
}

TEST(Agreement, SeesAWrongScaleThatTheCosineDoesNot) {
  const Agreement agreement = Compare({1.0f, 2.0f}, {0.5f, 1.0f});
  EXPECT_NEAR(agreement.cosine, 1.0, 1e-12);
  EXPECT_TRUE(agreement.IsBelow(0.9));
}

TEST(Agreement, WeighsColumns) {
  const std::vector<float> expected = {1000.0f, 1.0f, 1000.0f, -1.0f};
  const std::vector<float> got = {1000.0f, 0.0f, 1000.0f, 0.0f};
  EXPECT_FALSE(Compare(expected, got).IsBelow(0.99));
  EXPECT_NEAR(Compare(expected, got, {1e-6, 1.0}).noise, 0.5, 1e-12);
}

TEST(Agreement, OfWhatIsNotFiniteIsNone) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const Agreement agreement = Compare({1.0f, 1.0f}, {1.0f, bad});
    EXPECT_EQ(agreement.cosine, 0.0);
    EXPECT_TRUE(agreement.IsBelow(0.1));
    EXPECT_EQ(agreement.SqnrDb(), -kMostDb);
  }
}

TEST(Agreement, OfZerosDependsOnWhatStandsForThem) {
  EXPECT_EQ(Compare({0.0f, 0.0f}, {0.0f, 0.0f}).cosine, 1.0);
  EXPECT_TRUE(Compare({0.0f, 0.0f}, {0.0f, 0.1f}).IsBelow(0.9));
  EXPECT_EQ(Compare({1.0f, 0.0f}, {0.0f, 0.0f}).cosine, 0.0);
}

}  // namespace
}  // namespace hexport::diagnose
