#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/mapped_file.h"
#include "base/memory.h"
#include "base/status_matchers.h"
#include "base/test_directory.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/tensor_layout.h"

namespace hexport {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::Spill;
using ::hexport::testing::StatusIs;
using ::hexport::testing::TestDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kTiny = fs::path(HEXPORT_TEST_DATA) / "tiny";
const fs::path kData = fs::path(HEXPORT_TEST_DATA) / "checkpoint";
// Sum in float64 of all values but the embedding's, as gguf-py 0.19 dequantizes them.
constexpr double kSmolLM2Sum = 5285.432540596;

std::vector<float> ReadAll(const Checkpoint& checkpoint, const std::string& name) {
  const TensorInfo* info = checkpoint.Find(name);
  if (info == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(NumElements(info->shape)));
  EXPECT_THAT(checkpoint.Read(name, values), IsOk());
  return values;
}

struct Pair {
  const char* name;
  fs::path folder, file;
};

// The same weights from a Hugging Face folder and from a GGUF file made of it: equal, for llama
// only when the interleaved rows (and biases) of q and k are put back, for qwen only when they are
// left alone.
class SameModelTest : public ::testing::TestWithParam<Pair> {};

TEST_P(SameModelTest, GgufEqualsHuggingFace) {
  const auto folder = Checkpoint::Open(GetParam().folder);
  const auto file = Checkpoint::Open(GetParam().file);
  ASSERT_THAT(folder, IsOk());
  ASSERT_THAT(file, IsOk());
  ASSERT_EQ((*folder)->tensors().size(), (*file)->tensors().size());
  for (const TensorInfo& info : (*folder)->tensors()) {
    const TensorInfo* other = (*file)->Find(info.name);
    ASSERT_NE(other, nullptr) << info.name;
    EXPECT_EQ(info.shape, other->shape) << info.name;
    std::vector<float> expected = ReadAll(**folder, info.name);
    const double offset = (*folder)->config().norm_offset - (*file)->config().norm_offset;
    if (offset != 0.0 && info.name.ends_with("norm.weight")) {  // Gemma's 1 stands in GGUF's weight
      for (float& value : expected) value = static_cast<float>(value + static_cast<float>(offset));
    }
    EXPECT_EQ(expected, ReadAll(**file, info.name)) << info.name;
  }
}

void ExpectSameRope(const RopeParameters& a, const RopeParameters& b) {
  EXPECT_EQ(a.rope_theta, b.rope_theta);
  EXPECT_EQ(a.rotary_dim, b.rotary_dim);
  EXPECT_EQ(a.scaling.type, b.scaling.type);
  EXPECT_NEAR(a.scaling.attention_factor, b.scaling.attention_factor, 1e-7);
  const int64_t lengths[] = {64, 1 << 20};
  for (const int64_t length : lengths) {
    const std::vector<double> x = InverseFrequencies(a, length), y = InverseFrequencies(b, length);
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i] / y[i], 1.0, 1e-6) << i;
  }
}

TEST_P(SameModelTest, ConfigsAgree) {
  const auto folder = Checkpoint::Open(GetParam().folder);
  const auto file = Checkpoint::Open(GetParam().file);
  ASSERT_THAT(folder, IsOk());
  ASSERT_THAT(file, IsOk());
  const ModelConfig& a = (*folder)->config();
  const ModelConfig& b = (*file)->config();
  EXPECT_EQ(a.architecture, b.architecture);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.num_key_value_heads, b.num_key_value_heads);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.rms_norm_eps, b.rms_norm_eps);
  ExpectSameRope(a.rope, b.rope);
  ASSERT_EQ(a.local_rope.has_value(), b.local_rope.has_value());
  if (a.local_rope.has_value()) ExpectSameRope(*a.local_rope, *b.local_rope);
  EXPECT_EQ(a.sliding_window, b.sliding_window);
  EXPECT_EQ(a.sliding_layers, b.sliding_layers);
  EXPECT_EQ(a.no_rope_layers, b.no_rope_layers);
  EXPECT_EQ(a.fused_projections, b.fused_projections);
  EXPECT_EQ(a.branch_norms, b.branch_norms);
  EXPECT_EQ(a.embedding_scale, b.embedding_scale);
  EXPECT_EQ(a.hidden_act, b.hidden_act);
  EXPECT_EQ(a.tie_word_embeddings, b.tie_word_embeddings);
  EXPECT_EQ(a.attention_bias, b.attention_bias);
  EXPECT_EQ(a.attention_output_bias, b.attention_output_bias);
  EXPECT_EQ(a.mlp_bias, b.mlp_bias);
  EXPECT_EQ(a.qk_norm, b.qk_norm);
  EXPECT_EQ(a.eos_token_ids, b.eos_token_ids);
}

INSTANTIATE_TEST_SUITE_P(
    Models, SameModelTest,
    ::testing::Values(Pair{"llama", kTiny / "llama", kData / "llama.gguf"},
                      Pair{"llama_bias", kData / "llama_bias", kData / "llama_bias.gguf"},
                      Pair{"qwen2", kTiny / "qwen2", kData / "qwen2.gguf"},
                      Pair{"qwen3", kTiny / "qwen3", kData / "qwen3.gguf"},
                      Pair{"phi3", kTiny / "phi3", kData / "phi3.gguf"},
                      Pair{"smollm3", kTiny / "smollm3", kData / "smollm3.gguf"},
                      Pair{"gemma3", kTiny / "gemma3_text", kData / "gemma3_text.gguf"}),
    [](const auto& info) { return info.param.name; });

// Case X12: the row order of q and k is undone for llama (Mistral's files say llama too) and for
// SmolLM3, whose converter is llama's, and for no other. A wrong order gives other values above.
TEST(CheckpointTest, X12RowsArePermutedByArchitecture) {
  for (const char* architecture : {"llama", "smollm3"})
    EXPECT_TRUE(checkpoint::InterleavesQueryAndKey(architecture)) << architecture;
  for (const char* architecture : {"qwen2", "qwen3", "phi3", "gemma3_text"})
    EXPECT_FALSE(checkpoint::InterleavesQueryAndKey(architecture)) << architecture;
  // As stored, the rows of llama's k differ from Hugging Face's: [heads, pairs, 2] for [heads, 2,
  // pairs].
  const auto folder = Checkpoint::Open(kTiny / "llama");
  ASSERT_THAT(folder, IsOk());
  const std::vector<float> k = ReadAll(**folder, "model.layers.0.self_attn.k_proj.weight");
  const auto bytes = MappedFile::Open(kData / "llama.gguf");
  ASSERT_THAT(bytes, IsOk());
  const auto contents = checkpoint::ParseGguf((*bytes)->bytes(), "llama.gguf");
  ASSERT_THAT(contents, IsOk());
  for (const checkpoint::GgufTensor& tensor : contents->tensors) {
    if (tensor.name != "blk.0.attn_k.weight") continue;
    std::vector<float> stored(k.size());
    std::memcpy(stored.data(), (*bytes)->bytes().data() + tensor.offset, k.size() * sizeof(float));
    constexpr size_t kColumns = 32, kHalf = 4;  // head_dim 8
    for (size_t c = 0; c < kColumns; ++c) {
      EXPECT_EQ(stored[1 * kColumns + c], k[kHalf * kColumns + c]);
      EXPECT_EQ(stored[2 * kColumns + c], k[1 * kColumns + c]);
    }
  }
}

TEST(CheckpointTest, RowsOfInterleavedTensorsAreThoseOfRead) {
  const auto file = Checkpoint::Open(kData / "llama.gguf");
  ASSERT_THAT(file, IsOk());
  const std::string name = "model.layers.1.self_attn.k_proj.weight";
  const std::vector<float> all = ReadAll(**file, name);
  ASSERT_EQ(all.size(), 16u * 32);
  for (int64_t first = 0; first < 16; first += 3) {
    const int64_t rows = std::min<int64_t>(3, 16 - first);
    std::vector<float> some(static_cast<size_t>(rows * 32));
    ASSERT_THAT((*file)->ReadRows(name, first, some), IsOk());
    EXPECT_EQ(some,
              std::vector<float>(all.begin() + first * 32, all.begin() + (first + rows) * 32));
  }
}

TEST(CheckpointTest, ShardedBFloat16IsTheRoundedOriginal) {
  const auto sharded = Checkpoint::Open(kData / "qwen2_sharded");
  const auto original = Checkpoint::Open(kTiny / "qwen2");
  ASSERT_THAT(sharded, IsOk());
  ASSERT_THAT(original, IsOk());
  for (const TensorInfo& info : (*sharded)->tensors()) {
    EXPECT_EQ(info.stored_dtype, "BF16");
    const std::vector<float> exact = ReadAll(**original, info.name);
    std::vector<float> rounded;
    for (const float value : exact) rounded.push_back(BFloat16ToFloat(FloatToBFloat16(value)));
    EXPECT_EQ(ReadAll(**sharded, info.name), rounded) << info.name;
  }
}

TEST(CheckpointTest, MergesEndTokensOfAllFiles) {
  const auto sharded = Checkpoint::Open(kData / "qwen2_sharded");
  ASSERT_THAT(sharded, IsOk());
  // config.json, generation_config.json, and the tokenizer's <|im_end|>.
  EXPECT_THAT((*sharded)->config().eos_token_ids, ElementsAre(2, 3, 4));
}

TEST(CheckpointTest, ReadsTextAssetsOfAFolder) {
  const auto sharded = Checkpoint::Open(kData / "qwen2_sharded");
  ASSERT_THAT(sharded, IsOk());
  const auto text = (*sharded)->Text();
  ASSERT_THAT(text, IsOk());
  EXPECT_EQ(text->chat_template, "{{ messages }}");
  EXPECT_EQ(text->bos_token, "");
  EXPECT_EQ(text->eos_token, "<|im_end|>");
  EXPECT_THAT(text->tokenizer_json, HasSubstr("added_tokens"));
}

TEST(CheckpointTest, NamesEveryFileOfAFolder) {
  const auto sharded = Checkpoint::Open(kData / "qwen2_sharded");
  ASSERT_THAT(sharded, IsOk());
  std::vector<std::string> names;
  for (const fs::path& file : (*sharded)->Files()) names.push_back(file.filename());
  EXPECT_THAT(names,
              ElementsAre("config.json", "generation_config.json", "tokenizer.json",
                          "tokenizer_config.json", "model.safetensors.index.json",
                          "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"));
}

TEST(CheckpointTest, OpensASafetensorsFileBesideItsConfig) {
  const auto checkpoint = Checkpoint::Open(kTiny / "qwen3" / "model.safetensors");
  ASSERT_THAT(checkpoint, IsOk());
  EXPECT_EQ((*checkpoint)->config().name, "qwen3");
}

TEST(CheckpointTest, ReadNamesUnknownTensorsAndWrongSizes) {
  const auto checkpoint = Checkpoint::Open(kTiny / "qwen2");
  ASSERT_THAT(checkpoint, IsOk());
  std::vector<float> values(3);
  EXPECT_THAT((*checkpoint)->Read("lm_head.weight", values),
              StatusIs(StatusCode::kNotFound, HasSubstr("lm_head.weight")));
  EXPECT_THAT((*checkpoint)->Read("model.norm.weight", values),
              StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("[32]"), HasSubstr("got 3"))));
  EXPECT_THAT((*checkpoint)->ReadRows("model.norm.weight", 0, values),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("two dimensions")));
  const std::string embedding = "model.embed_tokens.weight";
  EXPECT_THAT((*checkpoint)->ReadRows(embedding, 0, values),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("whole rows")));
  values.resize(64);
  EXPECT_THAT((*checkpoint)->ReadRows(embedding, 62, values), IsOk());
  EXPECT_THAT((*checkpoint)->ReadRows(embedding, 63, values),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("row 63")));
  EXPECT_THAT((*checkpoint)->ReadRows(embedding, -1, values),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("row -1")));
}

TEST(CheckpointTest, RefusesPathsThatAreNoCheckpoint) {
  const TestDirectory folder;
  EXPECT_THAT(Checkpoint::Open(folder / "none"),
              StatusIs(StatusCode::kNotFound, HasSubstr("none")));
  EXPECT_THAT(Checkpoint::Open(folder.path()),
              StatusIs(StatusCode::kNotFound, HasSubstr("config.json")));
  Spill(folder / "model.bin", "x");
  EXPECT_THAT(Checkpoint::Open(folder / "model.bin"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("model.bin")));
  Spill(folder / "adapter_config.json", "{}");
  EXPECT_THAT(Checkpoint::Open(folder.path()), StatusIs(StatusCode::kNotFound, HasSubstr("LoRA")));
}

TEST(TensorLayoutTest, ListsLlamaInOrder) {
  ModelConfig config;
  config.architecture = "llama";
  config.hidden_size = 4;
  config.intermediate_size = 8;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 6;
  config.vocab_size = 10;
  const auto tensors = checkpoint::ExpectedTensors(config);
  ASSERT_EQ(tensors.size(), 12u);
  EXPECT_EQ(tensors.front().shape, (Shape{10, 4}));
  EXPECT_EQ(tensors[2].name, "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(tensors[2].shape, (Shape{12, 4}));
  EXPECT_EQ(tensors[3].shape, (Shape{6, 4}));
  EXPECT_EQ(tensors[5].shape, (Shape{4, 12}));
  EXPECT_EQ(tensors.back().name, "lm_head.weight");
}

// The real model: values of a few places as gguf-py dequantizes them, and memory that stays small.
TEST(CheckpointTest, StreamsSmolLM2) {
  const fs::path path = fs::path(HEXPORT_MODELS_DIR) / "SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!fs::exists(path)) GTEST_SKIP() << "models/ is empty; run tools/setup.sh";
  [[maybe_unused]] const bool reset = ResetPeakRss();
  [[maybe_unused]] const int64_t before = PeakRssBytes();
  const auto model = Checkpoint::Open(path);
  ASSERT_THAT(model, IsOk());
  EXPECT_EQ((*model)->config().num_key_value_heads, 3);
  EXPECT_EQ((*model)->config().rms_norm_eps, 1e-5);
  EXPECT_EQ((*model)->config().name, "Smollm2-135M-8k-Lc100K-Mix1-Ep2");
  double sum = 0;
  std::vector<float> row(576);
  for (int64_t i = 0; i < 49152; i += 1) {
    ASSERT_THAT((*model)->ReadRows("model.embed_tokens.weight", i, row), IsOk());
  }
  for (const TensorInfo& info : (*model)->tensors()) {
    if (info.name == "model.embed_tokens.weight") continue;
    for (const float value : ReadAll(**model, info.name)) sum += static_cast<double>(value);
  }
  EXPECT_NEAR(sum, kSmolLM2Sum, 1e-3);
#if !defined(__SANITIZE_ADDRESS__)  // its shadow memory counts too
  if (reset) {
    EXPECT_LT(PeakRssBytes() - before, int64_t{48} << 20);
  }
#endif
  const auto text = (*model)->Text();
  ASSERT_THAT(text, IsOk());
  EXPECT_EQ(text->eos_token, "<|im_end|>");
  EXPECT_FALSE(text->add_bos_token);
  const auto tokenizer = nlohmann::json::parse(text->tokenizer_json);
  EXPECT_EQ(tokenizer["model"]["vocab"].size(), 49152u);
  EXPECT_EQ(tokenizer["model"]["merges"].size(), 48900u);
}

// Llama's rows of q and k, which GGUF keeps interleaved, come in Hugging Face's order here too.
TEST(CheckpointTest, CodesOfGgufGiveTheValuesThatAreRead) {
  const fs::path path = fs::path(HEXPORT_MODELS_DIR) / "SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!fs::exists(path)) GTEST_SKIP() << "models/ is empty; run tools/setup.sh";
  const auto model = Checkpoint::Open(path);
  ASSERT_THAT(model, IsOk());
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  ASSERT_EQ((*model)->Find(name)->stored_dtype, "Q4_1");
  const std::vector<float> values = ReadAll(**model, name);
  const auto packed = (*model)->ReadPacked(name);
  ASSERT_THAT(packed, IsOk());
  ASSERT_TRUE(packed->has_value());
  const PackedWeight& weight = **packed;
  const auto features = static_cast<size_t>(weight.in_features);
  const auto columns = static_cast<size_t>(weight.out_features);
  ASSERT_EQ(features * columns, values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t k = i % features, n = i / features;
    const size_t at = static_cast<size_t>(weight.group_of[k]) * columns + n;
    const int code = weight.codes[k * columns + n] - weight.zero_points[at];
    ASSERT_EQ(static_cast<float>(code) * weight.scales[at] + weight.offsets[at], values[i]) << i;
  }
}

}  // namespace
}  // namespace hexport
