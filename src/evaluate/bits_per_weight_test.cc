#include "evaluate/bits_per_weight.h"

#include <gtest/gtest.h>

#include "base/status_matchers.h"

namespace hexport::evaluate {
namespace {

using hexport::testing::IsOk;

TEST(CheckpointBitsPerWeight, IsTheDtypesForFloats) {
  const auto checkpoint = Checkpoint::Open(HEXPORT_TEST_DATA "/tiny/llama");
  ASSERT_THAT(checkpoint, IsOk());
  const auto bits = CheckpointBitsPerWeight(**checkpoint);
  ASSERT_THAT(bits, IsOk());
  const TensorInfo* tensor = (*checkpoint)->Find("model.layers.0.self_attn.q_proj.weight");
  ASSERT_NE(tensor, nullptr);
  EXPECT_DOUBLE_EQ(*bits, tensor->stored_dtype == "F32" ? 32 : 16);
}

}  // namespace
}  // namespace hexport::evaluate
