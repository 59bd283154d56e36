#include "checkpoint/model_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/status_matchers.h"

namespace hexport {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json Llama() {
  return {{"model_type", "llama"},    {"hidden_size", 64},
          {"intermediate_size", 128}, {"num_hidden_layers", 2},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"vocab_size", 100},        {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-5},     {"rope_theta", 10000.0}};
}

json With(std::string_view field, json value, json config = Llama()) {
  config[std::string(field)] = std::move(value);
  return config;
}

Result<ModelConfig> Parse(const json& config, const std::string& generation = "") {
  return ParseHfConfig(config.dump(), generation, "config.json");
}

TEST(HfConfigTest, ReadsLlama) {
  const auto config = Parse(Llama());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->num_key_value_heads, 2);
  EXPECT_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_FALSE(config->attention_bias || config->mlp_bias || config->qk_norm);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_EQ(config->rope_scaling.type, RopeScaling::Type::kNone);
}

TEST(HfConfigTest, ArchitecturesDifferInBiasesAndNorms) {
  const auto qwen2 = Parse(With("model_type", "qwen2"));
  ASSERT_THAT(qwen2, IsOk());
  EXPECT_TRUE(qwen2->attention_bias);
  EXPECT_FALSE(qwen2->attention_output_bias);
  const auto qwen3 = Parse(With("model_type", "qwen3", With("head_dim", 32)));
  ASSERT_THAT(qwen3, IsOk());
  EXPECT_TRUE(qwen3->qk_norm);
  EXPECT_FALSE(qwen3->attention_bias);
  EXPECT_EQ(qwen3->head_dim, 32);
  const auto biased = Parse(With("attention_bias", true, With("mlp_bias", true)));
  ASSERT_THAT(biased, IsOk());
  EXPECT_TRUE(biased->attention_bias && biased->attention_output_bias && biased->mlp_bias);
}

TEST(HfConfigTest, NullAndAbsentFieldsHaveTransformersDefaults) {
  json config = With("head_dim", nullptr, With("rope_scaling", nullptr));
  config.erase("num_key_value_heads");
  config.erase("rope_theta");
  const auto parsed = Parse(config);
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(parsed->num_key_value_heads, 4);
  EXPECT_EQ(parsed->rope_theta, 10000.0);
  EXPECT_EQ(parsed->bos_token_id, -1);
}

TEST(HfConfigTest, ReadsLlama3RopeInBothSpellings) {
  for (const char* spelling : {"type", "rope_type"}) {
    const json rope = {{spelling, "llama3"},
                       {"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
    const auto config = Parse(With("rope_scaling", rope));
    ASSERT_THAT(config, IsOk());
    EXPECT_EQ(config->rope_scaling.type, RopeScaling::Type::kLlama3);
    EXPECT_EQ(config->rope_scaling.factor, 32.0);
    EXPECT_EQ(config->rope_scaling.original_max_position_embeddings, 8192);
  }
}

TEST(HfConfigTest, ReadsRopeParametersOfTransformers5) {
  json config = Llama();
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 500000.0}};
  const auto parsed = Parse(config);
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(parsed->rope_theta, 500000.0);
  EXPECT_EQ(parsed->rope_scaling.type, RopeScaling::Type::kLinear);
  EXPECT_EQ(parsed->rope_scaling.factor, 2.0);
}

TEST(HfConfigTest, MergesEndTokens) {
  const auto config =
      Parse(With("eos_token_id", 7, With("bos_token_id", 1)), R"({"eos_token_id": [8, 7, 9]})");
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->bos_token_id, 1);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(7, 8, 9));
}

struct Refusal {
  std::string field;
  json value;
  StatusCode code;
  std::string got;
};

class HfConfigRefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(HfConfigRefusalTest, NamesTheFieldAndWhatItGot) {
  const Refusal& refusal = GetParam();
  EXPECT_THAT(Parse(With(refusal.field, refusal.value)),
              StatusIs(refusal.code, AllOf(HasSubstr("config.json"), HasSubstr(refusal.field),
                                           HasSubstr(refusal.got))));
}

INSTANTIATE_TEST_SUITE_P(
    ChangedMaths, HfConfigRefusalTest,
    ::testing::Values(
        Refusal{"model_type", "gemma3", StatusCode::kUnimplemented, "gemma3"},
        Refusal{"hidden_act", "gelu", StatusCode::kUnimplemented, "gelu"},
        Refusal{"quantization_config", {{"bits", 4}}, StatusCode::kUnimplemented, "bits"},
        Refusal{"use_sliding_window", true, StatusCode::kUnimplemented, "true"},
        Refusal{"partial_rotary_factor", 0.5, StatusCode::kUnimplemented, "0.5"},
        Refusal{"layer_types", {"sliding_attention"}, StatusCode::kUnimplemented, "sliding"},
        Refusal{"rope_scaling", {{"type", "yarn"}}, StatusCode::kUnimplemented, "yarn"},
        Refusal{"rope_scaling", {{"type", "dynamic"}}, StatusCode::kUnimplemented, "dynamic"},
        Refusal{"rope_parameters", {{"full", {{"a", 1}}}}, StatusCode::kUnimplemented, "full"},
        Refusal{"rope_parameters",
                {{"partial_rotary_factor", 0.25}},
                StatusCode::kUnimplemented,
                "0.25"}));

INSTANTIATE_TEST_SUITE_P(
    AbsurdValues, HfConfigRefusalTest,
    ::testing::Values(Refusal{"hidden_size", 0, StatusCode::kInvalidArgument, "got 0"},
                      Refusal{"hidden_size", "64", StatusCode::kInvalidArgument, "\"64\""},
                      Refusal{"hidden_size", 64.5, StatusCode::kInvalidArgument, "64.5"},
                      Refusal{"hidden_size", 66, StatusCode::kInvalidArgument, "66"},
                      Refusal{"hidden_size", uint64_t{1} << 63, StatusCode::kInvalidArgument,
                              "9223"},
                      Refusal{"num_hidden_layers", 100000, StatusCode::kInvalidArgument, "100000"},
                      Refusal{"vocab_size", -1, StatusCode::kInvalidArgument, "-1"},
                      Refusal{"num_key_value_heads", 3, StatusCode::kInvalidArgument, "got 3"},
                      Refusal{"head_dim", 15, StatusCode::kInvalidArgument, "15"},
                      Refusal{"rms_norm_eps", -1.0, StatusCode::kInvalidArgument, "-1"},
                      Refusal{"rope_theta", 0, StatusCode::kInvalidArgument, "0.0"},
                      Refusal{"rope_scaling", "linear", StatusCode::kInvalidArgument, "linear"},
                      Refusal{"eos_token_id", 100, StatusCode::kInvalidArgument, "100"},
                      Refusal{"eos_token_id", {1, "x"}, StatusCode::kInvalidArgument, "x"},
                      Refusal{"model_type", nullptr, StatusCode::kInvalidArgument, "nothing"},
                      Refusal{"attention_bias", 1, StatusCode::kInvalidArgument, "1"}));

TEST(HfConfigTest, RefusesRopeScalingWithoutItsNumbers) {
  EXPECT_THAT(Parse(With("rope_scaling", {{"type", "linear"}})),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("factor")));
  EXPECT_THAT(Parse(With("rope_scaling", {{"type", "llama3"}, {"factor", 8}})),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("low_freq_factor")));
}

TEST(HfConfigTest, BrokenJsonIsDataLoss) {
  EXPECT_THAT(ParseHfConfig("{", "", "config.json"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("config.json")));
  EXPECT_THAT(ParseHfConfig("[]", "", "config.json"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("array")));
  EXPECT_THAT(Parse(Llama(), "nonsense"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("generation_config.json")));
}

TEST(HfConfigTest, NamesEveryMissingSize) {
  for (const char* field : {"hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads", "vocab_size", "max_position_embeddings"}) {
    json config = Llama();
    config.erase(field);
    EXPECT_THAT(Parse(config), StatusIs(StatusCode::kInvalidArgument, HasSubstr(field)));
  }
}

}  // namespace
}  // namespace hexport
