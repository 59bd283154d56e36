#include "quant/fake_quant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "quant/tiny_model.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::StatusIs;
using ::testing::HasSubstr;

const std::vector<std::string> kNames = {"hidden_out", "past_key_1_out", "layers.1.mlp.gated",
                                         "layers.1.self_attn.masked_scores"};

class FakeQuantTest : public ::testing::TestWithParam<const char*> {
 protected:
  FakeQuantTest() : model_(GetParam()), layer_(model_.Layer(1)) {
    hidden_ = RandomValues(5 * model_.checkpoint->config().hidden_size, 3,
                           model_.ranges.at("layers.1.input").max / 3);
    WidenRanges();
  }
  // The ranges of this input: calibration saw others.
  void WidenRanges() {
    std::vector<std::string> names;
    for (const graph::Node& node : layer_.graph.nodes)
      names.insert(names.end(), node.outputs.begin(), node.outputs.end());
    const auto widen = [this](const std::string& name, const std::vector<float>& values) {
      Range& range = model_.ranges[name];
      for (const float value : values) {
        if (value < kMaskFloor / 2) continue;  // a masked score
        range.min = std::min(range.min, value);
        range.max = std::max(range.max, value);
      }
    };
    for (const auto& [name, values] : model_.Run(layer_, layer_.graph, hidden_, names))
      widen(name == "hidden_out" ? "norm.input" : name, values);
    widen("layers.1.input", hidden_);
  }
  std::map<std::string, std::vector<float>> Fake(const FakeQuantOptions& options,
                                                 const QuantConfig& config = {}) {
    const auto graph = BuildFakeQuant(layer_, ranges_.empty() ? model_.ranges : ranges_,
                                      *model_.store, config, options);
    EXPECT_TRUE(graph.ok()) << graph.status().ToString();
    if (!graph.ok()) return {};
    const Status checked = graph::CheckGraph(graph->graph);
    EXPECT_TRUE(checked.ok()) << checked.ToString();
    return model_.Run(layer_, graph->graph, hidden_, kNames);
  }
  std::map<std::string, std::vector<float>> Float() {
    return model_.Run(layer_, layer_.graph, hidden_, kNames);
  }

  TinyModel model_;
  decoder::DecoderGraph layer_;
  std::vector<float> hidden_;
  RangeMap ranges_;
};

TEST_P(FakeQuantTest, WithBothOffItIsTheFloatGraph) {
  auto expected = Float();
  auto got = Fake({.weights = false, .activations = false});
  for (const std::string& name : kNames) EXPECT_EQ(got[name], expected[name]) << name;
}

TEST_P(FakeQuantTest, SixteenBitActivationsAndInt8WeightsAreNear) {
  auto expected = Float();
  auto got = Fake({});
  for (const char* name : {"hidden_out", "layers.1.mlp.gated"})
    EXPECT_LT(RelativeDifference(got[name], expected[name]), 0.05) << name;
  EXPECT_NE(got["hidden_out"], expected["hidden_out"]);
}

TEST_P(FakeQuantTest, AValueIsTheDequantizedOne) {
  auto got = Fake({.weights = false});
  const Encoding encoding = MakeEncoding(model_.ranges.at("layers.1.mlp.gated"), 16, false);
  for (const float value : got["layers.1.mlp.gated"]) {
    const float steps = value / encoding.scale;
    ASSERT_NEAR(steps, std::nearbyint(steps), 0.01f);
  }
}

TEST_P(FakeQuantTest, AnActivationCanStayFloat) {
  // Far too small a range: everything saturates, unless the tensor is left alone.
  ranges_ = model_.ranges;
  ranges_["layers.1.mlp.gated"] = {-1e-7f, 1e-7f};
  const auto expected = Float();
  QuantConfig config;
  config.kv_bits = 16;
  auto bad = Fake({.weights = false}, config);
  auto good = Fake({.weights = false, .float_activations = {"layers.1.mlp.gated"}}, config);
  EXPECT_GT(RelativeDifference(bad["layers.1.mlp.gated"], expected.at("layers.1.mlp.gated")), 0.9);
  EXPECT_LT(RelativeDifference(good["layers.1.mlp.gated"], expected.at("layers.1.mlp.gated")),
            0.01);
}

TEST_P(FakeQuantTest, EightBitsAreCoarserThanSixteen) {
  QuantConfig config;
  config.kv_bits = 16;
  const std::vector<float> expected = Float().at("layers.1.mlp.gated");
  const auto error = [&](const QuantConfig& by) {
    return RelativeDifference(Fake({.weights = false}, by)["layers.1.mlp.gated"], expected);
  };
  const double wide = error(config);
  config.activation_bits = 8;
  const double narrow = error(config);
  EXPECT_LT(wide, 0.01);
  EXPECT_GT(narrow, 4 * wide);
  EXPECT_LT(narrow, 0.2);
}

TEST_P(FakeQuantTest, Float16IslandsRun) {
  QuantConfig config;
  config.float16 = {"norm", "softmax", "layers.*.masked_scores"};
  const auto expected = Float();
  const auto got = Fake({.weights = false}, config);
  EXPECT_LT(RelativeDifference(got.at("hidden_out"), expected.at("hidden_out")), 0.05);
}

TEST_P(FakeQuantTest, MissingRangeIsNamedAsInTheWholeGraph) {
  RangeMap ranges = model_.ranges;
  ranges.erase("layers.1.input");
  EXPECT_THAT(BuildFakeQuant(layer_, ranges, *model_.store, {}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("layers.1.input")));
}

INSTANTIATE_TEST_SUITE_P(Architectures, FakeQuantTest, ::testing::Values("qwen2", "qwen3", "phi3"));

TEST(FakeQuantFirstLayer, ReadsTheEmbeddingsEncoding) {
  const TinyModel model("qwen2");
  const decoder::DecoderGraph layer = model.Layer(0);
  const auto graph = BuildFakeQuant(layer, model.ranges, *model.store, {});
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  const auto table = model.store->EmbeddingEncoding("embed_tokens.weight");
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  const std::vector<float> hidden =
      RandomValues(3 * model.checkpoint->config().hidden_size, 5, 0.01f);
  const auto got = model.Run(layer, graph->graph, hidden, {"hidden_in.dq"});
  for (const float value : got.at("hidden_in.dq"))
    ASSERT_NEAR(value / table->scale, std::nearbyint(value / table->scale), 0.01f);
}

}  // namespace
}  // namespace hexport::quant
