#include "checkpoint/block_format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status_matchers.h"
#include "base/test_directory.h"
#include "checkpoint/gguf_builder.h"

namespace hexport::checkpoint {
namespace {

using ::hexport::checkpoint::testing::Bytes;
using ::hexport::testing::IsOk;
using ::hexport::testing::Slurp;
using ::hexport::testing::StatusIs;
using ::testing::HasSubstr;

const std::filesystem::path kBlocks =
    std::filesystem::path(HEXPORT_TEST_DATA) / "checkpoint/blocks";

class QuantizedBlockTest : public ::testing::TestWithParam<const char*> {};

// gguf-py computes in float32 with the same operations, so values are equal and not only close.
TEST_P(QuantizedBlockTest, EqualsTheReferenceValues) {
  const BlockFormat* format = FindBlockFormat(GetParam());
  ASSERT_NE(format, nullptr);
  const std::string blocks = Slurp(kBlocks / (std::string(GetParam()) + ".bin"));
  const std::string golden = Slurp(kBlocks / (std::string(GetParam()) + ".f32"));
  ASSERT_FALSE(golden.empty());
  std::vector<float> expected(golden.size() / sizeof(float));
  std::memcpy(expected.data(), golden.data(), golden.size());
  std::vector<float> got(expected.size());
  ASSERT_THAT(Widen(*format, Bytes(blocks), got), IsOk());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], expected[i]) << i;
}

TEST(BlockFormatTest, CodesGiveTheWidenedValues) {
  for (const char* name : {"Q4_0", "Q4_1", "Q8_0"}) {
    const BlockFormat* format = FindBlockFormat(name);
    ASSERT_NE(format, nullptr);
    ASSERT_NE(format->unpack, nullptr) << name;
    const std::string blocks = Slurp(kBlocks / (std::string(name) + ".bin"));
    const auto elements = static_cast<size_t>(format->elements);
    std::vector<float> widened(elements);
    std::vector<uint8_t> codes(elements);
    for (size_t at = 0; at < blocks.size(); at += static_cast<size_t>(format->bytes)) {
      const std::byte* block = Bytes(blocks).data() + at;
      float scale = 0.0f, offset = 0.0f;
      format->widen(block, widened.data());
      format->unpack(block, codes.data(), scale, offset);
      for (size_t i = 0; i < elements; ++i) {
        ASSERT_LT(codes[i], 1 << format->code_bits);
        EXPECT_EQ(static_cast<float>(codes[i] - format->zero_point) * scale + offset, widened[i])
            << name << " " << at << " " << i;
      }
    }
  }
  EXPECT_EQ(FindBlockFormat("Q4_K")->unpack, nullptr);
}

INSTANTIATE_TEST_SUITE_P(AllTypes, QuantizedBlockTest,
                         ::testing::Values("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K",
                                           "Q6_K"));

TEST(BlockFormatTest, WidensFloatTypes) {
  const std::string halves("\x00\x3c\x00\xc0", 4);  // 1, -2
  std::vector<float> out(2);
  ASSERT_THAT(Widen(*FindBlockFormat("F16"), Bytes(halves), out), IsOk());
  EXPECT_EQ(out, (std::vector<float>{1, -2}));
  const std::string bfloats("\x80\x3f\x00\xc0", 4);
  ASSERT_THAT(Widen(*FindBlockFormat("BF16"), Bytes(bfloats), out), IsOk());
  EXPECT_EQ(out, (std::vector<float>{1, -2}));
}

TEST(BlockFormatTest, RefusesPartOfABlock) {
  std::vector<float> out(32);
  EXPECT_THAT(Widen(*FindBlockFormat("Q8_0"), Bytes(std::string(33, 'x')), out),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("Q8_0")));
  EXPECT_THAT(Widen(*FindBlockFormat("Q8_0"), Bytes(std::string(68, 'x')), out),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("32 values")));
}

TEST(BlockFormatTest, NamesAnUnsupportedType) {
  std::vector<float> out(256);
  EXPECT_THAT(Widen(*FindBlockFormat("Q2_K"), Bytes(std::string(84, 'x')), out),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("Q2_K")));
}

TEST(BlockFormatTest, NumbersAndNamesAreUnique) {
  for (uint32_t id = 0; id < 64; ++id) {
    const BlockFormat* format = FindBlockFormat(id);
    if (format == nullptr) continue;
    EXPECT_EQ(FindBlockFormat(format->name), format) << id;
  }
  EXPECT_EQ(FindBlockFormat(4711), nullptr);
  EXPECT_EQ(FindBlockFormat("F8_E4M3"), nullptr);
}

}  // namespace
}  // namespace hexport::checkpoint
