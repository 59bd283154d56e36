#include "quant/gptq.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <Eigen/Cholesky>
#include <Eigen/LU>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/status_matchers.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::HasSubstr;
using Matrix = Eigen::MatrixXd;

constexpr GptqOptions kInOrder{.act_order = false, .weigh_scales = false};
constexpr int kIn = 48, kOut = 10, kTokens = 200;

struct Problem {
  std::vector<float> weights;  // [kIn, kOut]
  std::vector<float> hessian;  // [kIn, kIn]
  Matrix inputs;               // [kTokens, kIn]
};

// Inputs with strong correlations between features, as hidden states have.
Problem MakeProblem() {
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  Problem p;
  Matrix mix(6, kIn);
  p.inputs = Matrix(kTokens, kIn);
  for (int i = 0; i < mix.size(); ++i) mix.data()[i] = normal(random);
  for (int t = 0; t < kTokens; ++t) {
    Eigen::RowVectorXd source(6);
    for (int i = 0; i < 6; ++i) source(i) = normal(random);
    p.inputs.row(t) = source * mix;
    for (int k = 0; k < kIn; ++k) p.inputs(t, k) += 0.1 * normal(random);
  }
  for (int i = 0; i < kIn * kOut; ++i)
    p.weights.push_back(static_cast<float>(0.1 * normal(random)));
  const Matrix h = p.inputs.transpose() * p.inputs;
  for (int i = 0; i < kIn; ++i) {
    for (int j = 0; j < kIn; ++j) p.hessian.push_back(static_cast<float>(h(i, j)));
  }
  return p;
}

double OutputError(const Problem& p, const QuantizedWeight& weight) {
  const std::vector<float> back = Dequantize(weight);
  Matrix difference(kIn, kOut);
  for (int k = 0; k < kIn; ++k) {
    for (int n = 0; n < kOut; ++n) {
      const size_t at = static_cast<size_t>(k * kOut + n);
      difference(k, n) = static_cast<double>(back[at]) - static_cast<double>(p.weights[at]);
    }
  }
  return (p.inputs * difference).squaredNorm();
}

// The paper's algorithm as it is written down: the inverse, its Cholesky factor, one row at a time,
// in float64.
std::vector<int8_t> ReferenceCodes(const Problem& p, const QuantizedWeight& scales, double top,
                                   double bottom) {
  Matrix h(kIn, kIn), w(kIn, kOut);
  for (int i = 0; i < kIn; ++i) {
    for (int j = 0; j < kIn; ++j)
      h(i, j) = static_cast<double>(p.hessian[static_cast<size_t>(i * kIn + j)]);
    for (int n = 0; n < kOut; ++n)
      w(i, n) = static_cast<double>(p.weights[static_cast<size_t>(i * kOut + n)]);
  }
  h += 0.01 * h.diagonal().mean() * Matrix::Identity(kIn, kIn);
  const Matrix inverse = h.inverse();
  const Matrix upper = Eigen::LLT<Matrix>(inverse).matrixU();
  std::vector<int8_t> codes(static_cast<size_t>(kIn * kOut));
  for (int k = 0; k < kIn; ++k) {
    for (int n = 0; n < kOut; ++n) {
      double scale = static_cast<double>(scales.channel_scales[static_cast<size_t>(n)]);
      if (!scales.block_scales.empty()) {
        scale *= scales.block_scales[static_cast<size_t>(k / scales.block_size * kOut + n)];
      }
      const double code = std::min(top, std::max(bottom, std::nearbyint(w(k, n) / scale)));
      codes[static_cast<size_t>(k * kOut + n)] = static_cast<int8_t>(code);
      const double error = (w(k, n) - code * scale) / upper(k, k);
      for (int j = k + 1; j < kIn; ++j) w(j, n) -= upper(k, j) * error;
    }
  }
  return codes;
}

class GptqFormat : public ::testing::TestWithParam<WeightOptions> {};

TEST_P(GptqFormat, EqualsTheReferenceAndBeatsRoundToNearest) {
  const Problem p = MakeProblem();
  const auto gptq = QuantizeGptq(p.weights, kIn, kOut, p.hessian, GetParam(), kInOrder);
  const auto rtn = QuantizeRtn(p.weights, kIn, kOut, GetParam());
  ASSERT_THAT(gptq, IsOk());
  ASSERT_THAT(rtn, IsOk());
  EXPECT_EQ(gptq->channel_scales, rtn->channel_scales);
  EXPECT_EQ(gptq->block_scales, rtn->block_scales);
  const bool int8 = GetParam().format == WeightFormat::kInt8;
  const std::vector<int8_t> expected = ReferenceCodes(p, *rtn, int8 ? 127 : 7, int8 ? -127 : -8);
  // float32 against float64: a tie may fall the other way and move its neighbours by one.
  int different = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    different += expected[i] == gptq->codes[i] ? 0 : 1;
    EXPECT_LE(std::abs(expected[i] - gptq->codes[i]), 1) << i;
  }
  EXPECT_LE(different, kIn * kOut / 50);
  EXPECT_LT(OutputError(p, *gptq), 0.6 * OutputError(p, *rtn));
}

INSTANTIATE_TEST_SUITE_P(Formats, GptqFormat,
                         ::testing::Values(WeightOptions{WeightFormat::kInt8, 32},
                                           WeightOptions{WeightFormat::kInt4, 32},
                                           WeightOptions{WeightFormat::kLpbq, 16}));

TEST(Gptq, IndependentInputsGiveRoundToNearest) {
  const Problem p = MakeProblem();
  std::vector<float> identity(kIn * kIn, 0.0f);
  for (size_t i = 0; i < kIn; ++i) identity[i * kIn + i] = 2.0f;
  const auto gptq = QuantizeGptq(p.weights, kIn, kOut, identity, {});
  ASSERT_THAT(gptq, IsOk());
  EXPECT_EQ(gptq->codes, QuantizeRtn(p.weights, kIn, kOut, {})->codes);
}

TEST(Gptq, FeatureThatWasNeverActiveIsHarmless) {
  Problem p = MakeProblem();
  for (size_t j = 0; j < kIn; ++j) p.hessian[5 * kIn + j] = p.hessian[j * kIn + 5] = 0.0f;
  const auto gptq = QuantizeGptq(p.weights, kIn, kOut, p.hessian, {});
  ASSERT_THAT(gptq, IsOk());
  const auto rtn = QuantizeRtn(p.weights, kIn, kOut, {});
  for (size_t n = 0; n < kOut; ++n) EXPECT_EQ(gptq->codes[5 * kOut + n], rtn->codes[5 * kOut + n]);
}

TEST(Gptq, WrongHessianSizeIsRefused) {
  const Problem p = MakeProblem();
  EXPECT_THAT(QuantizeGptq(p.weights, kIn, kOut, std::vector<float>(7), {}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("48 x 48")));
}

TEST(Gptq, ActOrderRoundsTheLargestInputsFirst) {
  Problem p = MakeProblem();
  // The reference on features that are sorted by hand gives the same codes.
  std::vector<size_t> order(kIn);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return p.hessian[a * kIn + a] > p.hessian[b * kIn + b];
  });
  Problem sorted = p;
  for (size_t i = 0; i < kIn; ++i) {
    for (size_t n = 0; n < kOut; ++n) sorted.weights[i * kOut + n] = p.weights[order[i] * kOut + n];
    for (size_t j = 0; j < kIn; ++j)
      sorted.hessian[i * kIn + j] = p.hessian[order[i] * kIn + order[j]];
  }
  const WeightOptions int4{WeightFormat::kInt4, 32};
  const auto ordered = QuantizeGptq(p.weights, kIn, kOut, p.hessian, int4);
  const auto by_hand = QuantizeGptq(sorted.weights, kIn, kOut, sorted.hessian, int4, kInOrder);
  ASSERT_THAT(ordered, IsOk());
  ASSERT_THAT(by_hand, IsOk());
  for (size_t i = 0; i < kIn; ++i) {
    for (size_t n = 0; n < kOut; ++n)
      EXPECT_EQ(ordered->codes[order[i] * kOut + n], by_hand->codes[i * kOut + n]);
  }
}

}  // namespace
}  // namespace hexport::quant
