#include "quant/channel_folds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "quant/calibrate.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::HasSubstr;

std::unique_ptr<Checkpoint> Tiny(const std::string& architecture) {
  auto opened = Checkpoint::Open(std::string(HEXPORT_TEST_DATA) + "/tiny/" + architecture);
  EXPECT_THAT(opened, IsOk());
  return opened.ok() ? *std::move(opened) : nullptr;
}

decoder::DecoderGraph GraphOf(const Checkpoint& checkpoint) {
  auto graph = decoder::BuildDecoder(checkpoint, {});
  EXPECT_THAT(graph, IsOk());
  return graph.ok() ? *std::move(graph) : decoder::DecoderGraph();
}

// Factors between 1/8 and 8; of keys equal in the two halves of a RoPE pair.
ChannelFold RandomFold(const Checkpoint& checkpoint, const std::string& producer, unsigned seed) {
  const ModelConfig& config = checkpoint.config();
  const auto consumers = ConsumersOf(GraphOf(checkpoint), config, producer);
  EXPECT_THAT(consumers, IsOk()) << producer;
  const int64_t kv = config.num_key_value_heads * config.head_dim;
  const int64_t channels = producer.ends_with("up_proj") ? config.intermediate_size
                           : producer.ends_with("_proj") ? kv
                                                         : config.hidden_size;
  ChannelFold fold{producer, *consumers, std::vector<float>(static_cast<size_t>(channels))};
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> exponent(-3.0f, 3.0f);
  for (float& factor : fold.factors) factor = std::exp2(exponent(random));
  if (producer.ends_with("k_proj")) {
    const int64_t half = config.rope.rotary_dim / 2;
    for (int64_t head = 0; head < channels; head += config.head_dim) {
      for (int64_t i = head; i < head + half; ++i)
        fold.factors[static_cast<size_t>(i + half)] = fold.factors[static_cast<size_t>(i)];
    }
  }
  return fold;
}

std::vector<std::string> ProducersOf(const ModelConfig& config, const std::string& layer) {
  std::vector<std::string> out = {
      layer + "input_layernorm",
      layer + (config.branch_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm"),
      layer + "mlp.up_proj", layer + "self_attn.v_proj"};
  if (!config.qk_norm) out.push_back(layer + "self_attn.k_proj");
  return out;
}

class FoldedModel : public ::testing::TestWithParam<const char*> {};

TEST_P(FoldedModel, ComputesTheSame) {
  const auto base = Tiny(GetParam());
  std::vector<ChannelFold> folds;
  unsigned seed = 1;
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    for (const std::string& producer : ProducersOf(base->config(), layer))
      folds.push_back(RandomFold(*base, producer, seed++));
  }
  const auto folded = FoldChannels(*base, folds);
  ASSERT_THAT(folded, IsOk());
  const std::vector<TokenIds> samples = {{3, 17, 42, 8, 60, 1, 25, 33}};
  const auto expected = FloatLogits(*base, samples, NullProgress());
  const auto got = FloatLogits(**folded, samples, NullProgress());
  ASSERT_THAT(expected, IsOk());
  ASSERT_THAT(got, IsOk());
  double largest = 0.0;
  for (const float value : (*expected)[0])
    largest = std::max(largest, std::abs(static_cast<double>(value)));
  for (size_t i = 0; i < (*expected)[0].size(); ++i)
    ASSERT_NEAR((*got)[0][i], (*expected)[0][i], 2e-5 * largest) << i;
}

TEST_P(FoldedModel, EachProducerIsDividedByItsFactors) {
  const auto base = Tiny(GetParam());
  const ChannelFold fold = RandomFold(*base, "layers.1.mlp.up_proj", 7);
  const auto folded = FoldChannels(*base, {fold});
  ASSERT_THAT(folded, IsOk());
  const decoder::DecoderGraph graph = GraphOf(*base);
  for (const decoder::LinearWeight& linear : graph.linears) {
    std::vector<float> before(static_cast<size_t>(linear.in_features * linear.out_features));
    std::vector<float> after = before;
    ASSERT_THAT(decoder::ReadLinear(*base, linear, before), IsOk());
    ASSERT_THAT(decoder::ReadLinear(**folded, linear, after), IsOk());
    const auto out = static_cast<size_t>(linear.out_features);
    for (size_t i = 0; i < before.size(); ++i) {
      float expected = before[i];
      if (linear.name == "layers.1.mlp.up_proj.weight") expected /= fold.factors[i % out];
      if (linear.name == "layers.1.mlp.down_proj.weight") expected *= fold.factors[i / out];
      ASSERT_NEAR(after[i], expected, 1e-6f * std::abs(expected)) << linear.name << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, FoldedModel,
                         ::testing::Values("llama", "mistral", "phi3", "qwen2", "qwen3",
                                           "gemma3_text", "smollm3"));

// llm-compressor#2609, smoothquant#79: a norm that is scaled for some of its readers alone changes
// the others.
TEST(FoldChannels, Q04EveryReaderMustBeAmongTheConsumers) {
  const auto base = Tiny("qwen2");
  ChannelFold fold = RandomFold(*base, "layers.0.input_layernorm", 3);
  std::erase(fold.consumers, "layers.0.self_attn.v_proj");
  EXPECT_THAT(
      FoldChannels(*base, {fold}),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("layers.0.self_attn.v_proj also reads it")));
}

TEST(FoldChannels, Q04BiasesOfReadersStay) {
  const auto base = Tiny("qwen2");
  const auto folded = FoldChannels(*base, {RandomFold(*base, "layers.0.input_layernorm", 3)});
  ASSERT_THAT(folded, IsOk());
  for (const char which : {'q', 'k', 'v'}) {
    const std::string name = std::string("model.layers.0.self_attn.") + which + "_proj.bias";
    std::vector<float> before(static_cast<size_t>(base->Find(name)->shape[0])), after = before;
    ASSERT_THAT(base->Read(name, before), IsOk());
    ASSERT_THAT((*folded)->Read(name, after), IsOk());
    EXPECT_EQ(before, after) << name;
  }
}

TEST(FoldChannels, RefusesWhatCannotBeFolded) {
  const auto base = Tiny("llama");
  ChannelFold fold = RandomFold(*base, "layers.0.self_attn.k_proj", 3);
  fold.factors[0] *= 2.0f;
  EXPECT_THAT(FoldChannels(*base, {fold}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("which RoPE turns together")));
  fold = RandomFold(*base, "layers.0.mlp.up_proj", 3);
  fold.factors[5] = 0.0f;
  EXPECT_THAT(FoldChannels(*base, {fold}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("factor 5: expected a positive")));
  fold.factors.pop_back();
  EXPECT_THAT(FoldChannels(*base, {fold}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("factors, got")));
  fold = RandomFold(*base, "layers.0.mlp.up_proj", 3);
  fold.consumers.push_back("layers.0.mlp.gate_proj");
  EXPECT_THAT(FoldChannels(*base, {fold}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("got layers.0.mlp.gate_proj")));
  fold = {"layers.0.mlp.down_proj", {}, {}};
  EXPECT_THAT(FoldChannels(*base, {fold}), StatusIs(StatusCode::kInvalidArgument,
                                                    HasSubstr("layers.0.mlp.down_proj: expected")));
  const auto normed = Tiny("qwen3");
  EXPECT_THAT(FoldChannels(*normed, {{"layers.0.self_attn.k_proj", {}, {}}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("normed head by head")));
}

TEST(FoldChannels, FileKeepsThem) {
  const auto base = Tiny("llama");
  const std::vector<ChannelFold> folds = {RandomFold(*base, "layers.0.input_layernorm", 3),
                                          RandomFold(*base, "layers.1.self_attn.v_proj", 4)};
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) /
                                     ("hexport_folds_" + std::to_string(getpid()) + ".safetensors");
  ASSERT_THAT(WriteFolds(folds, path), IsOk());
  const auto read = ReadFolds(*base, path);
  std::filesystem::remove(path);
  ASSERT_THAT(read, IsOk());
  ASSERT_EQ(read->size(), folds.size());
  for (size_t i = 0; i < folds.size(); ++i) {
    EXPECT_EQ((*read)[i].producer, folds[i].producer);
    EXPECT_EQ((*read)[i].consumers, folds[i].consumers);
    EXPECT_EQ((*read)[i].factors, folds[i].factors);
  }
}

}  // namespace
}  // namespace hexport::quant
