#include "adapter/adapter_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/status_matchers.h"

namespace hexport::adapter {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;

Result<AdapterConfig> Parse(json config) {
  config["peft_type"] = "LORA";
  return ParseAdapterConfig(config.dump(), "adapter_config.json");
}

bool Targets(const json& config, const std::string& module, bool linear = true,
             bool output_head = false) {
  const auto parsed = Parse(config);
  EXPECT_THAT(parsed, IsOk());
  const Result<bool> target = IsTarget(*parsed, module, linear, output_head);
  EXPECT_THAT(target, IsOk());
  return *target;
}

// What PEFT 0.21 writes when nothing is set but r, alpha and the targets.
constexpr const char* kSavedByPeft = R"({
  "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
  "base_model_name_or_path": "Qwen/Qwen2.5-0.5B", "bias": "none", "corda_config": null,
  "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null,
  "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true, "kasa_config": null,
  "layer_replication": null, "layers_pattern": null, "layers_to_transform": null,
  "loftq_config": {}, "lora_alpha": 32, "lora_bias": false, "lora_dropout": 0.05,
  "lora_ga_config": null, "megatron_config": null, "megatron_core": "megatron.core",
  "modules_to_save": null, "monteclora_config": null, "peft_type": "LORA",
  "peft_version": "0.21.2", "qalora_group_size": 16, "r": 16, "rank_pattern": {},
  "revision": null, "target_modules": ["q_proj", "v_proj"], "target_parameters": null,
  "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_bdlora": null,
  "use_dora": false, "use_qalora": false, "use_rslora": false, "velora_config": null})";

TEST(AdapterConfigTest, ReadsWhatPeftWrites) {
  const auto config = ParseAdapterConfig(kSavedByPeft, "adapter_config.json");
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->r, 16);
  EXPECT_EQ(config->lora_alpha, 32.0);
  EXPECT_EQ(config->base_model_name_or_path, "Qwen/Qwen2.5-0.5B");
  EXPECT_EQ(config->target_modules.kind, ModuleFilter::Kind::kList);
  EXPECT_THAT(config->target_modules.names, ElementsAre("q_proj", "v_proj"));
  EXPECT_EQ(config->init, InitKind::kBaseUntouched);
  EXPECT_THAT(config->warnings, IsEmpty());
}

TEST(AdapterConfigTest, RefusesWhatChangesTheMaths) {
  for (const auto& [field, value] :
       {std::pair<const char*, json>{"layer_replication", json::array({{0, 4}, {2, 5}})},
        {"target_parameters", {"experts.gate_up_proj"}},
        {"alora_invocation_tokens", {1, 2}},
        {"use_qalora", true},
        {"arrow_config", {{"top_k", 3}}},
        {"megatron_config", {{"a", 1}}},
        {"use_bdlora", {{"nblocks", 2}}},
        {"kasa_config", {{"a", 1}}},
        {"monteclora_config", {{"num_samples", 8}}}}) {
    EXPECT_THAT(Parse({{field, value}}), StatusIs(StatusCode::kUnimplemented, HasSubstr(field)));
    EXPECT_THAT(Parse({{field, nullptr}}), IsOk()) << field;
  }
}

TEST(AdapterConfigTest, RefusesUnknownFieldsThatAreSet) {
  EXPECT_THAT(Parse({{"use_new_idea", true}}),
              StatusIs(StatusCode::kUnimplemented,
                       AllOf(HasSubstr("use_new_idea"), HasSubstr("does not know"))));
  for (const json& off :
       {json(nullptr), json(false), json(0), json(""), json::array(), json::object()}) {
    EXPECT_THAT(Parse({{"use_new_idea", off}}), IsOk()) << off;
  }
}

TEST(AdapterConfigTest, RefusesOtherMethods) {
  for (const char* method : {"LOHA", "ADALORA", "PROMPT_TUNING", "lora"}) {
    EXPECT_THAT(ParseAdapterConfig(json{{"peft_type", method}}.dump(), "here"),
                StatusIs(StatusCode::kUnimplemented, HasSubstr(method)));
  }
  EXPECT_THAT(ParseAdapterConfig("{}", "here"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("peft_type")));
  EXPECT_THAT(ParseAdapterConfig("[]", "here"), StatusIs(StatusCode::kDataLoss, HasSubstr("here")));
}

TEST(AdapterConfigTest, NamesMistypedFields) {
  for (const auto& [field, value] : {std::pair<const char*, json>{"r", "16"},
                                     {"r", 0},
                                     {"r", 1 << 20},
                                     {"lora_alpha", "a"},
                                     {"bias", "some"},
                                     {"use_dora", 1},
                                     {"target_modules", {1}},
                                     {"target_modules", "(q_proj"},
                                     {"rank_pattern", {{"q_proj", 0}}},
                                     {"rank_pattern", {{"(q_proj", 4}}},
                                     {"alpha_pattern", {{"q_proj", "4"}}},
                                     {"layers_to_transform", -1},
                                     {"trainable_token_indices", {-1}},
                                     {"init_lora_weights", 3}}) {
    EXPECT_THAT(Parse({{field, value}}), StatusIs(StatusCode::kInvalidArgument, HasSubstr(field)))
        << value;
  }
}

TEST(AdapterConfigTest, KindsOfInitialWeights) {
  for (const json& init :
       {json(true), json(false), json("gaussian"), json("orthogonal"), json("eva"), json("mica")}) {
    const auto config = Parse({{"init_lora_weights", init}});
    ASSERT_THAT(config, IsOk());
    EXPECT_EQ(config->init, InitKind::kBaseUntouched) << init;
  }
  EXPECT_EQ(Parse({{"init_lora_weights", "pissa"}})->init, InitKind::kPissa);
  EXPECT_EQ(Parse({{"init_lora_weights", "olora"}})->init, InitKind::kOlora);
  for (const char* init : {"pissa_niter_16", "corda", "loftq", "lora_ga", "tomorrow"}) {
    EXPECT_EQ(Parse({{"init_lora_weights", init}})->init, InitKind::kBaseChanged) << init;
  }
}

TEST(AdapterConfigTest, TokenIndicesAsListOrByModule) {
  EXPECT_THAT(Parse({{"trainable_token_indices", {5, 3}}})->trainable_token_indices,
              ElementsAre(::testing::Pair("embed_tokens", ElementsAre(5, 3))));
  EXPECT_THAT(Parse({{"trainable_token_indices", {{"lm_head", {7}}}}})->trainable_token_indices,
              ElementsAre(::testing::Pair("lm_head", ElementsAre(7))));
}

// L01: 16 / sqrt(16) = 4 and 16 / sqrt(64) = 2; plain 16 / 64 = 0.25.
TEST(ScaleTest, L01RankStabilized) {
  const auto config = Parse({{"r", 16}, {"lora_alpha", 16}, {"use_rslora", true}});
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(*ScaleOf(*config, "q_proj", 16), 4.0);
  EXPECT_EQ(*ScaleOf(*config, "q_proj", 64), 2.0);
  EXPECT_EQ(*ScaleOf(*Parse({{"r", 64}, {"lora_alpha", 16}}), "q_proj", 64), 0.25);
}

TEST(ScaleTest, TheFirstPatternInTheFileCounts) {
  // An object in file order; JSON libraries that sort would try "a.q_proj" first.
  const auto config = ParseAdapterConfig(
      R"({"peft_type": "LORA", "r": 8, "lora_alpha": 8,
          "rank_pattern": {"q_proj": 4, "a\\.q_proj": 2, "^m.k_proj": 3},
          "alpha_pattern": {"z.q_proj": 1, "q_proj": 32}})",
      "here");
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(*RankOf(*config, "m.a.q_proj"), 4);
  EXPECT_EQ(*RankOf(*config, "m.k_proj"), 3);
  EXPECT_EQ(*RankOf(*config, "m.v_proj"), 8);
  EXPECT_EQ(*ScaleOf(*config, "m.a.q_proj", 4), 8.0);
  EXPECT_EQ(*ScaleOf(*config, "m.z.q_proj", 4), 0.25);
}

TEST(MatchPatternTest, MatchesWholeSegmentsAtTheEnd) {
  EXPECT_EQ(*MatchPattern({"proj"}, "model.q_proj"), std::nullopt);
  EXPECT_EQ(*MatchPattern({"k_proj", "q_proj"}, "model.q_proj"), 1u);
  EXPECT_EQ(*MatchPattern({"layers\\.[01]\\..*q_proj"}, "model.layers.1.attn.q_proj"), 0u);
  EXPECT_EQ(*MatchPattern({"q_proj|k_proj"}, "model.k_proj"), 0u);
  EXPECT_THAT(MatchPattern({"("}, "a"), StatusIs(StatusCode::kInvalidArgument, HasSubstr("(")));
}

// L20: "proj" is no end at a dot; a full path names one module.
TEST(IsTargetTest, L20ListedNamesMatchAtADot) {
  const json suffix = {{"target_modules", {"q_proj"}}};
  EXPECT_TRUE(Targets(suffix, "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(Targets(suffix, "q_proj"));
  EXPECT_FALSE(Targets({{"target_modules", {"proj"}}}, "model.layers.0.self_attn.q_proj"));
  const json path = {{"target_modules", {"model.layers.1.self_attn.q_proj"}}};
  EXPECT_TRUE(Targets(path, "model.layers.1.self_attn.q_proj"));
  EXPECT_FALSE(Targets(path, "model.layers.11.self_attn.q_proj"));
  EXPECT_FALSE(Targets(path, "model.layers.0.self_attn.q_proj"));
}

// L20: every linear layer, not the head, not norms and embeddings.
TEST(IsTargetTest, L20AllLinear) {
  for (const char* spelling : {"all-linear", "ALL-LINEAR"}) {
    const json all = {{"target_modules", spelling}};
    EXPECT_TRUE(Targets(all, "model.layers.0.mlp.down_proj"));
    EXPECT_FALSE(Targets(all, "lm_head", true, true));
    EXPECT_FALSE(Targets(all, "model.layers.0.self_attn.q_norm", false));
    EXPECT_FALSE(Targets(all, "model.embed_tokens", false));
  }
}

TEST(IsTargetTest, RegexTakesTheWholePath) {
  const json regex = {{"target_modules", ".*\\.(q|v)_proj"}};
  EXPECT_TRUE(Targets(regex, "model.layers.0.self_attn.v_proj"));
  EXPECT_FALSE(Targets(regex, "model.layers.0.self_attn.v_proj2"));
  EXPECT_FALSE(Targets({{"target_modules", "q_proj"}}, "model.q_proj"));
  EXPECT_FALSE(Targets({{"target_modules", "(?!.*vision).*q_proj"}}, "vision.q_proj"));
}

TEST(IsTargetTest, Exclusions) {
  EXPECT_FALSE(Targets({{"target_modules", {"q_proj"}}, {"exclude_modules", {"0.q_proj"}}},
                       "layers.0.q_proj"));
  EXPECT_FALSE(Targets({{"target_modules", {"q_proj"}}, {"exclude_modules", ".*layers\\.0.*"}},
                       "m.layers.0.q_proj"));
  EXPECT_FALSE(
      Targets({{"target_modules", {"lm_head"}}, {"modules_to_save", {"lm_head"}}}, "lm_head"));
  EXPECT_TRUE(
      Targets({{"target_modules", {"q_proj"}}, {"modules_to_save", {"lm_head"}}}, "m.q_proj"));
}

TEST(IsTargetTest, LayersToTransform) {
  const json one = {{"target_modules", {"q_proj"}}, {"layers_to_transform", 1}};
  EXPECT_TRUE(Targets(one, "model.layers.1.self_attn.q_proj"));
  EXPECT_FALSE(Targets(one, "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(Targets(one, "model.q_proj"));
  // The first number is the layer, not the expert.
  EXPECT_TRUE(Targets(one, "model.layers.1.experts.0.q_proj"));
  EXPECT_FALSE(Targets(one, "model.layers.0.experts.1.q_proj"));
  const json named = {{"target_modules", {"q_proj"}},
                      {"layers_to_transform", {0, 2}},
                      {"layers_pattern", {"blocks", "layers"}}};
  EXPECT_TRUE(Targets(named, "model.layers.2.self_attn.q_proj"));
  EXPECT_FALSE(Targets(named, "model.layers.1.self_attn.q_proj"));
  EXPECT_FALSE(Targets(named, "model.h.2.self_attn.q_proj"));
}

}  // namespace
}  // namespace hexport::adapter
