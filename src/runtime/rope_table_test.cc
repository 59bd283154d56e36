#include "runtime/rope_table.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace hexport::runtime {
namespace {

bundle::ModelFacts Facts(const std::string& scaling) {
  bundle::ModelFacts model;
  model.head_dim = 16;
  model.rope_theta = 500000;
  model.rope_scaling = scaling;
  model.rope_factor = 32;
  model.rope_original_max_position_embeddings = 8192;
  return model;
}

// transformers computes in float32: 6 digits agree.
void ExpectFrequencies(const RopeTable& table, const std::array<double, 8>& expected) {
  ASSERT_EQ(table.frequencies().size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(table.frequencies()[i] / expected[i], 1.0, 2e-6) << i;
  }
}

TEST(RopeTableTest,
     Llama3ScalingAgreesWithTransformers) {  // ROPE_INIT_FUNCTIONS of transformers 5.24
  ExpectFrequencies(
      RopeTable(Facts("llama3")),
      {1.0, 0.193922758102417, 0.03760603070259094, 0.00729266507551074, 0.000429556705057621,
       8.570255886297673e-06, 1.6619674170215148e-06, 3.2229328894572973e-07});
}

TEST(RopeTableTest, LinearScalingAgreesWithTransformers) {
  ExpectFrequencies(RopeTable(Facts("linear")),
                    {0.03125, 0.006060086190700531, 0.001175188459455967, 0.00022789578360971063,
                     4.4194170186528936e-05, 8.570255886297673e-06, 1.6619674170215148e-06,
                     3.2229328894572973e-07});
}

TEST(RopeTableTest, PositionZeroIsOneAndZero) {
  std::vector<float> cos, sin;
  RopeTable(Facts("none")).Fill(0, 1, cos, sin);
  EXPECT_EQ(cos, std::vector<float>(8, 1.0f));
  EXPECT_EQ(sin, std::vector<float>(8, 0.0f));
}

TEST(RopeTableTest, RowsFollowThePositions) {
  std::vector<float> cos, sin;
  RopeTable(Facts("none")).Fill(1000, 3, cos, sin);
  ASSERT_EQ(cos.size(), 24u);
  EXPECT_FLOAT_EQ(cos[16], static_cast<float>(std::cos(1002.0)));
  EXPECT_FLOAT_EQ(sin[17], static_cast<float>(std::sin(1002.0 * std::pow(500000.0, -1.0 / 8))));
}

}  // namespace
}  // namespace hexport::runtime
