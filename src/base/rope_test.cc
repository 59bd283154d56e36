// Frequencies are compared with transformers 5.24's ROPE_INIT_FUNCTIONS (float32, so to 1e-6
// relative).
#include "base/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

namespace hexport {
namespace {

constexpr int64_t kAnyContext = 1024;

RopeParameters Rope(int64_t rotary_dim, double theta) {
  RopeParameters rope;
  rope.rotary_dim = rotary_dim;
  rope.rope_theta = theta;
  return rope;
}

void ExpectPairs(const std::vector<double>& got,
                 const std::vector<std::pair<size_t, double>>& expected, double tolerance) {
  for (const auto& [pair, value] : expected) {
    ASSERT_LT(pair, got.size());
    EXPECT_NEAR(got[pair] / value, 1.0, tolerance) << pair;
  }
}

TEST(InverseFrequenciesTest, Plain) {
  const std::vector<double> got = InverseFrequencies(Rope(8, 10000.0), kAnyContext);
  ASSERT_EQ(got.size(), 4u);
  ExpectPairs(got, {{0, 1.0}, {1, 0.1}, {2, 0.01}, {3, 0.001}}, 1e-14);
}

TEST(InverseFrequenciesTest, Linear) {
  RopeParameters rope = Rope(8, 10000.0);
  rope.scaling.type = RopeScaling::Type::kLinear;
  rope.scaling.factor = 2.5;
  const std::vector<double> got = InverseFrequencies(rope, kAnyContext);
  ASSERT_EQ(got.size(), 4u);
  ExpectPairs(got, {{0, 0.4}, {1, 0.04}, {2, 0.004}, {3, 0.0004}}, 1e-14);
}

// Llama 3.2 1B: kept up to pair 14, blended at 15 to 17, divided by 32 from 18 on.
TEST(InverseFrequenciesTest, Llama3AsTransformersHasThem) {
  RopeParameters rope = Rope(64, 500000.0);
  rope.scaling = {.type = RopeScaling::Type::kLlama3,
                  .factor = 32.0,
                  .low_freq_factor = 1.0,
                  .high_freq_factor = 4.0,
                  .original_max_position_embeddings = 8192};
  const std::vector<double> got = InverseFrequencies(rope, kAnyContext);
  ASSERT_EQ(got.size(), 32u);
  ExpectPairs(got,
              {{0, 1.0},
               {1, 0.663601279},
               {12, 0.00729266508},
               {14, 0.00321144611},
               {15, 0.00129054801},
               {16, 0.000429556705},
               {17, 9.70828623e-05},
               {18, 1.94616387e-05},
               {19, 1.29147675e-05},
               {24, 1.66196742e-06},
               {31, 9.41830649e-08}},
              1e-6);
}

RopeParameters Yarn() {
  RopeParameters rope = Rope(128, 1e6);
  rope.scaling.type = RopeScaling::Type::kYarn;
  rope.scaling.factor = 4;
  rope.scaling.original_max_position_embeddings = 32768;
  rope.scaling.attention_factor = 0.1 * std::log(4.0) + 1.0;
  return rope;
}

// Case X06: the ramp runs over pairs 23 to 40.
TEST(InverseFrequenciesTest, X06Yarn) {
  const std::vector<double> got = InverseFrequencies(Yarn(), kAnyContext);
  ASSERT_EQ(got.size(), 64u);
  ExpectPairs(got, {{32, 6.0294118e-4}, {40, 4.4456985e-5}, {63, 3.1023444e-7}}, 2e-8);
  const std::vector<double> plain = InverseFrequencies(Rope(128, 1e6), kAnyContext);
  for (size_t pair = 0; pair <= 23; ++pair) EXPECT_DOUBLE_EQ(got[pair], plain[pair]) << pair;
  EXPECT_LT(got[24], plain[24]);
  EXPECT_GT(got[39], plain[39] / 4 * 1.01);
  for (size_t pair = 40; pair < 64; ++pair) EXPECT_DOUBLE_EQ(got[pair], plain[pair] / 4) << pair;
}

TEST(RopeTableTest, X06YarnMultipliesCosAndSin) {
  const RopeParameters rope = Yarn();
  std::vector<float> cos, sin;
  RopeTable(InverseFrequencies(rope, kAnyContext), rope.scaling.attention_factor, 0, 1, cos, sin);
  EXPECT_NEAR(cos[0], 1.1386294, 1e-7);
  EXPECT_EQ(sin[0], 0.0f);
}

// The ramp's ends are not rounded: 23.6.. to 39.6..
TEST(InverseFrequenciesTest, YarnWithoutTruncation) {
  RopeParameters rope = Yarn();
  rope.scaling.truncate = false;
  const auto pair_of_turns = [](double turns) {
    return 128 * std::log(32768 / (turns * 2 * M_PI)) / (2 * std::log(1e6));
  };
  const double low = pair_of_turns(32), high = pair_of_turns(1);
  const double slowed = (32 - low) / (high - low), plain = std::pow(1e6, -0.5);
  const std::vector<double> got = InverseFrequencies(rope, kAnyContext);
  EXPECT_NEAR(got[32] / (plain / 4 * slowed + plain * (1 - slowed)), 1.0, 1e-12);
  EXPECT_NE(got[32], InverseFrequencies(Yarn(), kAnyContext)[32]);
}

TEST(InverseFrequenciesTest, LongropePicksItsFactorsByTheContext) {
  RopeParameters rope = Rope(4, 100.0);  // plain frequencies 1 and 0.1
  rope.scaling.type = RopeScaling::Type::kLongrope;
  rope.scaling.original_max_position_embeddings = 64;
  rope.scaling.short_factor = {1.0, 2.0};
  rope.scaling.long_factor = {4.0, 5.0};
  ExpectPairs(InverseFrequencies(rope, 64), {{0, 1.0}, {1, 0.05}}, 1e-14);
  ExpectPairs(InverseFrequencies(rope, 65), {{0, 0.25}, {1, 0.02}}, 1e-14);
}

TEST(RopeTableTest, RowsArePositionsFromTheFirst) {
  std::vector<float> cos, sin;
  RopeTable(std::vector<double>{1.0, 0.1}, 1.0, 2, 2, cos, sin);
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
  RopeTable(std::vector<double>{1.0}, 1.0, 15962, 1, cos, sin);
  EXPECT_FLOAT_EQ(cos[0], -0.908016f);
  RopeTable(std::vector<double>{1 / std::sqrt(7.0)}, 1.0, 1000001, 1, cos, sin);
  EXPECT_FLOAT_EQ(sin[0], static_cast<float>(std::sin(1000001.0 / std::sqrt(7.0))));
}

// Case X07: a phase in half precision is 1045 and its cosine -.408165; positions in bfloat16 turn
// 257 into 256.
TEST(RopeTableTest, X07PhasesAreNotHalfPrecision) {
  std::vector<float> cos, sin;
  const std::vector<double> frequencies = InverseFrequencies(Rope(32, 1e4), kAnyContext);
  EXPECT_NEAR(1857 * frequencies[1], 1044.26782, 5e-5);
  RopeTable(frequencies, 1.0, 1857, 1, cos, sin);
  EXPECT_NEAR(cos[1], 0.306693, 1e-6);
  RopeTable(frequencies, 1.0, 256, 2, cos, sin);
  EXPECT_NEAR(cos[16], std::cos(257.0), 1e-6);
  EXPECT_GT(std::abs(cos[16] - cos[0]), 0.5);
}

}  // namespace
}  // namespace hexport
