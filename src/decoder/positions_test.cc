// Frequencies are compared with transformers 5.24's ROPE_INIT_FUNCTIONS (float32, so to 1e-6
// relative).
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "base/status_matchers.h"
#include "decoder/decoder.h"

namespace hexport::decoder {
namespace {

using ::testing::ElementsAre;

ModelConfig Config(int64_t head_dim, double theta) {
  ModelConfig config;
  config.head_dim = head_dim;
  config.rope_theta = theta;
  return config;
}

TEST(InverseFrequenciesTest, Plain) {
  const std::vector<double> got = InverseFrequencies(Config(8, 10000.0));
  const double expected[] = {1.0, 0.1, 0.01, 0.001};
  ASSERT_EQ(got.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(got[i], expected[i], 1e-15) << i;
}

TEST(InverseFrequenciesTest, Linear) {
  ModelConfig config = Config(8, 10000.0);
  config.rope_scaling.type = RopeScaling::Type::kLinear;
  config.rope_scaling.factor = 2.5;
  const std::vector<double> got = InverseFrequencies(config);
  const double expected[] = {0.4, 0.04, 0.004, 0.0004};
  ASSERT_EQ(got.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(got[i], expected[i], 1e-15) << i;
}

// Llama 3.2 1B: kept up to pair 14, blended at 15 to 17, divided by 32 from 18 on.
TEST(InverseFrequenciesTest, Llama3AsTransformersHasThem) {
  ModelConfig config = Config(64, 500000.0);
  config.rope_scaling = {RopeScaling::Type::kLlama3, 32.0, 1.0, 4.0, 8192};
  const std::vector<double> got = InverseFrequencies(config);
  const std::pair<size_t, double> expected[] = {{0, 1.0},
                                                {1, 0.663601279},
                                                {12, 0.00729266508},
                                                {14, 0.00321144611},
                                                {15, 0.00129054801},
                                                {16, 0.000429556705},
                                                {17, 9.70828623e-05},
                                                {18, 1.94616387e-05},
                                                {19, 1.29147675e-05},
                                                {24, 1.66196742e-06},
                                                {31, 9.41830649e-08}};
  ASSERT_EQ(got.size(), 32u);
  for (const auto& [pair, value] : expected) EXPECT_NEAR(got[pair] / value, 1.0, 1e-6) << pair;
}

TEST(RopeTableTest, RowsArePositionsFromTheFirst) {
  std::vector<float> cos, sin;
  RopeTable(Config(4, 100.0), 2, 2, cos, sin);  // frequencies 1 and 0.1
  ASSERT_EQ(cos.size(), 4u);
  ASSERT_EQ(sin.size(), 4u);
  const double phases[] = {2.0, 0.2, 3.0, 0.3};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_FLOAT_EQ(cos[i], static_cast<float>(std::cos(phases[i]))) << i;
    EXPECT_FLOAT_EQ(sin[i], static_cast<float>(std::sin(phases[i]))) << i;
  }
}

// A float32 phase is off by up to 2^-10 here: the table must not be.
TEST(RopeTableTest, FarPositionsKeepTheirPhase) {
  std::vector<float> cos, sin;
  RopeTable(Config(2, 10000.0), 15962, 1, cos, sin);
  EXPECT_FLOAT_EQ(cos[0], static_cast<float>(std::cos(15962.0)));
  RopeTable(Config(4, 7.0), 1000001, 1, cos, sin);
  EXPECT_FLOAT_EQ(sin[1], static_cast<float>(std::sin(1000001.0 / std::sqrt(7.0))));
}

TEST(AttentionMaskTest, PastIsLeftAlignedAndPaddingSeesNothing) {
  // 3 rows, 2 past columns of which 1 is valid, 2 new tokens.
  EXPECT_THAT(AttentionMask(3, 5, 1, 2, -9.0f), ElementsAre(0, -9, 0, -9, -9,  //
                                                            0, -9, 0, 0, -9,   //
                                                            -9, -9, -9, -9, -9));
}

TEST(AttentionMaskTest, ValuesBeyondAreCut) {
  EXPECT_EQ(AttentionMask(2, 3, 5, 7, -1.0f), AttentionMask(2, 3, 1, 2, -1.0f));
}

TEST(CausalMaskTest, EachTokenSeesItselfAndThoseBefore) {
  EXPECT_THAT(CausalMask(3, -1.0f), ElementsAre(0, -1, -1, 0, 0, -1, 0, 0, 0));
}

}  // namespace
}  // namespace hexport::decoder
