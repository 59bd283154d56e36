// Accuracy of the QDQ graph of a real model, on ONNX Runtime's CPU with every Quantize kept: what
// the NPU's result is compared with. Skipped when tools/setup.sh did not fetch the model.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"
#include "graph/onnx_io.h"
#include "ort/session.h"
#include "quant/calibrate.h"
#include "quant/qdq.h"
#include "quant/residual_rotation.h"
#include "quant/weights.h"
#include "text/tokenizer.h"

namespace hexport::quant {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kAr = 64, kCl = 128;
constexpr char kChat[] =
    "<|im_start|>user\nWhy is the sky blue in the daytime but red at sunset? Answer in two "
    "sentences.<|im_end|>\n"
    "<|im_start|>assistant\nAir scatters short blue waves far more than long red ones, so blue "
    "reaches us from "
    "everywhere. At sunset the light crosses much more air.<|im_end|>\n";

// How well `got` follows `expected`, both [rows, columns].
struct Agreement {
  double cosine = 0.0;
  double top1 = 0.0;
};

Agreement Compare(const std::vector<float>& expected, const std::vector<float>& got, size_t rows) {
  double dot = 0.0, a = 0.0, b = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    dot += static_cast<double>(expected[i]) * static_cast<double>(got[i]);
    a += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    b += static_cast<double>(got[i]) * static_cast<double>(got[i]);
  }
  const auto columns = static_cast<std::ptrdiff_t>(expected.size() / rows);
  size_t same = 0;
  for (size_t row = 0; row < rows; ++row) {
    const auto x = expected.begin() + static_cast<std::ptrdiff_t>(row) * columns;
    const auto y = got.begin() + static_cast<std::ptrdiff_t>(row) * columns;
    same += std::max_element(x, x + columns) - x == std::max_element(y, y + columns) - y ? 1 : 0;
  }
  return {dot / std::sqrt(a * b), static_cast<double>(same) / static_cast<double>(rows)};
}

class QuantSmolLm2Test : public ::testing::Test {
 protected:
  void SetUp() override {
    const fs::path model = fs::path(HEXPORT_MODELS_DIR) / "SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!fs::exists(model)) GTEST_SKIP() << model << " is not there";
    Result<std::unique_ptr<Checkpoint>> opened = Checkpoint::Open(model);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    plain_ = *std::move(opened);
    checkpoint_ = RotateResidual(*plain_, 1);
    const Result<TextAssets> text = plain_->Text();
    ASSERT_TRUE(text.ok()) << text.status().ToString();
    const Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromJson(text->tokenizer_json);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    Result<std::vector<int32_t>> ids = (*tokenizer)->Encode(kChat, /*add_special_tokens=*/false);
    ASSERT_TRUE(ids.ok()) << ids.status().ToString();
    ids_ = *std::move(ids);
    ASSERT_LE(static_cast<int64_t>(ids_.size()), kAr);
    folder_ = fs::path(::testing::TempDir()) / ("hexport_smollm2_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }

  // Codes of one call's inputs, zero past, by name.
  std::map<std::string, std::vector<uint16_t>> InputCodes(const QdqGraph& qdq) const {
    std::map<std::string, std::vector<float>> values;
    const auto count = static_cast<int64_t>(ids_.size());
    const decoder::StepInputs step{plain_->config(), kAr, kCl, 0, count, kCl, kMaskFloor};
    for (const char* name : {"attention_mask", "position_ids_cos", "position_ids_sin"})
      values[name] = decoder::StepInput(step, name).value();
    std::map<std::string, std::vector<uint16_t>> codes;
    for (const graph::ValueInfo& input : qdq.graph.inputs) {
      if (input.dtype == DType::kInt32) continue;
      std::vector<float>& real = values[input.name];
      real.resize(static_cast<size_t>(NumElements(input.shape)));
      codes[input.name].resize(real.size());
      QuantizeValues(real, qdq.io.at(input.name), codes[input.name]);
    }
    return codes;
  }

  // Logits of the text's positions, dequantized.
  std::vector<float> RunQdq(const QdqGraph& qdq) const {
    const fs::path model = folder_ / "qdq.onnx";
    const Status written = graph::WriteOnnx(qdq.graph, model, {});
    EXPECT_TRUE(written.ok()) << written.ToString();
    ort::SessionOptions options;
    options.exact_qdq = true;
    const Result<std::unique_ptr<ort::Session>> session = ort::Session::Create(model, options);
    EXPECT_TRUE(session.ok()) << session.status().ToString();
    if (!session.ok()) return {};
    std::vector<int32_t> ids = ids_;
    ids.resize(static_cast<size_t>(kAr));
    const std::map<std::string, std::vector<uint16_t>> codes = InputCodes(qdq);
    std::map<std::string, std::vector<uint8_t>> bytes;
    std::map<std::string, ort::TensorView> inputs;
    for (const graph::ValueInfo& input : qdq.graph.inputs) {
      const void* data = ids.data();
      if (input.dtype == DType::kUInt16) data = codes.at(input.name).data();
      if (input.dtype == DType::kUInt8) {
        for (const uint16_t code : codes.at(input.name))
          bytes[input.name].push_back(static_cast<uint8_t>(code));
        data = bytes[input.name].data();
      }
      inputs[input.name] = {input.dtype, input.shape, data};
    }
    const Result<std::vector<ort::Tensor>> outputs = (*session)->Run(inputs, {"logits"});
    EXPECT_TRUE(outputs.ok()) << outputs.status().ToString();
    if (!outputs.ok()) return {};
    const Encoding& encoding = qdq.io.at("logits");
    std::vector<float> logits;
    for (const uint16_t code : (*outputs)[0].as<uint16_t>()) {
      logits.push_back(static_cast<float>(code - encoding.zero_point) * encoding.scale);
    }
    logits.resize(ids_.size() * static_cast<size_t>(plain_->config().vocab_size));
    return logits;
  }

  std::unique_ptr<Checkpoint> plain_, checkpoint_;
  std::vector<int32_t> ids_;
  fs::path folder_;
};

TEST_F(QuantSmolLm2Test, Int8WeightsKeepTheLogits) {
  const Result<Calibration> calibration = Calibrate(*checkpoint_, {ids_}, NullProgress());
  ASSERT_TRUE(calibration.ok()) << calibration.status().ToString();
  // Against the unrotated model, so that the rotation is part of what is measured.
  const auto expected = FloatLogits(*plain_, {ids_}, NullProgress());
  ASSERT_TRUE(expected.ok()) << expected.status().ToString();
  EXPECT_LT(PeakRssBytes(), int64_t{1} << 30) << "calibration must hold one layer at a time";

  decoder::DecoderOptions shape;
  shape.ar = kAr;
  shape.cl = kCl;
  const Result<decoder::DecoderGraph> graph = decoder::BuildDecoder(*checkpoint_, shape);
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  const fs::path weights = folder_ / "weights.safetensors";
  const Status quantized = QuantizeWeights(*checkpoint_, *graph, {}, weights, NullProgress());
  ASSERT_TRUE(quantized.ok()) << quantized.ToString();
  const Result<std::unique_ptr<WeightStore>> store = WeightStore::Open(weights);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  const Result<QdqGraph> qdq = BuildQdq(*graph, calibration->ranges, **store);
  ASSERT_TRUE(qdq.ok()) << qdq.status().ToString();

  const std::vector<float> got = RunQdq(*qdq);
  ASSERT_EQ(got.size(), (*expected)[0].size());
  const Agreement agreement = Compare((*expected)[0], got, ids_.size());
  RecordProperty("cosine", std::to_string(agreement.cosine));
  RecordProperty("top1", std::to_string(agreement.top1));
  EXPECT_GE(agreement.cosine, 0.997);
  EXPECT_GE(agreement.top1, 0.90);
}

}  // namespace
}  // namespace hexport::quant
