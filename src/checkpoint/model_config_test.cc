#include "checkpoint/model_config.h"

#include <gtest/gtest.h>

#include <cmath>
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
  EXPECT_EQ(config->rope.scaling.type, RopeScaling::Type::kNone);
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
  EXPECT_EQ(parsed->rope.rope_theta, 10000.0);
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
    EXPECT_EQ(config->rope.scaling.type, RopeScaling::Type::kLlama3);
    EXPECT_EQ(config->rope.scaling.factor, 32.0);
    EXPECT_EQ(config->rope.scaling.original_max_position_embeddings, 8192);
  }
}

TEST(HfConfigTest, ReadsRopeParametersOfTransformers5) {
  json config = Llama();
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 500000.0}};
  const auto parsed = Parse(config);
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(parsed->rope.rope_theta, 500000.0);
  EXPECT_EQ(parsed->rope.scaling.type, RopeScaling::Type::kLinear);
  EXPECT_EQ(parsed->rope.scaling.factor, 2.0);
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
        Refusal{"layer_types",
                {"sliding_attention", "full_attention"},
                StatusCode::kUnimplemented,
                "sliding"},
        Refusal{"layer_types",
                {"full_attention", "chunked_attention"},
                StatusCode::kUnimplemented,
                "chunked"},
        Refusal{"rope_scaling", {{"type", "ntk"}}, StatusCode::kUnimplemented, "ntk"},
        Refusal{"rope_scaling",
                {{"type", "default"}, {"mrope_section", {1, 2}}},
                StatusCode::kUnimplemented,
                "mrope_section"},
        Refusal{"sliding_window", 4096, StatusCode::kUnimplemented, "4096"},
        Refusal{"final_logit_softcapping", 30.0, StatusCode::kUnimplemented, "30.0"},
        Refusal{"attn_logit_softcapping", 50.0, StatusCode::kUnimplemented, "50.0"},
        Refusal{"attention_multiplier", 0.5, StatusCode::kUnimplemented, "0.5"},
        Refusal{"num_local_experts", 8, StatusCode::kUnimplemented, "8"},
        Refusal{"use_bidirectional_attention", true, StatusCode::kUnimplemented, "true"},
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

// ---- RoPE (case X06: both spellings of the type; an unknown type is an error)

TEST(HfConfigTest, X06ReadsYarnInBothSpellings) {
  for (const char* spelling : {"type", "rope_type"}) {
    const json rope = {
        {spelling, "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
    const auto config =
        Parse(With("rope_scaling", rope, With("rope_theta", 1e6, With("head_dim", 128))));
    ASSERT_THAT(config, IsOk());
    EXPECT_EQ(config->rope.scaling.type, RopeScaling::Type::kYarn);
    EXPECT_TRUE(config->rope.scaling.truncate);
    EXPECT_NEAR(config->rope.scaling.attention_factor, 1.1386294, 1e-7);
    EXPECT_NEAR(InverseFrequencies(config->rope, 0)[32] / 6.0294118e-4, 1.0, 2e-8);
  }
}

TEST(HfConfigTest, X06UnknownRopeTypeIsAnError) {
  EXPECT_THAT(Parse(With("rope_scaling", {{"type", "xpos"}, {"factor", 2}})),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("xpos")));
}

TEST(HfConfigTest, YarnTakesItsFieldsAndTransformersDefaults) {
  const auto all = Parse(With("rope_scaling", {{"type", "yarn"},
                                               {"factor", 8},
                                               {"original_max_position_embeddings", 64},
                                               {"beta_fast", 16},
                                               {"beta_slow", 2},
                                               {"truncate", false},
                                               {"attention_factor", 1.5}}));
  ASSERT_THAT(all, IsOk());
  EXPECT_EQ(all->rope.scaling.beta_fast, 16);
  EXPECT_EQ(all->rope.scaling.beta_slow, 2);
  EXPECT_FALSE(all->rope.scaling.truncate);
  EXPECT_EQ(all->rope.scaling.attention_factor, 1.5);
  const auto mscale =
      Parse(With("rope_scaling",
                 {{"type", "yarn"}, {"factor", 8}, {"mscale", 0.707}, {"mscale_all_dim", 1.0}}));
  ASSERT_THAT(mscale, IsOk());
  EXPECT_NEAR(mscale->rope.scaling.attention_factor,
              (0.1 * 0.707 * std::log(8) + 1) / (0.1 * std::log(8) + 1), 1e-12);
  EXPECT_EQ(mscale->rope.scaling.original_max_position_embeddings, 256);
  // Without a factor: how much longer max_position_embeddings is.
  const auto ratio =
      Parse(With("rope_scaling", {{"type", "yarn"}, {"original_max_position_embeddings", 64}}));
  ASSERT_THAT(ratio, IsOk());
  EXPECT_EQ(ratio->rope.scaling.factor, 4.0);
}

TEST(HfConfigTest, DynamicNtkIsNoScalingWithinTheModelsLength) {
  const auto config = Parse(With("rope_scaling", {{"type", "dynamic"}, {"factor", 4.0}}));
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->rope.scaling.type, RopeScaling::Type::kNone);
}

TEST(HfConfigTest, TwoOriginalLengthsAreRefused) {
  const json rope = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  EXPECT_THAT(Parse(With("original_max_position_embeddings", 128, With("rope_scaling", rope))),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("original_max_position_embeddings")));
}

// ---- each architecture, in the spelling of transformers 4 and of 5

json OfArchitecture(const char* type, json changes) {
  json config = With("model_type", type);
  config.erase("rope_theta");
  config.erase("rms_norm_eps");
  config.update(changes);
  return config;
}

TEST(HfConfigTest, X01Qwen3HasAHeadDimOfItsOwn) {
  const json config = OfArchitecture("qwen3", {{"hidden_size", 32}, {"head_dim", 16}});
  EXPECT_EQ(Parse(config)->head_dim, 16);  // hidden_size / heads is 8
  json absent = config;
  absent.erase("head_dim");
  EXPECT_EQ(Parse(absent)->head_dim, 128);  // transformers' default
  EXPECT_EQ(Parse(With("head_dim", nullptr, config))->head_dim, 8);
}

TEST(HfConfigTest, MistralsWindowIsOnUnlessNull) {
  const auto window = [](const json& changes) {
    const auto config = Parse(OfArchitecture("mistral", changes));
    EXPECT_THAT(config, IsOk());
    return config.ok() ? std::pair(config->sliding_window, config->sliding_layers.size())
                       : std::pair<int64_t, size_t>(-1, 0);
  };
  EXPECT_EQ(window({{"sliding_window", 128}}), std::pair(int64_t{128}, size_t{2}));
  EXPECT_EQ(window(json::object()), std::pair(int64_t{4096}, size_t{2}));  // transformers' default
  EXPECT_EQ(window({{"sliding_window", nullptr}}), std::pair(int64_t{0}, size_t{0}));
  EXPECT_THAT(Parse(OfArchitecture("mistral", {{"sliding_window", 0}})),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("sliding_window")));
  EXPECT_THAT(
      Parse(OfArchitecture("mistral", {{"layer_types", {"sliding_attention", "full_attention"}}})),
      StatusIs(StatusCode::kUnimplemented, HasSubstr("layer_types")));
}

TEST(HfConfigTest, QwensWindowNeedsItsSwitch) {
  for (const char* type : {"qwen2", "qwen3"}) {
    const json on = {
        {"use_sliding_window", true}, {"sliding_window", 64}, {"max_window_layers", 1}};
    const auto windowed = Parse(OfArchitecture(type, on));
    ASSERT_THAT(windowed, IsOk());
    EXPECT_EQ(windowed->sliding_window, 64);
    EXPECT_THAT(windowed->sliding_layers, ElementsAre(false, true));
    EXPECT_TRUE(windowed->WindowIsShorterThan(65));
    EXPECT_FALSE(windowed->WindowIsShorterThan(64));
    const auto off =
        Parse(OfArchitecture(type, {{"sliding_window", 64}, {"max_window_layers", 0}}));
    ASSERT_THAT(off, IsOk());
    EXPECT_EQ(off->sliding_window, 0);
    EXPECT_TRUE(off->sliding_layers.empty());
    EXPECT_THAT(
        Parse(OfArchitecture(type, {{"layer_types", {"full_attention", "sliding_attention"}}})),
        StatusIs(StatusCode::kUnimplemented, HasSubstr("sliding_attention")));
  }
}

TEST(HfConfigTest, Phi3InBothSpellings) {
  const json factors = {{"short_factor", {1, 1.1, 1.2, 1.3, 1.4, 1.5}},
                        {"long_factor", {1, 2, 3, 4, 5, 6}}};
  json old_rope = factors, new_rope = factors;
  old_rope["type"] = "su";  // of the first Phi-3 files
  new_rope["rope_type"] = "longrope";
  new_rope["rope_theta"] = 10000.0;
  new_rope["partial_rotary_factor"] = 0.75;
  const auto four = Parse(OfArchitecture("phi3", {{"rope_scaling", old_rope},
                                                  {"rope_theta", 10000.0},
                                                  {"partial_rotary_factor", 0.75},
                                                  {"original_max_position_embeddings", 64},
                                                  {"sliding_window", 200},
                                                  {"resid_pdrop", 0.1},
                                                  {"lm_head_bias", false},
                                                  {"full_attn_mod", 1},
                                                  {"interpolate_factor", 1}}));
  const auto five = Parse(OfArchitecture("phi3", {{"rope_parameters", new_rope},
                                                  {"original_max_position_embeddings", 64},
                                                  {"sliding_window", 200}}));
  for (const auto* config : {&four, &five}) {
    ASSERT_THAT(*config, IsOk());
    EXPECT_TRUE((*config)->fused_projections);
    EXPECT_EQ((*config)->rope.rotary_dim, 12);  // of 16
    EXPECT_EQ((*config)->rms_norm_eps, 1e-5);
    EXPECT_EQ((*config)->sliding_window, 200);
    const RopeScaling& scaling = (*config)->rope.scaling;
    EXPECT_EQ(scaling.type, RopeScaling::Type::kLongrope);
    EXPECT_EQ(scaling.original_max_position_embeddings, 64);
    EXPECT_NEAR(scaling.attention_factor, std::sqrt(1 + std::log(4.0) / std::log(64.0)), 1e-12);
    EXPECT_THAT(scaling.long_factor, ElementsAre(1, 2, 3, 4, 5, 6));
  }
}

TEST(HfConfigTest, LongropeNeedsAFactorAPair) {
  const json rope = {{"type", "longrope"}, {"short_factor", {1, 1}}, {"long_factor", {1, 1}}};
  EXPECT_THAT(Parse(OfArchitecture("phi3", {{"rope_scaling", rope}})),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("expected 8 numbers, got 2")));
}

TEST(HfConfigTest, SmolLm3LeavesRopeOutOfSomeLayers) {
  const auto by_interval = Parse(OfArchitecture("smollm3", {{"num_hidden_layers", 5}}));
  ASSERT_THAT(by_interval, IsOk());
  EXPECT_THAT(by_interval->no_rope_layers, ElementsAre(false, false, false, true, false));
  EXPECT_EQ(by_interval->rope.rope_theta, 2000000.0);
  EXPECT_TRUE(by_interval->tie_word_embeddings);
  const auto listed = Parse(OfArchitecture("smollm3", {{"no_rope_layers", {0, 1}},
                                                       {"no_rope_layer_interval", 4},
                                                       {"max_window_layers", 28},
                                                       {"rope_theta", 5000000.0}}));
  ASSERT_THAT(listed, IsOk());
  EXPECT_FALSE(listed->UsesRope(0));
  EXPECT_TRUE(listed->UsesRope(1));
  const auto windowed = Parse(OfArchitecture(
      "smollm3",
      {{"no_rope_layers", {1, 0}}, {"use_sliding_window", true}, {"sliding_window", 32}}));
  ASSERT_THAT(windowed, IsOk());
  EXPECT_THAT(windowed->sliding_layers, ElementsAre(false, true));  // those without RoPE
  EXPECT_THAT(Parse(OfArchitecture("smollm3", {{"no_rope_layers", {1}}})),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("no_rope_layers")));
}

TEST(HfConfigTest, Gemma3InBothSpellings) {
  const json common = {{"num_hidden_layers", 3},
                       {"head_dim", 16},
                       {"sliding_window", 32},
                       {"query_pre_attn_scalar", 24},
                       {"cache_implementation", "hybrid"},
                       {"attn_logit_softcapping", nullptr},
                       {"final_logit_softcapping", nullptr},
                       {"hidden_activation", "gelu_pytorch_tanh"}};
  json old_file = common, new_file = common;
  old_file["rope_theta"] = 500000.0;
  old_file["rope_local_base_freq"] = 20000.0;
  old_file["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  old_file["sliding_window_pattern"] = 2;
  new_file["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  new_file["_sliding_window_pattern"] = 6;
  new_file["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 500000.0}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 20000.0}}}};
  for (const json& changes : {old_file, new_file}) {
    json file = OfArchitecture("gemma3_text", changes);
    const auto config = Parse(file);
    ASSERT_THAT(config, IsOk());
    EXPECT_EQ(config->rope.rope_theta, 500000.0);
    EXPECT_EQ(config->rope.scaling.type, RopeScaling::Type::kLinear);
    ASSERT_TRUE(config->local_rope.has_value());
    EXPECT_EQ(config->local_rope->rope_theta, 20000.0);
    EXPECT_EQ(config->local_rope->scaling.type, RopeScaling::Type::kNone);
    EXPECT_THAT(config->sliding_layers, ElementsAre(true, false, true));
    EXPECT_EQ(config->sliding_window, 32);
    EXPECT_TRUE(config->qk_norm && config->branch_norms && config->tie_word_embeddings);
    EXPECT_EQ(config->norm_offset, 1.0);
    EXPECT_EQ(config->embedding_scale, 8.0);  // sqrt(64)
    EXPECT_EQ(config->query_pre_attn_scalar, 24.0);
    EXPECT_EQ(config->hidden_act, HiddenAct::kGeluTanh);
    EXPECT_TRUE(config->unknown_fields.empty());
  }
  const auto defaults = Parse(OfArchitecture("gemma3_text", {{"num_hidden_layers", 7}}));
  ASSERT_THAT(defaults, IsOk());
  EXPECT_EQ(defaults->head_dim, 256);
  EXPECT_THAT(defaults->sliding_layers, ElementsAre(true, true, true, true, true, false, true));
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    EXPECT_THAT(Parse(OfArchitecture("gemma3_text", {{cap, 30.0}})),
                StatusIs(StatusCode::kUnimplemented, HasSubstr(cap)));
  }
}

TEST(HfConfigTest, FieldsThatChangeNothingAreTaken) {
  const auto config = Parse(With(
      "unsloth_fixed", true,
      With("attention_dropout", 0.1, With("pretraining_tp", 2, With("some_new_norm", nullptr)))));
  ASSERT_THAT(config, IsOk());
  EXPECT_THAT(config->unknown_fields, ElementsAre("unsloth_fixed"));
}

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
