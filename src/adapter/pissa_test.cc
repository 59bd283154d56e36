// L15: adapters whose trainer changed the base. The parts taken out are known by construction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <cmath>

#include "adapter/matched_adapters.h"
#include "adapter/merge_fixture.h"

namespace hexport::adapter {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;
using testing::TinyAdapter;
using testing::TinyModel;
using testing::TinyTensor;
using Matrix = Eigen::MatrixXd;

constexpr const char* kModule = "model.layers.0.self_attn.k_proj";  // [16, 32]
const std::string kKey = std::string("base_model.model.") + kModule;

Matrix Generated(int64_t rows, int64_t columns, uint32_t seed) {
  testing::Lcg lcg(seed);
  Matrix out(rows, columns);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) out(i, j) = static_cast<double>(lcg.Next());
  }
  return out;
}

TinyTensor Stored(const Matrix& matrix) {
  TinyTensor out{{matrix.rows(), matrix.cols()}, {}, "F32"};
  for (int64_t i = 0; i < matrix.rows(); ++i) {
    for (int64_t j = 0; j < matrix.cols(); ++j) {
      out.values.push_back(static_cast<float>(matrix(i, j)));
    }
  }
  return out;
}

// An orthogonal matrix: reflections by two vectors.
Matrix Orthogonal(int64_t size, uint32_t seed) {
  Matrix out = Matrix::Identity(size, size);
  for (uint32_t i = 0; i < 2; ++i) {
    const Matrix v = Generated(size, 1, seed + i);
    out = out * (Matrix::Identity(size, size) - 2.0 / v.squaredNorm() * v * v.transpose());
  }
  return out;
}

class InitialAdapterTest : public MergeTest {
 protected:
  static constexpr int64_t kRank = 4;
  static constexpr double kScale = 2.0;

  // W = U S V^T with singular values 16, 15, ..., 1, and its best rank-4 part.
  InitialAdapterTest() {
    const Matrix u = Orthogonal(16, 3), v = Orthogonal(32, 30);
    Matrix s = Matrix::Zero(16, 32);
    for (int64_t i = 0; i < 16; ++i) s(i, i) = static_cast<double>(16 - i);
    weight_ = u * s * v.transpose();
    top_ = u.leftCols(kRank) * s.topLeftCorner(kRank, kRank) * v.leftCols(kRank).transpose();
    model_.tensors[std::string(kModule) + ".weight"] = Stored(weight_);
  }

  TinyAdapter Trained(const nlohmann::json& init) const {
    TinyAdapter adapter;
    adapter.config = {{"peft_type", "LORA"},
                      {"r", kRank},
                      {"lora_alpha", kRank * kScale},
                      {"target_modules", {kModule}},
                      {"init_lora_weights", init}};
    adapter.tensors[kKey + ".lora_A.weight"] = Stored(a_);
    adapter.tensors[kKey + ".lora_B.weight"] = Stored(b_);
    return adapter;
  }

  void ExpectMerged(const Merged& merged, const Matrix& taken_out) const {
    EXPECT_THAT(merged.report.failures, IsEmpty());
    const Matrix expected = weight_ - taken_out + kScale * b_ * a_;
    const TinyTensor stored = Stored(expected);
    const auto& values = merged.tensors.at(std::string(kModule) + ".weight").values;
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], stored.values[i], 2e-5f) << i;
  }

  TinyModel model_ = testing::Tl3();
  Matrix weight_, top_;
  const Matrix a_ = Generated(kRank, 32, 50), b_ = Generated(16, kRank, 51);
};

TEST_F(InitialAdapterTest, L15PissaIsRebuiltFromTheTopSingularPart) {
  const auto merged = MergeTiny(model_, Trained("pissa"));
  ASSERT_THAT(merged, IsOk());
  ExpectMerged(*merged, top_);
}

TEST_F(InitialAdapterTest, L15PissaOfATallWeight) {
  std::vector<float> left, right;
  const TinyTensor tall = Stored(weight_.transpose());
  ASSERT_THAT(RebuildPissa(tall.values, 32, 16, kRank, kScale, left, right), IsOk());
  const TinyTensor expected = Stored(top_.transpose());
  const TinyTensor b{{32, kRank}, left, "F32"}, a{{kRank, 16}, right, "F32"};
  const std::vector<double> product = testing::Product(b, a);
  for (size_t i = 0; i < product.size(); ++i) {
    ASSERT_NEAR(kScale * product[i], static_cast<double>(expected.values[i]), 2e-5);
  }
  EXPECT_THAT(RebuildPissa(tall.values, 32, 16, 17, kScale, left, right),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("1 to 16")));
}

// The first r columns of Q by Gram and Schmidt; OLoRA takes scale Q_r Q_r^T W out.
TEST_F(InitialAdapterTest, L15OloraIsRebuiltFromQR) {
  Matrix q = weight_.leftCols(kRank);
  for (int64_t j = 0; j < kRank; ++j) {
    for (int64_t i = 0; i < j; ++i) q.col(j) -= q.col(i).dot(q.col(j)) * q.col(i);
    q.col(j).normalize();
  }
  const auto merged = MergeTiny(model_, Trained("olora"));
  ASSERT_THAT(merged, IsOk());
  ExpectMerged(*merged, kScale * q * q.transpose() * weight_);
}

TEST_F(InitialAdapterTest, L15TheGivenInitialAdapterIsSubtracted) {
  const Matrix a0 = Generated(kRank, 32, 60), b0 = Generated(16, kRank, 61);
  TinyAdapter initial = Trained("pissa");
  initial.tensors[kKey + ".lora_A.weight"] = Stored(a0);
  initial.tensors[kKey + ".lora_B.weight"] = Stored(b0);
  testing::WriteAdapter(directory_ / "initial", initial);
  MatchOptions match;
  match.initial_adapter = directory_ / "initial";
  for (const char* init : {"pissa", "olora", "corda", "pissa_niter_4"}) {
    const auto merged = MergeTiny(model_, Trained(init), {}, match);
    ASSERT_THAT(merged, IsOk()) << init;
    ExpectMerged(*merged, kScale * b0 * a0);
  }
  const auto plain = MergeTiny(model_, Trained(true), {}, match);
  ASSERT_THAT(plain, IsOk());
  ExpectMerged(*plain, Matrix::Zero(16, 32));
  EXPECT_THAT(plain->report.warnings, Contains(HasSubstr("initial adapter was ignored")));
}

TEST_F(InitialAdapterTest, L15WhatCannotBeRebuiltIsRefused) {
  for (const char* init : {"corda", "loftq", "lora_ga", "pissa_niter_4", "tomorrow"}) {
    EXPECT_THAT(MergeTiny(model_, Trained(init)),
                StatusIs(StatusCode::kUnimplemented,
                         AllOf(HasSubstr(init), HasSubstr("untouched base is wrong"))));
  }
}

TEST_F(InitialAdapterTest, L15AnInitialAdapterOfOtherShapesIsRefused) {
  TinyAdapter initial = Trained("pissa");
  initial.config["r"] = 2;
  initial.tensors[kKey + ".lora_A.weight"] = Stored(Generated(2, 32, 60));
  initial.tensors[kKey + ".lora_B.weight"] = Stored(Generated(16, 2, 61));
  testing::WriteAdapter(directory_ / "initial", initial);
  MatchOptions match;
  match.initial_adapter = directory_ / "initial";
  EXPECT_THAT(MergeTiny(model_, Trained("pissa"), {}, match),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr(kModule)));
}

// A converted adapter is plain LoRA of twice the rank.
TEST_F(InitialAdapterTest, L15ConvertedAdapterIsPlainLora) {
  TinyAdapter adapter = Trained(true);
  Matrix a(2 * kRank, 32), b(16, 2 * kRank);
  a << a_, Generated(kRank, 32, 60);
  b << b_, -Generated(16, kRank, 61);
  adapter.tensors[kKey + ".lora_A.weight"] = Stored(a);
  adapter.tensors[kKey + ".lora_B.weight"] = Stored(b);
  EXPECT_THAT(MergeTiny(model_, adapter),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("converting a PiSSA")));
  adapter.config["r"] = 2 * kRank;
  adapter.config["lora_alpha"] = 2 * kRank * kScale;
  const auto merged = MergeTiny(model_, adapter);
  ASSERT_THAT(merged, IsOk());
  ExpectMerged(*merged, kScale * Generated(16, kRank, 61) * Generated(kRank, 32, 60));
}

}  // namespace
}  // namespace hexport::adapter
