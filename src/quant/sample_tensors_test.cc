#include "quant/sample_tensors.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

namespace hexport::quant {
namespace {

std::vector<float> Ramp(size_t count, float first) {
  std::vector<float> out(count);
  std::iota(out.begin(), out.end(), first);
  return out;
}

void ExpectHolds(const SampleTensors& tensors, size_t sample, const std::vector<float>& expected) {
  std::vector<float> scratch;
  const Result<std::span<const float>> got = tensors.Get(sample, scratch);
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(std::vector<float>(got->begin(), got->end()), expected);
}

TEST(SampleTensorsTest, WhatDoesNotFitGoesToTheFileAndComesBack) {
  SpillBudget budget(40, std::filesystem::temp_directory_path());
  SampleTensors tensors(budget, 3);
  for (size_t s = 0; s < 3; ++s) {
    ASSERT_TRUE(tensors.Put(s, {2, 4}, Ramp(8, static_cast<float>(100 * s))).ok());
  }
  EXPECT_EQ(budget.in_memory_bytes(), 32);
  EXPECT_EQ(budget.spilled_bytes(), 64);
  for (size_t s = 0; s < 3; ++s) ExpectHolds(tensors, s, Ramp(8, static_cast<float>(100 * s)));
}

TEST(SampleTensorsTest, ReplacingASampleKeepsTheCount) {
  SpillBudget budget(40, std::filesystem::temp_directory_path());
  SampleTensors tensors(budget, 2);
  for (int round = 0; round < 3; ++round) {
    for (size_t s = 0; s < 2; ++s) {
      ASSERT_TRUE(tensors.Put(s, {8}, Ramp(8, static_cast<float>(round))).ok());
    }
  }
  EXPECT_EQ(budget.in_memory_bytes(), 32);
  for (size_t s = 0; s < 2; ++s) ExpectHolds(tensors, s, Ramp(8, 2.0f));
  tensors = SampleTensors(budget, 0);
  EXPECT_EQ(budget.in_memory_bytes(), 0);
}

TEST(SampleTensorsTest, RefusesWrongSizesAndMissingSamples) {
  SpillBudget budget(1000, std::filesystem::temp_directory_path());
  SampleTensors tensors(budget, 1);
  EXPECT_EQ(tensors.Put(0, {3}, Ramp(4, 0)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(tensors.Put(1, {4}, Ramp(4, 0)).code(), StatusCode::kInvalidArgument);
  std::vector<float> scratch;
  EXPECT_EQ(tensors.Get(0, scratch).status().code(), StatusCode::kNotFound);
}

TEST(SampleTensorsTest, AFolderThatIsNotThereIsAnError) {
  SpillBudget budget(0, "/no/such/folder");
  SampleTensors tensors(budget, 1);
  const Status status = tensors.Put(0, {4}, Ramp(4, 0));
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(std::string(status.message()).find("/no/such/folder"), std::string::npos);
}

}  // namespace
}  // namespace hexport::quant
