#include "adapter/adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "adapter/adapter_keys.h"
#include "adapter/test_models.h"

namespace hexport::adapter {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::MakeAdapter;
using testing::StatusIs;
using testing::TinyAdapter;

class AdapterTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Adapter>> Open(const TinyAdapter& adapter) {
    testing::WriteAdapter(directory_.path(), adapter);
    return Adapter::Open(directory_.path());
  }
  testing::TestDirectory directory_;
  const testing::TinyModel model_ = testing::Tl3();
  const std::string key_ = "base_model.model.model.layers.0.self_attn.q_proj";
};

TEST_F(AdapterTest, ReadsEveryTensor) {
  const auto adapter = Open(MakeAdapter(model_, 4, 8, {"q_proj", "v_proj"}));
  ASSERT_THAT(adapter, IsOk());
  EXPECT_EQ((*adapter)->tensor_count(), 8);
  EXPECT_EQ((*adapter)->config().r, 4);
  EXPECT_EQ((*adapter)->sha256().size(), 64u);
  EXPECT_THAT((*adapter)->warnings(), IsEmpty());
}

TEST_F(AdapterTest, HashesWeightsAndConfig) {
  TinyAdapter adapter = MakeAdapter(model_, 4, 8, {"q_proj"});
  const std::string first = (*Open(adapter))->sha256();
  EXPECT_EQ((*Open(adapter))->sha256(), first);
  adapter.config["lora_alpha"] = 9;
  const std::string other_config = (*Open(adapter))->sha256();
  EXPECT_NE(other_config, first);
  adapter.config["lora_alpha"] = 8;
  adapter.tensors.begin()->second.values[0] += 1;
  EXPECT_NE((*Open(adapter))->sha256(), first);
}

TEST_F(AdapterTest, NamesWhatIsMissing) {
  EXPECT_THAT(Adapter::Open(directory_ / "nowhere"),
              StatusIs(StatusCode::kNotFound, HasSubstr("nowhere")));
  fs::create_directories(directory_ / "reward");
  testing::Spill(directory_ / "reward" / "adapter_config.json", "{}");
  EXPECT_THAT(Adapter::Open(directory_.path()),
              StatusIs(StatusCode::kNotFound,
                       AllOf(HasSubstr("adapter_config.json"), HasSubstr("reward"))));
  testing::Spill(directory_ / "adapter_config.json", R"({"peft_type": "LORA"})");
  EXPECT_THAT(Adapter::Open(directory_.path()),
              StatusIs(StatusCode::kNotFound, HasSubstr("adapter_model.safetensors")));
  testing::Spill(directory_ / "adapter_model.bin", "x");
  EXPECT_THAT(
      Adapter::Open(directory_.path()),
      StatusIs(StatusCode::kNotFound, AllOf(HasSubstr("adapter_model.bin"), HasSubstr("pickle"))));
}

// L07: the config says that biases were trained.
TEST_F(AdapterTest, L07WarnsOfLostBiases) {
  for (const char* bias : {"lora_only", "all"}) {
    TinyAdapter adapter = MakeAdapter(model_, 4, 8, {"q_proj"});
    adapter.config["bias"] = bias;
    const auto opened = Open(adapter);
    ASSERT_THAT(opened, IsOk());
    EXPECT_THAT((*opened)->warnings(),
                Contains(HasSubstr("config says biases were trained, none in file")));
    adapter.tensors[key_ + ".base_layer.bias"] = {{32}, std::vector<float>(32, 1), "F32"};
    EXPECT_THAT((*Open(adapter))->warnings(), IsEmpty());
  }
}

TEST_F(AdapterTest, WarnsOfOtherLosses) {
  TinyAdapter adapter = MakeAdapter(model_, 4, 8, {"q_proj"});
  adapter.config["modules_to_save"] = {"lm_head"};
  adapter.config["lora_bias"] = true;
  adapter.config["trainable_token_indices"] = {1, 2};
  const auto opened = Open(adapter);
  ASSERT_THAT(opened, IsOk());
  EXPECT_THAT((*opened)->warnings(), Contains(HasSubstr("lm_head")));
  EXPECT_THAT((*opened)->warnings(), Contains(HasSubstr("lora_bias")));
  EXPECT_THAT((*opened)->warnings(), Contains(HasSubstr("trainable_token_indices")));
}

// L11: [0] is a placeholder of a shard, never "no change".
TEST_F(AdapterTest, L11RefusesEmptyPlaceholders) {
  TinyAdapter adapter = MakeAdapter(model_, 4, 8, {"q_proj"});
  adapter.config["modules_to_save"] = {"lm_head"};
  adapter.tensors["base_model.model.lm_head.weight"] = {{0}, {}, "F32"};
  EXPECT_THAT(Open(adapter), StatusIs(StatusCode::kInvalidArgument,
                                      AllOf(HasSubstr("lm_head.weight"), HasSubstr("[0]"),
                                            HasSubstr("unsharded placeholders"))));
  adapter.tensors["base_model.model.lm_head.weight"] = {{0, 32}, {}, "F32"};
  EXPECT_THAT(Open(adapter), StatusIs(StatusCode::kInvalidArgument, HasSubstr("placeholders")));
  adapter = MakeAdapter(model_, 4, 8, {"q_proj"});
  adapter.tensors[key_ + ".lora_A.weight"] = {{0}, {}, "F32"};
  EXPECT_THAT(Open(adapter), StatusIs(StatusCode::kInvalidArgument, HasSubstr("placeholders")));
}

// L15: a converted adapter has rank 2r in its tensors.
TEST_F(AdapterTest, L15RefusesARankThatTheConfigDoesNotSay) {
  TinyAdapter adapter = MakeAdapter(model_, 8, 8, {"q_proj"});
  adapter.config["r"] = 4;
  EXPECT_THAT(Open(adapter),
              StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("rank 4"), HasSubstr("got 8"),
                                                           HasSubstr("converting a PiSSA"))));
  adapter.config["r"] = 3;
  EXPECT_THAT(Open(adapter), StatusIs(StatusCode::kInvalidArgument, HasSubstr("rank_pattern")));
  adapter.config["rank_pattern"] = {{"q_proj", 8}};
  EXPECT_THAT(Open(adapter), IsOk());
}

TEST_F(AdapterTest, RefusesHalfAPair) {
  TinyAdapter adapter = MakeAdapter(model_, 4, 8, {"q_proj"});
  adapter.tensors.erase(key_ + ".lora_B.weight");
  EXPECT_THAT(Open(adapter), StatusIs(StatusCode::kInvalidArgument, HasSubstr("only A")));
  adapter = MakeAdapter(model_, 4, 8, {"q_proj"});
  adapter.tensors[key_ + ".lora_B.weight"] = {{32, 3}, std::vector<float>(96), "F32"};
  EXPECT_THAT(Open(adapter), StatusIs(StatusCode::kInvalidArgument, HasSubstr("to agree")));
}

TEST_F(AdapterTest, RefusesDoraThatFileAndConfigDoNotShare) {
  TinyAdapter adapter = MakeAdapter(model_, 4, 8, {"q_proj"});
  adapter.config["use_dora"] = true;
  EXPECT_THAT(Open(adapter),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("no lora_magnitude_vector")));
  adapter.config["use_dora"] = false;
  adapter.tensors[key_ + ".lora_magnitude_vector"] = {{32}, std::vector<float>(32, 1), "F32"};
  EXPECT_THAT(Open(adapter),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("use_dora is false")));
}

TEST_F(AdapterTest, RefusesTwoAdaptersInOneFile) {
  TinyAdapter adapter = MakeAdapter(model_, 4, 8, {"q_proj"});
  TinyAdapter named = adapter;
  named.tensors.clear();
  int i = 0;
  for (const auto& [key, tensor] : adapter.tensors) {
    const size_t at = key.rfind(".weight");
    named.tensors[key.substr(0, at) + (i++ < 2 ? ".default" : ".reward") + ".weight"] = tensor;
  }
  EXPECT_THAT(Open(named), StatusIs(StatusCode::kInvalidArgument,
                                    AllOf(HasSubstr("default"), HasSubstr("reward"))));
}

TEST_F(AdapterTest, RefusesATruncatedFile) {
  testing::WriteAdapter(directory_.path(), MakeAdapter(model_, 4, 8, {"q_proj"}));
  const fs::path weights = directory_ / "adapter_model.safetensors";
  const std::string whole = testing::Slurp(weights);
  testing::Spill(weights, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(Adapter::Open(directory_.path()),
              StatusIs(StatusCode::kDataLoss, HasSubstr("truncated")));
}

struct KeyCase {
  const char* key;
  TensorRole role;
  const char* module;
  const char* parameter;
  const char* adapter_name;
};

class ParseKeyTest : public ::testing::TestWithParam<KeyCase> {};

// L13: the spellings that trainers leave behind.
TEST_P(ParseKeyTest, L13NamesInsideKeys) {
  const ParsedKey parsed = ParseKey(GetParam().key);
  EXPECT_EQ(parsed.role, GetParam().role);
  EXPECT_EQ(parsed.module, GetParam().module);
  EXPECT_EQ(parsed.parameter, GetParam().parameter);
  EXPECT_EQ(parsed.adapter_name, GetParam().adapter_name);
}

INSTANTIATE_TEST_SUITE_P(
    Spellings, ParseKeyTest,
    ::testing::Values(
        KeyCase{"base_model.model.m.q.lora_A.weight", TensorRole::kLoraA, "m.q", "", ""},
        KeyCase{"base_model.model.m.q.lora_A.default.weight", TensorRole::kLoraA, "m.q", "",
                "default"},
        KeyCase{"m.q.lora_B.lora.weight", TensorRole::kLoraB, "m.q", "", "lora"},
        KeyCase{"m.q.lora_B.bias", TensorRole::kLoraBias, "m.q", "", ""},
        KeyCase{"m.q.lora_B.default.bias", TensorRole::kLoraBias, "m.q", "", "default"},
        KeyCase{"m.q.lora_A.bias", TensorRole::kUnknown, "", "", ""},
        KeyCase{"m.q.lora_A", TensorRole::kUnknown, "", "", ""},
        KeyCase{"m.e.lora_embedding_A", TensorRole::kEmbeddingA, "m.e", "", ""},
        KeyCase{"m.e.lora_embedding_B.default", TensorRole::kEmbeddingB, "m.e", "", "default"},
        KeyCase{"m.q.lora_magnitude_vector", TensorRole::kMagnitude, "m.q", "", ""},
        KeyCase{"m.q.lora_magnitude_vector.default.weight", TensorRole::kMagnitude, "m.q", "",
                "default"},
        KeyCase{"m.q.lora_diag.default", TensorRole::kUnknown, "", "", ""},
        KeyCase{"base_model.model.lm_head.weight", TensorRole::kWhole, "lm_head", "weight", ""},
        KeyCase{"base_model.model.lm_head.modules_to_save.weight", TensorRole::kWhole, "lm_head",
                "weight", ""},
        KeyCase{"base_model.model.lm_head.modules_to_save.default.weight", TensorRole::kWhole,
                "lm_head", "weight", "default"},
        KeyCase{"m.mlp.modules_to_save.default.up.weight", TensorRole::kWhole, "m.mlp.up", "weight",
                "default"},
        KeyCase{"m.q.base_layer.bias", TensorRole::kWhole, "m.q", "bias", ""},
        KeyCase{"m.q.bias", TensorRole::kWhole, "m.q", "bias", ""},
        KeyCase{"m.e.token_adapter.trainable_tokens_delta", TensorRole::kTokenRows, "m.e", "", ""},
        KeyCase{"m.e.token_adapter.trainable_tokens_delta.default", TensorRole::kTokenRows, "m.e",
                "", "default"},
        KeyCase{"_orig_mod.base_model.model._fsdp_wrapped_module.m.q.lora_A.weight",
                TensorRole::kLoraA, "m.q", "", ""},
        KeyCase{"weight", TensorRole::kUnknown, "", "", ""},
        KeyCase{"", TensorRole::kUnknown, "", "", ""}));

}  // namespace
}  // namespace hexport::adapter
