#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "quant/activation_groups.h"
#include "quant/calibrate.h"
#include "quant/fake_checkpoint.h"
#include "quant/qdq.h"
#include "quant/tiny_model.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// x [tokens, 4] -> linear w -> y -> Reshape r -> Identity past_key_0_out
decoder::DecoderGraph Whole() {
  decoder::DecoderGraph whole;
  whole.linears = {{"w", "w", 4, 4, 1.0, false, 0, 0}};
  whole.graph.inputs = {{"x", DType::kFloat32, {1, 4}, {}}};
  whole.graph.nodes = {{"MatMul", "", "y", {"x", "w"}, {"y"}, {}},
                       {"Reshape", "", "r", {"y", "shape"}, {"r"}, {}},
                       {"Identity", "", "past_key_0_out", {"r"}, {"past_key_0_out"}, {}}};
  return whole;
}

class RangeRecorderTest : public ::testing::Test {
 protected:
  // One view of [n / columns, columns] a sample.
  Calibration Record(const CalibrateOptions& options,
                     const std::vector<std::vector<float>>& samples, const std::string& name = "y",
                     int64_t columns = 4, int64_t tokens = 100000) {
    RangeRecorder recorder(options, static_cast<int64_t>(samples.size()), tokens);
    for (size_t s = 0; s < samples.size(); ++s) {
      ActivationView view;
      view.sample = s;
      view.name = name;
      view.values = samples[s];
      view.columns = columns;
      EXPECT_THAT(recorder.Visit(view), IsOk());
    }
    return recorder.Finish(Whole(), ModelConfig());
  }
  static std::vector<std::vector<float>> Steady(size_t count) {
    return std::vector<std::vector<float>>(count, RandomValues(400, 3, 1.0f));
  }
};

TEST_F(RangeRecorderTest, MinMaxOverSamplesReachesWhatIsMovedAndCopied) {
  const Calibration got = Record({}, {{-1, 0, 1, 2}, {-3, 0, 0, 1}});
  for (const char* name : {"y", "r", "past_key_0_out", "past_key_0_in"}) {
    EXPECT_EQ(got.ranges.at(name).min, -3.0f) << name;
    EXPECT_EQ(got.ranges.at(name).max, 2.0f) << name;
  }
}

TEST_F(RangeRecorderTest, MovingAverageWeighsThePastWithNineTenths) {
  CalibrateOptions options;
  options.ranges = RangeMethod::kMovingAverage;
  const Calibration got = Record(options, {{-1, 0, 1, 2}, {-3, 0, 0, 12}, {-1, 0, 0, 2}});
  EXPECT_NEAR(got.ranges.at("y").min, 0.9 * (0.9 * -1 + 0.1 * -3) + 0.1 * -1, 1e-6);
  EXPECT_NEAR(got.ranges.at("y").max, 0.9 * (0.9 * 2 + 0.1 * 12) + 0.1 * 2, 1e-6);
}

TEST_F(RangeRecorderTest, ClippingMethodsCutAnOutlierOff) {
  std::vector<std::vector<float>> samples = Steady(10);
  samples[4][5] = 20.0f;
  CalibrateOptions options;
  options.activation_bits = 8;
  options.percentile = 99.0;
  options.ranges = RangeMethod::kPercentile;
  EXPECT_LT(Record(options, samples).ranges.at("y").max, 4.0f);
  options.ranges = RangeMethod::kMse;
  EXPECT_LT(Record(options, samples).ranges.at("y").max, 20.0f);
}

TEST_F(RangeRecorderTest, CacheIsChosenForItsOwnBits) {
  std::vector<std::vector<float>> samples = Steady(10);
  samples[4][5] = 8.0f;
  CalibrateOptions options;
  options.ranges = RangeMethod::kMse;
  const Calibration got = Record(options, samples);
  EXPECT_LT(got.ranges.at("past_key_0_out").max, got.ranges.at("y").max);
  EXPECT_EQ(got.ranges.at("past_key_0_out").max, got.ranges.at("past_key_0_in").max);
}

TEST_F(RangeRecorderTest, HistogramsAreKeptWhenAsked) {
  EXPECT_TRUE(Record({}, Steady(2)).histograms.empty());
  CalibrateOptions options;
  options.keep_histograms = true;
  EXPECT_EQ(Record(options, Steady(2)).histograms.at("r").count(), 800u);
}

// Case Q13: flagged before anything is quantized, with the tensor's name.
TEST_F(RangeRecorderTest, Q13AbsurdRangesAreFlagged) {
  std::vector<std::vector<float>> samples = Steady(10);
  samples[0][1] = 2.7e34f;
  EXPECT_THAT(Record({}, samples).warnings,
              ElementsAre(AllOf(HasSubstr("y: absurd range"), HasSubstr("2.7e+34"),
                                HasSubstr("beyond float16"))));
  samples[0][1] = 3e6f / 1e3f;  // large, but within float16 and 1e6 times the median
  EXPECT_THAT(Record({}, samples).warnings, Not(Contains(HasSubstr("absurd"))));
  for (auto& sample : samples) {
    for (float& value : sample) value *= 1e-4f;
  }
  samples[0][1] = 1000.0f;
  EXPECT_THAT(Record({}, samples).warnings,
              ElementsAre(AllOf(HasSubstr("absurd range"), Not(HasSubstr("beyond float16")))));
}

// Case Q02: reported, and harmless: the scale stays finite.
TEST_F(RangeRecorderTest, Q02DeadActivationChannelsAreReported) {
  std::vector<std::vector<float>> samples = Steady(10);
  for (auto& sample : samples) {
    for (size_t i = 2; i < sample.size(); i += 4) sample[i] = 0.0f;
  }
  const Calibration got = Record({}, samples, "x");
  EXPECT_THAT(got.dead_channels.at("x"), ElementsAre(2));
  EXPECT_THAT(got.warnings, ElementsAre(HasSubstr("x: 1 channels were 0 in all samples")));
  const Encoding dead = MakeEncoding({0.0f, 0.0f}, 16, false);
  EXPECT_GT(dead.scale, 0.0f);
}

TEST_F(RangeRecorderTest, TooLittleDataIsMeasured) {
  EXPECT_THAT(Record({}, Steady(10)).warnings, ElementsAre());
  EXPECT_THAT(Record({}, Steady(7)).warnings, ElementsAre(HasSubstr("7 samples")));
  EXPECT_THAT(Record({}, Steady(10), "y", 4, 4000).warnings, ElementsAre(HasSubstr("4000 tokens")));
  std::vector<std::vector<float>> moving = Steady(10);
  moving[9][0] = 10.0f;
  EXPECT_THAT(Record({}, moving).warnings,
              ElementsAre(HasSubstr("second half widened 100 % of the ranges")));
}

TEST_F(RangeRecorderTest, NanIsRefusedWithItsPlace) {
  RangeRecorder recorder({}, 1, 1);
  const std::vector<float> values = {0.0f, std::numeric_limits<float>::quiet_NaN()};
  ActivationView view;
  view.name = "y";
  view.values = values;
  view.columns = 2;
  EXPECT_THAT(recorder.Visit(view),
              StatusIs(StatusCode::kDataLoss, HasSubstr("y: expected finite activations")));
}

// Every method gives a range for every activation, and clipping ones lie within min and max.
TEST(CalibrateOptions, EveryMethodGoesThroughAModel) {
  const TinyModel model("qwen2");
  const std::vector<TokenIds> samples = {{1, 5, 9, 33, 2, 60, 7}, {1, 44, 12}};
  for (const RangeMethod method :
       {RangeMethod::kMinMax, RangeMethod::kMovingAverage, RangeMethod::kPercentile,
        RangeMethod::kMse, RangeMethod::kEntropy}) {
    CalibrateOptions options;
    options.ranges = method;
    options.percentile = 99.0;
    const Result<Calibration> got = Calibrate(*model.checkpoint, samples, NullProgress(), options);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    ASSERT_EQ(got->ranges.size(), model.ranges.size());
    for (const auto& [name, range] : got->ranges) {
      EXPECT_GE(range.min, model.ranges.at(name).min) << name;
      EXPECT_LE(range.max, model.ranges.at(name).max) << name;
    }
    EXPECT_EQ(got->ranges.at("layers.0.self_attn.masked_scores").max,
              model.ranges.at("layers.0.self_attn.masked_scores").max);
    EXPECT_TRUE(BuildQdq(model.Graph({.ar = 4, .cl = 16}), got->ranges, *model.store).ok());
  }
}

// Case Q12: a graph whose values were renamed after calibration is refused, with both names.
TEST(CheckRanges, Q12RangesMustFollowTheGraph) {
  const TinyModel model("qwen2");
  decoder::DecoderGraph graph = model.Graph({.ar = 4, .cl = 16});
  EXPECT_THAT(CheckRanges(graph, model.ranges), IsOk());
  for (graph::Node& node : graph.graph.nodes) {
    for (auto* names : {&node.inputs, &node.outputs}) {
      for (std::string& name : *names) {
        if (name == "layers.1.mlp.gated") name = "layers.1.mlp.fused";
      }
    }
  }
  for (decoder::Activation& activation : graph.activations) {
    if (activation.name == "layers.1.mlp.gated")
      activation.name = activation.value.name = "layers.1.mlp.fused";
  }
  EXPECT_THAT(CheckRanges(graph, model.ranges),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("layers.1.mlp.fused"), HasSubstr("layers.1.mlp.gated"))));
  EXPECT_THAT(BuildQdq(graph, model.ranges, *model.store),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("layers.1.mlp.fused")));
}

}  // namespace
}  // namespace hexport::quant
