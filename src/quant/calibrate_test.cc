#include "quant/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "decoder/decoder.h"
#include "graph/onnx_io.h"
#include "ort/session.h"
#include "quant/activation_groups.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::StatusIs;
using ::testing::HasSubstr;

const std::vector<TokenIds>& Samples() {
  static const std::vector<TokenIds> samples = {{1, 5, 9, 33, 2, 60, 7}, {1, 44, 12}};
  return samples;
}

class TinyModelTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Checkpoint>> opened =
        Checkpoint::Open(std::filesystem::path(HEXPORT_TEST_DATA) / "tiny" / GetParam());
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    checkpoint_ = *std::move(opened);
    Result<decoder::DecoderGraph> whole = decoder::BuildDecoder(*checkpoint_, {});
    ASSERT_TRUE(whole.ok()) << whole.status().ToString();
    whole_ = *std::move(whole);
  }

  // The whole graph in one session; all its outputs by name.
  std::map<std::string, ort::Tensor> RunWhole(const graph::Graph& graph, const TokenIds& ids) {
    const Result<std::string> bytes = graph::SerializeOnnx(graph);
    EXPECT_TRUE(bytes.ok()) << bytes.status().ToString();
    const Result<std::unique_ptr<ort::Session>> session = ort::Session::CreateFromBytes(*bytes, {});
    EXPECT_TRUE(session.ok()) << session.status().ToString();
    const ModelConfig& config = checkpoint_->config();
    const int64_t tokens = static_cast<int64_t>(ids.size());
    const decoder::StepInputs step{config, tokens, tokens, 0, tokens, tokens, kMaskFloor};
    std::map<std::string, std::vector<float>> values;
    std::map<std::string, ort::TensorView> inputs;
    const float nothing = 0.0f;
    for (const graph::ValueInfo& input : graph.inputs) {
      const int64_t heads = config.num_key_value_heads, dim = config.head_dim;
      ort::TensorView view{DType::kFloat32, {heads, 1, 0, dim}, &nothing};
      if (input.name.starts_with("past_key")) view.shape = {heads, 1, dim, 0};
      if (input.name == "input_ids") view = {DType::kInt32, {1, tokens}, ids.data()};
      if (auto value = decoder::StepInput(step, input.name); value.has_value()) {
        values[input.name] = *std::move(value);
        const auto columns = static_cast<int64_t>(values[input.name].size()) / tokens;
        view = {DType::kFloat32, {1, 1, tokens, columns}, values[input.name].data()};
      }
      inputs[input.name] = view;
    }
    std::vector<std::string> names;
    for (const graph::ValueInfo& output : graph.outputs) names.push_back(output.name);
    Result<std::vector<ort::Tensor>> tensors = (*session)->Run(inputs, names);
    EXPECT_TRUE(tensors.ok()) << tensors.status().ToString();
    std::map<std::string, ort::Tensor> out;
    for (size_t i = 0; tensors.ok() && i < names.size(); ++i)
      out[names[i]] = std::move((*tensors)[i]);
    return out;
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  decoder::DecoderGraph whole_;
};

TEST_P(TinyModelTest, LayerByLayerLogitsEqualTheWholeGraphs) {
  const auto logits = FloatLogits(*checkpoint_, Samples(), NullProgress());
  ASSERT_TRUE(logits.ok()) << logits.status().ToString();
  for (size_t s = 0; s < Samples().size(); ++s) {
    std::map<std::string, ort::Tensor> whole = RunWhole(whole_.graph, Samples()[s]);
    const std::span<const float> expected = whole["logits"].as<float>();
    ASSERT_EQ((*logits)[s].size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR((*logits)[s][i], expected[i], 1e-4) << s << " " << i;
  }
}

TEST_P(TinyModelTest, EveryActivationOfTheWholeGraphHasARange) {
  const Result<Calibration> calibration = Calibrate(*checkpoint_, Samples(), NullProgress());
  ASSERT_TRUE(calibration.ok()) << calibration.status().ToString();
  EXPECT_EQ(calibration->samples, 2);
  EXPECT_EQ(calibration->tokens, 10);
  for (const graph::Node& node : whole_.graph.nodes) {
    for (const std::string& output : node.outputs)
      EXPECT_TRUE(calibration->ranges.contains(output)) << output;
  }
  for (const graph::ValueInfo& input : whole_.graph.inputs) {
    if (input.dtype != DType::kFloat32) continue;
    EXPECT_TRUE(calibration->ranges.contains(input.name)) << input.name;
  }
}

TEST_P(TinyModelTest, RangesAreTheMinAndMaxOverAllSamples) {
  const Result<Calibration> calibration = Calibrate(*checkpoint_, Samples(), NullProgress());
  ASSERT_TRUE(calibration.ok()) << calibration.status().ToString();
  std::map<std::string, Range> expected;
  for (const TokenIds& ids : Samples()) {
    for (const auto& [name, tensor] : RunWhole(whole_.graph, ids)) {
      const std::span<const float> values = tensor.as<float>();
      const auto [low, high] = std::minmax_element(values.begin(), values.end());
      Range& range = expected.try_emplace(name, Range{*low, *high}).first->second;
      range.min = std::min(range.min, *low);
      range.max = std::max(range.max, *high);
    }
  }
  ASSERT_EQ(expected.size(), whole_.graph.outputs.size());
  for (const auto& [name, range] : expected) {
    EXPECT_NEAR(calibration->ranges.at(name).min, range.min, 1e-4) << name;
    EXPECT_NEAR(calibration->ranges.at(name).max, range.max, 1e-4) << name;
  }
}

TEST_P(TinyModelTest, PastSharesTheRangeOfItsOutputAndMaskEndsAtZero) {
  const Result<Calibration> calibration = Calibrate(*checkpoint_, Samples(), NullProgress());
  ASSERT_TRUE(calibration.ok()) << calibration.status().ToString();
  const RangeMap& ranges = calibration->ranges;
  EXPECT_EQ(ranges.at("past_key_1_in").max, ranges.at("past_key_1_out").max);
  EXPECT_EQ(ranges.at("past_value_0_in").min, ranges.at("past_value_0_out").min);
  EXPECT_EQ(ranges.at("attention_mask").min, kMaskFloor);
  EXPECT_EQ(ranges.at("attention_mask").max, 0.0f);
}

// The mask's floor would make one code worth 0.015 of a logit.
TEST_P(TinyModelTest, MaskedScoresDoNotStretchTheEncoding) {
  const Result<Calibration> calibration = Calibrate(*checkpoint_, Samples(), NullProgress());
  ASSERT_TRUE(calibration.ok()) << calibration.status().ToString();
  int softmaxes = 0;
  for (const graph::Node& node : whole_.graph.nodes) {
    if (node.op_type != "Softmax") continue;
    ++softmaxes;
    const Range range = calibration->ranges.at(node.inputs[0]);
    EXPECT_GT(range.min, kMaskFloor / 4) << node.inputs[0];
    EXPECT_LE(range.min, range.max - 25.0f)
        << node.inputs[0] << ": masked scores must vanish in softmax";
  }
  EXPECT_EQ(softmaxes, checkpoint_->config().num_hidden_layers);
}

INSTANTIATE_TEST_SUITE_P(Architectures, TinyModelTest,
                         ::testing::Values("llama", "mistral", "qwen2", "qwen3", "phi3", "smollm3",
                                           "gemma3_text"));

class CalibrateErrorTest : public TinyModelTest {};

TEST_P(CalibrateErrorTest, NoSamples) {
  EXPECT_THAT(Calibrate(*checkpoint_, {}, NullProgress()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("at least one")));
}

TEST_P(CalibrateErrorTest, IdOutsideTheVocabularyIsNamed) {
  EXPECT_THAT(
      FloatLogits(*checkpoint_, {{1, 2}, {3, 64}}, NullProgress()),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("sample 1: expected ids below 64, got 64")));
}

INSTANTIATE_TEST_SUITE_P(Llama, CalibrateErrorTest, ::testing::Values("llama"));

}  // namespace
}  // namespace hexport::quant
