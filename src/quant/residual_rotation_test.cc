#include "quant/residual_rotation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "quant/calibrate.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::IsOk;

std::vector<float> Identity(size_t n) {
  std::vector<float> out(n * n, 0.0f);
  for (size_t i = 0; i < n; ++i) out[i * n + i] = 1.0f;
  return out;
}

class RotationSize : public ::testing::TestWithParam<int> {};

TEST_P(RotationSize, IsOrthonormalAndSpreadsEveryChannel) {
  const size_t n = static_cast<size_t>(GetParam());
  std::vector<float> r = Identity(n);
  ResidualRotation(static_cast<int64_t>(n), 7).ApplyToRows(r);
  float largest = 0;
  for (const float v : r) largest = std::max(largest, std::abs(v));
  EXPECT_LE(largest, std::sqrt(2.0f / static_cast<float>(n)) * 1.0001f);
  for (size_t i = 0; i < n; i += std::max<size_t>(n / 7, 1)) {
    for (size_t j = 0; j < n; ++j) {
      double dot = 0;
      for (size_t k = 0; k < n; ++k)
        dot += static_cast<double>(r[i * n + k]) * static_cast<double>(r[j * n + k]);
      EXPECT_NEAR(dot, i == j ? 1.0 : 0.0, 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, RotationSize, ::testing::Values(1, 3, 8, 32, 36, 576, 896));

TEST(ResidualRotation, SameSeedSameRotation) {
  std::vector<float> a = Identity(12), b = a, c = a;
  ResidualRotation(12, 1).ApplyToRows(a);
  ResidualRotation(12, 1).ApplyToRows(b);
  ResidualRotation(12, 2).ApplyToRows(c);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
}

TEST(RotateResidual, ReadersUndoWhatWritersDo) {
  // q(norm(x)) with x = down(...): the product of a reader and a writer, gain folded, is the same
  // in both models.
  const auto base = Checkpoint::Open(std::string(HEXPORT_TEST_DATA) + "/tiny/llama");
  ASSERT_THAT(base, IsOk());
  const auto rotated = RotateResidual(**base, 3);
  const size_t hidden = static_cast<size_t>((*base)->config().hidden_size);
  const size_t inter = static_cast<size_t>((*base)->config().intermediate_size);
  const std::string down = "model.layers.0.mlp.down_proj.weight",
                    up = "model.layers.1.mlp.up_proj.weight";
  std::vector<float> d0(hidden * inter), d1 = d0, u0(inter * hidden), u1 = u0, gain(hidden),
                                         ones(hidden);
  ASSERT_THAT((*base)->Read(down, d0), IsOk());
  ASSERT_THAT(rotated->Read(down, d1), IsOk());
  ASSERT_THAT((*base)->Read(up, u0), IsOk());
  ASSERT_THAT(rotated->Read(up, u1), IsOk());
  ASSERT_THAT((*base)->Read("model.layers.1.post_attention_layernorm.weight", gain), IsOk());
  ASSERT_THAT(rotated->Read("model.layers.1.post_attention_layernorm.weight", ones), IsOk());
  EXPECT_EQ(ones, std::vector<float>(hidden, 1.0f));
  EXPECT_NE(d0, d1);
  std::vector<float> rows(2 * inter);
  ASSERT_THAT(rotated->ReadRows(down, 3, rows), IsOk());
  EXPECT_EQ(rows, std::vector<float>(d1.begin() + static_cast<std::ptrdiff_t>(3 * inter),
                                     d1.begin() + static_cast<std::ptrdiff_t>(5 * inter)));
  for (size_t i = 0; i < inter; i += 5) {
    for (size_t j = 0; j < inter; j += 3) {
      double expected = 0, got = 0;
      for (size_t k = 0; k < hidden; ++k) {
        expected += static_cast<double>(u0[i * hidden + k]) * static_cast<double>(gain[k]) *
                    static_cast<double>(d0[k * inter + j]);
        got += static_cast<double>(u1[i * hidden + k]) * static_cast<double>(d1[k * inter + j]);
      }
      EXPECT_NEAR(got, expected, 1e-5);
    }
  }
}

// The rotated model computes the same, also where q, k, v and gate, up are rows of one tensor, and
// a window and layers without RoPE change nothing about the residual stream.
class RotatedModel : public ::testing::TestWithParam<const char*> {};

TEST_P(RotatedModel, ComputesTheSame) {
  const auto base = Checkpoint::Open(std::string(HEXPORT_TEST_DATA) + "/tiny/" + GetParam());
  ASSERT_THAT(base, IsOk());
  ASSERT_TRUE(CanRotateResidual((*base)->config()));
  const auto rotated = RotateResidual(**base, 5);
  const std::vector<TokenIds> samples = {{3, 17, 42, 8, 60, 1, 25, 33}};
  const auto expected = FloatLogits(**base, samples, NullProgress());
  const auto got = FloatLogits(*rotated, samples, NullProgress());
  ASSERT_THAT(expected, IsOk());
  ASSERT_THAT(got, IsOk());
  for (size_t i = 0; i < (*expected)[0].size(); ++i)
    ASSERT_NEAR((*got)[0][i], (*expected)[0][i], 2e-4) << i;
}

INSTANTIATE_TEST_SUITE_P(Architectures, RotatedModel,
                         ::testing::Values("llama", "mistral", "phi3", "smollm3"));

TEST(RotateResidual, NormsOfBranchesStandInItsWay) {
  const auto gemma = Checkpoint::Open(std::string(HEXPORT_TEST_DATA) + "/tiny/gemma3_text");
  ASSERT_THAT(gemma, IsOk());
  EXPECT_FALSE(CanRotateResidual((*gemma)->config()));
}

}  // namespace
}  // namespace hexport::quant
