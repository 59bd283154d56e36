#include "checkpoint/gguf_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/status_matchers.h"
#include "checkpoint/gguf_builder.h"

namespace hexport::checkpoint {
namespace {

using ::hexport::checkpoint::testing::Bytes;
using ::hexport::checkpoint::testing::GgufBuilder;
using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GgufBuilder Model(const std::string& architecture = "llama") {
  GgufBuilder builder;
  builder.String("general.architecture", architecture)
      .Uint32(architecture + ".embedding_length", 32)
      .Uint32(architecture + ".feed_forward_length", 64)
      .Uint32(architecture + ".block_count", 1)
      .Uint32(architecture + ".attention.head_count", 4)
      .Uint32(architecture + ".context_length", 128)
      .Float32(architecture + ".attention.layer_norm_rms_epsilon", 1e-6f)
      .Tensor("token_embd.weight", {32, 10}, 0, std::string(1280, '\0'));
  return builder;
}

Result<ModelConfig> Config(const GgufBuilder& builder) {
  const std::string file = builder.Build();
  const auto contents = ParseGguf(Bytes(file), "file");
  if (!contents.ok()) return contents.status();
  return GgufModelConfig(*contents, Bytes(file), "file");
}

TEST(GgufConfigTest, FillsDefaults) {
  const auto config = Config(Model());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->num_key_value_heads, 4);
  EXPECT_EQ(config->head_dim, 8);
  EXPECT_EQ(config->vocab_size, 10);
  EXPECT_EQ(config->rope.rope_theta, 10000.0);
  EXPECT_EQ(config->rms_norm_eps, 1e-6);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->bos_token_id, -1);
  EXPECT_THAT(config->eos_token_ids, ElementsAre());
}

TEST(GgufConfigTest, ReadsOptionalKeys) {
  const auto config = Config(Model("qwen3")
                                 .Uint32("qwen3.attention.head_count_kv", 2)
                                 .Uint32("qwen3.attention.key_length", 16)
                                 .Uint32("qwen3.attention.value_length", 16)
                                 .Float32("qwen3.rope.freq_base", 1e6f)
                                 .String("qwen3.rope.scaling.type", "linear")
                                 .Float32("qwen3.rope.scaling.factor", 4)
                                 .Uint32("tokenizer.ggml.bos_token_id", 1)
                                 .Uint32("tokenizer.ggml.eos_token_id", 2)
                                 .Uint32("tokenizer.ggml.eot_token_id", 3)
                                 .Tensor("output.weight", {32, 10}, 0, std::string(1280, '\0')));
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->num_key_value_heads, 2);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->rope.rope_theta, 1e6);
  EXPECT_EQ(config->rope.scaling.type, RopeScaling::Type::kLinear);
  EXPECT_EQ(config->rope.scaling.factor, 4.0);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_TRUE(config->qk_norm);
  EXPECT_EQ(config->bos_token_id, 1);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2, 3));
}

TEST(GgufConfigTest, RefusesOtherArchitecturesByName) {
  EXPECT_THAT(Config(Model("gemma2")), StatusIs(StatusCode::kUnimplemented, HasSubstr("gemma2")));
}

TEST(GgufConfigTest, RefusesOtherMaths) {
  const auto is_unsupported = [](const char* text) {
    return StatusIs(StatusCode::kUnimplemented, HasSubstr(text));
  };
  EXPECT_THAT(Config(Model().Uint32("llama.expert_count", 8)), is_unsupported("expert_count"));
  EXPECT_THAT(Config(Model().Float32("llama.logit_scale", 0.5f)), is_unsupported("logit_scale"));
  EXPECT_THAT(Config(Model().String("llama.rope.scaling.type", "yarn")), is_unsupported("yarn"));
  EXPECT_THAT(Config(Model().Uint32("llama.rope.dimension_count", 4)), is_unsupported("got 4"));
  EXPECT_THAT(Config(Model().Uint32("llama.attention.value_length", 4)),
              is_unsupported("value_length"));
  EXPECT_THAT(Config(Model().Bool("llama.attention.causal", false)), is_unsupported("causal"));
  EXPECT_THAT(Config(Model().Value("split.count", GgufType::kUint16, uint16_t{2})),
              is_unsupported("split.count"));
  EXPECT_THAT(
      Config(Model().Numbers<uint32_t>("llama.attention.head_count_kv", GgufType::kUint32, {1, 2})),
      is_unsupported("head_count_kv"));
  EXPECT_THAT(Config(Model().Tensor("blk.0.attn_sub_norm.weight", {1}, 0, "1234")),
              is_unsupported("attn_sub_norm"));
}

TEST(GgufConfigTest, Phi3FactorsNeedEachOther) {
  const std::string factors(16, '\0');  // 4 float32
  const auto model = [] {
    return Model("phi3")
        .Uint32("phi3.rope.scaling.original_context_length", 64)
        .Float32("phi3.rope.scaling.attn_factor", 1.25f)
        .Uint32("phi3.attention.sliding_window", 100);
  };
  const auto plain = Config(model());
  ASSERT_THAT(plain, IsOk());
  EXPECT_TRUE(plain->fused_projections);
  EXPECT_EQ(plain->sliding_window, 100);
  EXPECT_EQ(plain->rope.scaling.type, RopeScaling::Type::kNone);
  EXPECT_THAT(Config(model().Tensor("rope_factors_long.weight", {4}, 0, factors)),
              StatusIs(StatusCode::kNotFound, HasSubstr("rope_factors_short.weight")));
}

TEST(GgufConfigTest, Gemma3TakesWhatTheFileLacksFromLlamaCpp) {
  const auto model = [] {
    GgufBuilder builder = Model("gemma3");
    return builder.Uint32("gemma3.attention.sliding_window", 512);
  };
  const auto config = Config(model());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->architecture, "gemma3_text");
  EXPECT_EQ(config->norm_offset, 0.0);  // the converter has added the 1
  EXPECT_EQ(config->local_rope->rope_theta, 10000.0);
  EXPECT_THAT(config->sliding_layers, ElementsAre(true));
  EXPECT_THAT(Config(Model("gemma3")), StatusIs(StatusCode::kUnimplemented, HasSubstr("window")));
}

TEST(GgufConfigTest, RefusesAWindowOfOtherArchitectures) {
  EXPECT_THAT(Config(Model().Uint32("llama.attention.sliding_window", 4096)),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("sliding_window")));
}

TEST(GgufConfigTest, RefusesAnAdapter) {
  EXPECT_THAT(Config(Model().String("general.type", "adapter")),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("adapter")));
}

TEST(GgufConfigTest, NamesWhatIsMissing) {
  GgufBuilder empty;
  EXPECT_THAT(Config(empty),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("general.architecture")));
  empty.String("general.architecture", "llama");
  EXPECT_THAT(Config(empty),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("llama.embedding_length")));
}

TEST(GgufNameTest, MapsAllKnownTensors) {
  EXPECT_EQ(HfTensorName("output.weight"), "lm_head.weight");
  EXPECT_EQ(HfTensorName("output_norm.weight"), "model.norm.weight");
  EXPECT_EQ(HfTensorName("blk.12.attn_k.bias"), "model.layers.12.self_attn.k_proj.bias");
  EXPECT_EQ(HfTensorName("blk.0.attn_q_norm.weight"), "model.layers.0.self_attn.q_norm.weight");
  EXPECT_EQ(HfTensorName("blk.3.ffn_norm.weight"),
            "model.layers.3.post_attention_layernorm.weight");
}

TEST(GgufNameTest, SomeNamesDependOnTheArchitecture) {
  EXPECT_EQ(HfTensorName("blk.0.ffn_up.weight"), "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(HfTensorName("blk.0.ffn_up.weight", "phi3"), "model.layers.0.mlp.gate_up_proj.weight");
  EXPECT_EQ(HfTensorName("blk.0.attn_qkv.weight", "phi3"),
            "model.layers.0.self_attn.qkv_proj.weight");
  EXPECT_EQ(HfTensorName("blk.0.ffn_norm.weight", "gemma3_text"),
            "model.layers.0.pre_feedforward_layernorm.weight");
  EXPECT_EQ(HfTensorName("blk.0.post_ffw_norm.weight"), std::nullopt);
}

TEST(GgufNameTest, KnowsNoOthers) {
  for (const char* name : {"", "blk.", "blk.0", "blk.0.attn_q", "blk..attn_q.weight",
                           "blk.x.attn_q.weight", "blk.-1.attn_q.weight", "blk.0.attn_q.scale",
                           "blk.99999999999.attn_q.weight", "rope_freqs.weight", "blk.0.weight"}) {
    EXPECT_FALSE(HfTensorName(name).has_value()) << name;
  }
}

std::vector<float> Llama3Factors(double factor, double theta, int half) {
  std::vector<float> factors;
  for (int i = 0; i < half; ++i) {
    const double wavelength = 2 * std::numbers::pi * std::pow(theta, static_cast<double>(i) / half);
    const double smooth = std::clamp((8192 / wavelength - 1) / 3, 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - smooth) / factor + smooth)));
  }
  return factors;
}

TEST(RopeFactorsTest, RecoversLlama3Scaling) {
  const auto scaling = RopeScalingFromFactors(Llama3Factors(32, 500000, 32), 500000, "file");
  ASSERT_THAT(scaling, IsOk());
  EXPECT_EQ(scaling->type, RopeScaling::Type::kLlama3);
  EXPECT_EQ(scaling->factor, 32.0);
  EXPECT_EQ(scaling->low_freq_factor, 1.0);
  EXPECT_EQ(scaling->high_freq_factor, 4.0);
}

TEST(RopeFactorsTest, OnesAreNoScaling) {
  const auto scaling = RopeScalingFromFactors(std::vector<float>(32, 1.0f), 10000, "file");
  ASSERT_THAT(scaling, IsOk());
  EXPECT_EQ(scaling->type, RopeScaling::Type::kNone);
}

TEST(RopeFactorsTest, RefusesOtherFactors) {
  std::vector<float> factors = Llama3Factors(8, 500000, 32);
  factors[16] *= 1.01f;
  EXPECT_THAT(RopeScalingFromFactors(factors, 500000, "file"),
              StatusIs(StatusCode::kUnimplemented, AllOf(HasSubstr("at 16"), HasSubstr("file"))));
  factors[16] = std::nanf("");
  EXPECT_THAT(RopeScalingFromFactors(factors, 500000, "file"),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("at 16")));
}

}  // namespace
}  // namespace hexport::checkpoint
