#include "checkpoint/packed_config.h"

#include <gtest/gtest.h>

#include <string>

#include "base/status_matchers.h"

namespace hexport::checkpoint {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

Result<std::optional<PackedConfig>> Parse(const std::string& quantization_config) {
  return ParsePackedConfig(R"({"quantization_config": )" + quantization_config + "}",
                           "config.json");
}

TEST(PackedConfigTest, IsAbsentFromFloatCheckpoints) {
  const auto config = ParsePackedConfig("{}", "config.json");
  ASSERT_THAT(config, IsOk());
  EXPECT_FALSE(config->has_value());
}

TEST(PackedConfigTest, ReadsGptqOfBothZeroPointVersions) {
  const auto first = Parse(R"({"quant_method": "gptq", "bits": 8, "group_size": -1})");
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ((*first)->layout, PackedLayout::kGptq);
  EXPECT_EQ((*first)->bits, 8);
  EXPECT_EQ((*first)->group_size, -1);
  EXPECT_TRUE((*first)->zeros_minus_one);
  EXPECT_FALSE((*first)->desc_act);
  const auto second = Parse(R"({"quant_method": "gptq", "bits": 4, "group_size": 32,
      "desc_act": true, "checkpoint_format": "gptq_v2", "dynamic": {}, "sym": true})");
  ASSERT_THAT(second, IsOk());
  EXPECT_FALSE((*second)->zeros_minus_one);
  EXPECT_TRUE((*second)->desc_act);
}

TEST(PackedConfigTest, ReadsAwqWhoseVersionIsInCapitals) {
  const auto config =
      Parse(R"({"quant_method": "awq", "bits": 4, "version": "GEMM", "zero_point": true})");
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ((*config)->layout, PackedLayout::kAwq);
  EXPECT_EQ((*config)->group_size, 128);
}

struct Refused {
  std::string text, field, got;
};
class PackedConfigRefusalTest : public ::testing::TestWithParam<Refused> {};

TEST_P(PackedConfigRefusalTest, NamesTheField) {
  EXPECT_THAT(Parse(GetParam().text),
              StatusIs(StatusCode::kUnimplemented,
                       AllOf(HasSubstr("config.json: "), HasSubstr(GetParam().field),
                             HasSubstr(GetParam().got), HasSubstr("float weights"))));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, PackedConfigRefusalTest,
    ::testing::Values(
        Refused{R"({"quant_method": "bitsandbytes"})", "gptq or awq", "bitsandbytes"},
        Refused{R"({"quant_method": "gptq", "bits": 3})", "bits: expected 4 or 8", "got 3"},
        Refused{R"({"quant_method": "gptq", "bits": 2})", "bits: expected 4 or 8", "got 2"},
        Refused{R"({"quant_method": "awq", "bits": 8})", "bits: expected 4", "got 8"},
        Refused{R"({"quant_method": "awq", "bits": 4, "version": "gemv_fast"})",
                "version: expected gemm", "gemv_fast"},
        Refused{R"({"quant_method": "awq", "bits": 4, "zero_point": false})", "zero_point",
                "false"},
        Refused{R"({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"})",
                "checkpoint_format: expected gptq or gptq_v2", "marlin"},
        Refused{R"({"quant_method": "gptq", "bits": 4, "pack_dtype": "int16"})", "pack_dtype",
                "int16"},
        Refused{R"({"quant_method": "gptq", "bits": 4, "dynamic": {"-:lm_head": {}}})", "dynamic",
                "lm_head"}));

TEST(PackedConfigTest, RefusesWrongTypesAndSizes) {
  EXPECT_THAT(Parse(R"({"quant_method": "gptq", "bits": "4"})"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("bits")));
  EXPECT_THAT(Parse(R"({"quant_method": "gptq", "bits": 4, "group_size": 0})"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("group_size")));
}

}  // namespace
}  // namespace hexport::checkpoint
