// The float decoder graph on ONNX Runtime's CPU against logits that transformers computed in double
// (tests/generate/decoder_golden.py).
//
// Tolerance: float32 sums of up to 1536 products (SmolLM2's down_proj) through 30 layers. One
// rounding of a logit of 33 is 2e-6; errors add up over the layers to some 1e-5. A wrong epsilon,
// angle or bias shows at 1e-3 and above, so 1e-4 lies between.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "base/file.h"
#include "base/status_matchers.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"
#include "graph/onnx_io.h"
#include "ort/session.h"

namespace hexport {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using Feeds = std::map<std::string, ort::TensorView>;

constexpr double kTolerance = 1e-4;
constexpr float kMasked = -1000.0f;
const fs::path kData = HEXPORT_TEST_DATA;
const fs::path kGolden = kData / "golden";

template <typename T>
std::vector<T> ReadRaw(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.is_open()) << path;
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

void ExpectClose(const std::string& what, std::span<const float> got,
                 std::span<const float> expected) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double worst = 0;
  size_t index = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
    if (!(error <= worst)) {  // a NaN is the worst
      worst = error;
      index = i;
    }
    if (std::isnan(error)) break;
  }
  std::cout << what << ": max error " << worst << " at " << index << " of " << got.size() << "\n";
  EXPECT_LE(worst, kTolerance) << what << " at " << index << ": expected " << expected[index]
                               << ", got " << got[index];
}

// Everything a call needs besides the residual or the tokens; owns what the views show.
struct Call {
  Call(const ModelConfig& config, int64_t ar, int64_t cl, int64_t past, int64_t count) {
    const decoder::StepInputs step{config, ar, cl, past, count, cl, kMasked};
    for (const char* name :
         {"attention_mask", "sliding_attention_mask", "position_ids_cos", "position_ids_sin",
          "local_position_ids_cos", "local_position_ids_sin"}) {
      values[name] = decoder::StepInput(step, name).value();
      const auto columns = static_cast<int64_t>(values[name].size()) / ar;
      feeds[name] = {DType::kFloat32, {1, 1, ar, columns}, values[name].data()};
    }
  }
  std::map<std::string, std::vector<float>> values;
  Feeds feeds;
};

// What is fed must be what the graph reads.
void KeepInputsOf(const ort::Session& session, Feeds& feeds) {
  std::erase_if(feeds, [&](const auto& feed) {
    return std::none_of(session.inputs().begin(), session.inputs().end(),
                        [&](const ort::IoInfo& input) { return input.name == feed.first; });
  });
}

// The cache of one layer: K [H,1,D,past], V [H,1,past,D].
struct LayerCache {
  std::vector<float> key, value;
};

void AddCache(const ModelConfig& config, int64_t layer, int64_t past, const LayerCache& cache,
              Feeds& feeds) {
  static const float nothing = 0;
  const int64_t heads = config.num_key_value_heads, size = config.head_dim;
  const std::string number = std::to_string(layer);
  feeds["past_key_" + number + "_in"] = {
      DType::kFloat32, {heads, 1, size, past}, past == 0 ? &nothing : cache.key.data()};
  feeds["past_value_" + number + "_in"] = {
      DType::kFloat32, {heads, 1, past, size}, past == 0 ? &nothing : cache.value.data()};
}

class DecoderGolden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("decoder_golden_" + std::to_string(getpid()) + "_" + GetParam());
    fs::create_directories(folder_);
    auto opened = Checkpoint::Open(CheckpointPath());
    ASSERT_THAT(opened, IsOk());
    checkpoint_ = *std::move(opened);
    ids_ = ReadRaw<int32_t>(kGolden / (name_ + ".ids.bin"));
    logits_ = ReadRaw<float>(kGolden / (name_ + ".logits.bin"));
    ASSERT_EQ(logits_.size(), ids_.size() * static_cast<size_t>(checkpoint_->config().vocab_size));
  }
  void TearDown() override { fs::remove_all(folder_); }

  // tiny/NAME, golden/NAME, or golden/NAME's config.json with the weights of the tiny model of its
  // architecture.
  fs::path CheckpointPath() const {
    if (fs::exists(kData / "tiny" / name_)) return kData / "tiny" / name_;
    if (fs::exists(kGolden / name_ / "model.safetensors")) return kGolden / name_;
    fs::copy_file(kGolden / name_ / "config.json", folder_ / "config.json");
    const auto text = ReadTextFile(folder_ / "config.json");
    EXPECT_THAT(text, IsOk());
    const auto config = ParseHfConfig(*text, "", name_);
    EXPECT_THAT(config, IsOk());
    fs::copy_file(kData / "tiny" / config->architecture / "model.safetensors",
                  folder_ / "model.safetensors");
    return folder_;
  }

  std::unique_ptr<ort::Session> WriteAndOpen(const decoder::DecoderOptions& options) {
    const auto built = decoder::BuildDecoder(*checkpoint_, options);
    EXPECT_THAT(built, IsOk());
    if (!built.ok()) return nullptr;
    graph::OnnxWriteOptions write;
    write.external_data_threshold_bytes = 0;  // as large models are written
    EXPECT_THAT(graph::WriteOnnx(built->graph, folder_ / "model.onnx", write), IsOk());
    auto session = ort::Session::Create(folder_ / "model.onnx", {});
    EXPECT_THAT(session, IsOk());
    return session.ok() ? *std::move(session) : nullptr;
  }

  const std::string name_ = GetParam();
  fs::path folder_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<int32_t> ids_;
  std::vector<float> logits_;
};

TEST_P(DecoderGolden, WholeTextInOneDynamicCall) {
  const ModelConfig& config = checkpoint_->config();
  const auto session = WriteAndOpen({});
  ASSERT_NE(session, nullptr);
  const auto n = static_cast<int64_t>(ids_.size());
  Call call(config, n, n, 0, n);
  call.feeds["input_ids"] = {DType::kInt32, {1, n}, ids_.data()};
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    AddCache(config, layer, 0, {}, call.feeds);
  KeepInputsOf(*session, call.feeds);
  const auto outputs = session->Run(call.feeds, {"logits"});
  ASSERT_THAT(outputs, IsOk());
  EXPECT_EQ((*outputs)[0].shape, (Shape{1, n, config.vocab_size}));
  ExpectClose(name_, (*outputs)[0].as<float>(), logits_);
}

// Case X11 (its TQ3 is tiny/qwen3): a tied embedding's bytes stand in a float file once, and the
// result is equal.
class TiedGolden : public DecoderGolden {};

TEST_P(TiedGolden, X11EmbeddingIsWrittenOnce) {
  const ModelConfig& config = checkpoint_->config();
  decoder::DecoderOptions options;
  options.share_tied_embedding = true;
  const auto session = WriteAndOpen(options);
  ASSERT_NE(session, nullptr);
  double stored = 0, written = 0;
  for (const TensorInfo& info : checkpoint_->tensors())
    stored += static_cast<double>(NumElements(info.shape)) * sizeof(float);
  const auto built = decoder::BuildDecoder(*checkpoint_, options);
  ASSERT_THAT(built, IsOk());
  for (const graph::Initializer& initializer : built->graph.initializers)
    written += static_cast<double>(NumBytes(initializer.dtype, initializer.shape));
  EXPECT_LT(written / stored, 1.05);
  // Offsets in the file are multiples of a page: compare it with one that holds the head too.
  const auto once = fs::file_size(folder_ / "model.data");
  ASSERT_NE(WriteAndOpen({}), nullptr);
  const auto table = static_cast<uintmax_t>(config.vocab_size * config.hidden_size) * sizeof(float);
  EXPECT_GE(fs::file_size(folder_ / "model.data"), once + table);
  const auto n = static_cast<int64_t>(ids_.size());
  Call call(config, n, n, 0, n);
  call.feeds["input_ids"] = {DType::kInt32, {1, n}, ids_.data()};
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    AddCache(config, layer, 0, {}, call.feeds);
  KeepInputsOf(*session, call.feeds);
  const auto outputs = session->Run(call.feeds, {"logits"});
  ASSERT_THAT(outputs, IsOk());
  ExpectClose(name_ + " with one embedding", (*outputs)[0].as<float>(), logits_);
}

// Puts `count` new columns of K [H,1,D,ar] and V [H,1,ar,D] behind the `past` that the cache holds.
void Append(const ModelConfig& config, const ort::Tensor& key, const ort::Tensor& value,
            int64_t past, int64_t past_columns, int64_t ar, int64_t count, LayerCache& cache) {
  const std::span<const float> k = key.as<float>(), v = value.as<float>();
  const int64_t size = config.head_dim;
  for (int64_t head = 0; head < config.num_key_value_heads; ++head) {
    for (int64_t d = 0; d < size; ++d) {
      for (int64_t t = 0; t < count; ++t) {
        cache.key[static_cast<size_t>((head * size + d) * past_columns + past + t)] =
            k[static_cast<size_t>((head * size + d) * ar + t)];
        cache.value[static_cast<size_t>((head * past_columns + past + t) * size + d)] =
            v[static_cast<size_t>((head * ar + t) * size + d)];
      }
    }
  }
}

// AR 4, CL 16: chunks with a growing left-aligned cache; the last chunk is padded.
TEST_P(DecoderGolden, StaticChunksWithCache) {
  const ModelConfig& config = checkpoint_->config();
  constexpr int64_t kAr = 4, kCl = 16, kPast = kCl - kAr;
  decoder::DecoderOptions options;
  options.ar = kAr;
  options.cl = kCl;
  const auto session = WriteAndOpen(options);
  ASSERT_NE(session, nullptr);
  for (const ort::IoInfo& output : session->outputs()) {
    for (int64_t size : output.shape) EXPECT_GT(size, 0) << output.name;
  }
  const auto cache_size = static_cast<size_t>(config.num_key_value_heads * config.head_dim * kPast);
  std::vector<LayerCache> caches(static_cast<size_t>(config.num_hidden_layers),
                                 {std::vector<float>(cache_size), std::vector<float>(cache_size)});
  const auto n = static_cast<int64_t>(ids_.size());
  std::vector<float> all;
  for (int64_t past = 0; past < n; past += kAr) {
    const int64_t count = std::min(kAr, n - past);
    std::vector<int32_t> chunk(kAr, 0);
    std::copy_n(ids_.begin() + past, count, chunk.begin());
    Call call(config, kAr, kCl, past, count);
    call.feeds["input_ids"] = {DType::kInt32, {1, kAr}, chunk.data()};
    for (size_t l = 0; l < caches.size(); ++l) {
      AddCache(config, static_cast<int64_t>(l), kPast, caches[l], call.feeds);
    }
    KeepInputsOf(*session, call.feeds);
    const auto outputs = session->Run(call.feeds, {});
    ASSERT_THAT(outputs, IsOk());
    const std::span<const float> logits = (*outputs)[0].as<float>();
    all.insert(all.end(), logits.begin(), logits.begin() + count * config.vocab_size);
    if (past + kAr > kPast) continue;  // the cache is full: this was the last chunk
    for (size_t l = 0; l < caches.size(); ++l) {
      Append(config, (*outputs)[1 + 2 * l], (*outputs)[2 + 2 * l], past, kPast, kAr, count,
             caches[l]);
    }
  }
  ExpectClose(name_ + " in chunks", all, logits_);
}

INSTANTIATE_TEST_SUITE_P(Models, TiedGolden,
                         ::testing::Values("qwen2", "qwen3", "phi3", "smollm3", "gemma3_text"),
                         [](const auto& model) { return std::string(model.param); });

INSTANTIATE_TEST_SUITE_P(Models, DecoderGolden,
                         ::testing::Values("llama", "mistral", "qwen2", "qwen3", "phi3", "smollm3",
                                           "gemma3_text", "llama_bias", "llama3_rope",
                                           "linear_rope", "yarn_rope", "yarn_mscale",
                                           "dynamic_rope", "mistral_full", "phi3_long",
                                           "phi3_window", "qwen2_window", "qwen3_window",
                                           "smollm3_window"),
                         [](const auto& model) { return std::string(model.param); });

// One part of the decoder, its weights in memory only while it runs.
std::vector<float> RunPart(const Checkpoint& checkpoint, const decoder::DecoderOptions& options,
                           Feeds feeds) {
  const auto built = decoder::BuildDecoder(checkpoint, options);
  EXPECT_THAT(built, IsOk());
  if (!built.ok()) return {};
  const auto bytes = graph::SerializeOnnx(built->graph);
  EXPECT_THAT(bytes, IsOk());
  if (!bytes.ok()) return {};
  ort::SessionOptions session_options;
  session_options.prepack = false;
  const auto session = ort::Session::CreateFromBytes(*bytes, session_options);
  EXPECT_THAT(session, IsOk());
  if (!session.ok()) return {};
  KeepInputsOf(**session, feeds);
  const auto outputs = (*session)->Run(feeds, {built->graph.outputs[0].name});
  EXPECT_THAT(outputs, IsOk());
  if (!outputs.ok()) return {};
  const std::span<const float> values = (*outputs)[0].as<float>();
  return {values.begin(), values.end()};
}

TEST(DecoderGoldenSmolLm2, LayerByLayer) {
  const fs::path model = fs::path(HEXPORT_MODELS_DIR) / "SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!fs::exists(model)) GTEST_SKIP() << model << " is missing; run tools/setup.sh";
  const auto checkpoint = Checkpoint::Open(model);
  ASSERT_THAT(checkpoint, IsOk());
  const ModelConfig& config = (*checkpoint)->config();
  const std::vector<int32_t> ids = ReadRaw<int32_t>(kGolden / "smollm2.ids.bin");
  const auto n = static_cast<int64_t>(ids.size());
  decoder::DecoderOptions options;
  options.last_layer = 0;
  options.head = false;
  std::vector<float> hidden =
      RunPart(**checkpoint, options, {{"input_ids", {DType::kInt32, {1, n}, ids.data()}}});
  options.embedding = false;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    options.first_layer = layer;
    options.last_layer = layer + 1;
    Call call(config, n, n, 0, n);
    call.feeds["hidden_in"] = {DType::kFloat32, {1, n, config.hidden_size}, hidden.data()};
    AddCache(config, layer, 0, {}, call.feeds);
    hidden = RunPart(**checkpoint, options, call.feeds);
    ASSERT_EQ(hidden.size(), static_cast<size_t>(n * config.hidden_size)) << "layer " << layer;
  }
  options.first_layer = options.last_layer = config.num_hidden_layers;
  options.head = true;
  const std::vector<float> logits =
      RunPart(**checkpoint, options,
              {{"hidden_in", {DType::kFloat32, {1, n, config.hidden_size}, hidden.data()}}});
  ExpectClose("smollm2", logits, ReadRaw<float>(kGolden / "smollm2.logits.bin"));
}

}  // namespace
}  // namespace hexport
