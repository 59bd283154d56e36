#include "diagnose/findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace hexport::diagnose {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Agreement kGood{0.9999, 0.0002};
constexpr Agreement kBad{0.5, 0.75};
constexpr Agreement kWorse{0.1, 0.99};

TensorReport Tensor(std::string name, int64_t layer, std::vector<std::string> inputs, Agreement own,
                    Agreement inherited) {
  TensorReport report;
  report.tensor = std::move(name);
  report.layer = layer;
  report.inputs = std::move(inputs);
  report.own = own;
  report.inherited = inherited;
  report.op_type = "Mul";
  return report;
}

std::vector<std::string> Names(const std::vector<Finding>& findings, Kind kind) {
  std::vector<std::string> out;
  for (const Finding& finding : findings) {
    if (finding.kind == kind) out.push_back(finding.tensor);
  }
  return out;
}

TEST(FindGuilty, TellsOwnFaultsFromInheritedOnes) {
  Measurement measurement;
  measurement.tensors = {Tensor("a", 0, {}, kGood, kGood), Tensor("b", 0, {"a"}, kBad, kBad),
                         Tensor("c", 0, {"b"}, kBad, kBad), Tensor("d", 1, {"c"}, kGood, kBad),
                         Tensor("e", 1, {"d"}, kWorse, kWorse)};
  const std::vector<Finding> findings = FindGuilty(measurement, 0.9);
  EXPECT_THAT(Names(findings, Kind::kOwn), ElementsAre("e", "b"));  // the worst first
  EXPECT_THAT(Names(findings, Kind::kInherited), ElementsAre("c", "d"));
  EXPECT_THAT(findings[2].reason, HasSubstr("inherited from b"));
}

TEST(FindGuilty, AnErrorIsInheritedThroughTensorsAboveTheThreshold) {
  Measurement measurement;
  measurement.tensors = {Tensor("a", 0, {}, kBad, kBad), Tensor("b", 0, {"a"}, kGood, kGood),
                         Tensor("c", 0, {"b"}, kWorse, kWorse)};
  const std::vector<Finding> findings = FindGuilty(measurement, 0.9);
  EXPECT_THAT(Names(findings, Kind::kOwn), ElementsAre("a"));
  EXPECT_THAT(Names(findings, Kind::kInherited), ElementsAre("c"));
}

TEST(FindGuilty, AnotherLayersTensorCountsByItsEncodingAlone) {
  Measurement measurement;
  measurement.tensors = {Tensor("a", 0, {}, kBad, kBad), Tensor("b", 1, {"a"}, kWorse, kWorse)};
  EXPECT_THAT(Names(FindGuilty(measurement, 0.9), Kind::kOwn), ElementsAre("b", "a"));
  measurement.tensors[0].encoded = kBad;
  EXPECT_THAT(Names(FindGuilty(measurement, 0.9), Kind::kOwn), ElementsAre("a"));
}

TEST(FindGuilty, ErrorsThatOnlyAddUpHaveNoSource) {
  Measurement measurement;
  measurement.tensors = {Tensor("a", 0, {}, kGood, kGood), Tensor("b", 1, {"a"}, kGood, kBad)};
  const std::vector<Finding> findings = FindGuilty(measurement, 0.9);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, Kind::kInherited);
  EXPECT_EQ(findings[0].source, "");
  EXPECT_THAT(findings[0].reason, HasSubstr("add up"));
}

// One tensor whose encoding makes the whole error.
TensorReport Encoded(quant::Encoding encoding, quant::Range seen) {
  TensorReport report = Tensor("layers.0.mlp.gated", 0, {}, kBad, kBad);
  report.encoded = kBad;
  report.encoding = encoding;
  report.seen = seen;
  report.peak = report.median_peak = 1.0;
  return report;
}

Finding Only(TensorReport report) {
  Measurement measurement;
  measurement.tensors = {std::move(report)};
  std::vector<Finding> findings = FindGuilty(measurement, 0.9);
  EXPECT_EQ(findings.size(), 1u);
  return findings.empty() ? Finding() : findings[0];
}

TEST(FindGuilty, SaysWhatIsWrongWithAnEncoding) {
  const quant::Encoding eight{1.0f / 128.0f, 128, 8};
  TensorReport clipped = Encoded(eight, {-10.0f, 10.0f});
  clipped.clipped = 0.9;
  EXPECT_EQ(Only(clipped).cause, Cause::kSaturation);
  EXPECT_EQ(Only(clipped).remedy, Remedy::kCalibrate);

  EXPECT_EQ(Only(Encoded(eight, {-0.1f, 0.1f})).cause, Cause::kWideRange);

  TensorReport outlier = Encoded(eight, {-1.0f, 1.0f});
  outlier.median_peak = 0.01;
  EXPECT_EQ(Only(outlier).cause, Cause::kOutlierChannel);
  EXPECT_EQ(Only(outlier).remedy, Remedy::kSixteenBits);

  EXPECT_EQ(Only(Encoded(eight, {-1.0f, 1.0f})).cause, Cause::kFewBits);
  EXPECT_EQ(Only(Encoded({1.0f / 32768.0f, 32768, 16}, {-1.0f, 1.0f})).remedy, Remedy::kNone);
}

TEST(FindGuilty, FloatsBeyondFloat16ComeBeforeAllElse) {
  TensorReport report = Encoded({2.0f, 32768, 16}, {-1.0f, 92580.0f});
  report.float16 = true;
  EXPECT_EQ(Only(report).cause, Cause::kFloat16Overflow);
  EXPECT_THAT(Only(report).reason, HasSubstr("92580"));
}

TEST(FindGuilty, BlamesAWeight) {
  TensorReport weight = Tensor("layers.0.mlp.up_proj.weight", 0, {}, kBad, kBad);
  EXPECT_EQ(Only(weight).cause, Cause::kWeight);
  weight.dead = {3, 4};
  EXPECT_EQ(Only(weight).cause, Cause::kDeadScale);
  EXPECT_THAT(Only(weight).reason, HasSubstr("2 output features"));
  EXPECT_THAT(RemedyInWords(Remedy::kInt8Weight, weight.tensor),
              HasSubstr("\"layers.0.mlp.up_proj\""));
}

TEST(NextRemedy, GoesFromCheapToDearAndEnds) {
  EXPECT_EQ(NextRemedy(Cause::kSaturation, Remedy::kCalibrate), Remedy::kSixteenBits);
  EXPECT_EQ(NextRemedy(Cause::kSaturation, Remedy::kSixteenBits), Remedy::kNone);
  EXPECT_EQ(NextRemedy(Cause::kWeight, Remedy::kRound), Remedy::kInt8Weight);
  EXPECT_EQ(NextRemedy(Cause::kOutlierChannel, Remedy::kSixteenBits), Remedy::kNone);
}

}  // namespace
}  // namespace hexport::diagnose
