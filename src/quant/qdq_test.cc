#include "quant/qdq.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "quant/linear_fixture.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::StatusIs;
using ::testing::HasSubstr;

const graph::Node* FindNode(const graph::Graph& graph, const std::string& name) {
  for (const graph::Node& node : graph.nodes) {
    if (node.name == name) return &node;
  }
  return nullptr;
}

class QdqLinearTest : public ::testing::TestWithParam<WeightFormat> {};

TEST_P(QdqLinearTest, RunsToWithinAFewStepsOfTheDequantizedWeights) {
  const LinearFixture fixture(64, 24, {GetParam(), 32});
  ASSERT_NE(fixture.store, nullptr);
  const std::vector<float> expected = fixture.Expected();
  const Result<QdqGraph> qdq =
      BuildQdq(fixture.decoder, {{"x", {-5.0f, 5.0f}}, {"y", {-8.0f, 8.0f}}}, *fixture.store);
  ASSERT_TRUE(qdq.ok()) << qdq.status().ToString();
  ASSERT_THAT(graph::CheckGraph(qdq->graph), ::hexport::testing::IsOk());
  EXPECT_EQ(qdq->graph.inputs[0].dtype, DType::kUInt16);
  EXPECT_EQ(qdq->graph.outputs[0].dtype, DType::kUInt16);
  const Encoding& in = qdq->io.at("x");
  const Encoding& out = qdq->io.at("y");
  std::vector<uint16_t> codes(fixture.x.size());
  QuantizeValues(fixture.x, in, codes);
  const std::vector<uint16_t> y = RunGraph<uint16_t, uint16_t>(qdq->graph, DType::kUInt16, codes);
  ASSERT_EQ(y.size(), expected.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const float real = static_cast<float>(static_cast<int>(y[i]) - out.zero_point) * out.scale;
    // Half a step of the output, and half a step of each of 64 inputs times weights of 0.2.
    ASSERT_NEAR(real, expected[i], out.scale + in.scale * 64 * 0.2f) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, QdqLinearTest,
                         ::testing::Values(WeightFormat::kInt8, WeightFormat::kInt4,
                                           WeightFormat::kLpbq));

TEST(QdqTest, LpbqIsThePatternThatTheNpuFuses) {
  const LinearFixture fixture(64, 24, {WeightFormat::kLpbq, 32});
  ASSERT_NE(fixture.store, nullptr);
  const Result<QdqGraph> qdq =
      BuildQdq(fixture.decoder, {{"x", {-5.0f, 5.0f}}, {"y", {-8.0f, 8.0f}}}, *fixture.store);
  ASSERT_TRUE(qdq.ok());
  const graph::Node* codes = FindNode(qdq->graph, "w.dq");
  ASSERT_NE(codes, nullptr);
  EXPECT_EQ(std::get<int64_t>(codes->attributes.at("axis")), 0);
  EXPECT_EQ(std::get<int64_t>(codes->attributes.at("block_size")), 32);
  const graph::Node* scales = FindNode(qdq->graph, codes->inputs[1]);
  ASSERT_NE(scales, nullptr);
  EXPECT_EQ(std::get<int64_t>(scales->attributes.at("axis")), 1);
  EXPECT_EQ(qdq->graph.FindInitializer(scales->inputs[0])->dtype, DType::kUInt8);
  EXPECT_EQ(qdq->graph.FindInitializer(codes->inputs[0])->dtype, DType::kInt4);
}

// x -> Reshape -> Transpose -> Identity (cache) -> Concat with past -> Softmax.
decoder::DecoderGraph CacheGraph() {
  decoder::DecoderGraph decoder;
  graph::Graph& graph = decoder.graph;
  graph.name = "cache";
  graph.inputs = {{"x", DType::kFloat32, {4, 2}, {}},
                  {"past_key_0_in", DType::kFloat32, {2, 4}, {}}};
  graph.outputs = {{"past_key_0_out", DType::kFloat32, {2, 4}, {}},
                   {"p", DType::kFloat32, {4, 4}, {}}};
  graph.nodes = {
      {"Reshape", "", "r", {"x", "shape"}, {"r"}, {}},
      {"Transpose", "", "t", {"r"}, {"t"}, {{"perm", std::vector<int64_t>{1, 0}}}},
      {"Identity", "", "past_key_0_out", {"t"}, {"past_key_0_out"}, {}},
      {"Concat", "", "c", {"past_key_0_in", "past_key_0_out"}, {"c"}, {{"axis", int64_t{0}}}},
      {"Softmax", "", "p", {"c"}, {"p"}, {{"axis", int64_t{-1}}}}};
  graph.initializers = {graph::MakeConstant<int64_t>("shape", DType::kInt64, {2}, {4, 2})};
  return decoder;
}

RangeMap CacheRanges() {
  return {{"x", {-1.0f, 2.0f}},
          {"r", {-1.0f, 2.0f}},
          {"t", {-1.0f, 3.0f}},
          {"c", {-1.0f, 2.0f}},
          {"past_key_0_in", {-1.0f, 2.0f}},
          {"past_key_0_out", {-1.0f, 2.0f}}};
}

TEST(QdqTest, DataMovingOpsShareOneEncodingOfTheirJointRange) {
  const LinearFixture fixture(32, 8, {});
  const decoder::DecoderGraph decoder = CacheGraph();
  const Result<QdqGraph> qdq = BuildQdq(decoder, CacheRanges(), *fixture.store);
  ASSERT_TRUE(qdq.ok()) << qdq.status().ToString();
  ASSERT_THAT(graph::CheckGraph(qdq->graph), ::hexport::testing::IsOk());
  const Encoding expected = MakeEncoding({-1.0f, 3.0f}, 16, false);
  for (const char* name : {"x", "r", "t"}) {
    EXPECT_EQ(qdq->activations.at(name).scale, expected.scale) << name;
    EXPECT_EQ(qdq->activations.at(name).zero_point, expected.zero_point) << name;
  }
}

TEST(QdqTest, CachesAreSymmetric8BitWithOneEncodingInAndOut) {
  const LinearFixture fixture(32, 8, {});
  const decoder::DecoderGraph decoder = CacheGraph();
  const Result<QdqGraph> qdq = BuildQdq(decoder, CacheRanges(), *fixture.store);
  ASSERT_TRUE(qdq.ok()) << qdq.status().ToString();
  for (const char* name : {"past_key_0_in", "past_key_0_out", "c"}) {
    EXPECT_EQ(qdq->activations.at(name).bits, 8) << name;
    EXPECT_EQ(qdq->activations.at(name).zero_point, 128) << name;
    EXPECT_FLOAT_EQ(qdq->activations.at(name).scale, 2.0f / 127.0f) << name;
  }
  EXPECT_EQ(qdq->graph.FindInput("past_key_0_in")->dtype, DType::kUInt8);
  EXPECT_EQ(qdq->graph.FindOutput("past_key_0_out")->dtype, DType::kUInt8);
  EXPECT_EQ(FindNode(qdq->graph, "past_key_0_out"), nullptr) << "the Identity itself must be gone";
}

TEST(QdqTest, SoftmaxIsFixedToZeroToOneWithoutARange) {
  const LinearFixture fixture(32, 8, {});
  const decoder::DecoderGraph decoder = CacheGraph();
  const Result<QdqGraph> qdq = BuildQdq(decoder, CacheRanges(), *fixture.store);
  ASSERT_TRUE(qdq.ok()) << qdq.status().ToString();
  EXPECT_EQ(qdq->io.at("p").zero_point, 0);
  EXPECT_FLOAT_EQ(qdq->io.at("p").scale, 1.0f / 65535.0f);
}

TEST(QdqTest, ActivationWithoutRangeIsNamed) {
  const LinearFixture fixture(32, 8, {});
  RangeMap ranges = CacheRanges();
  ranges.erase("t");
  EXPECT_THAT(BuildQdq(CacheGraph(), ranges, *fixture.store),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("t: expected a calibrated range")));
}

TEST(QdqTest, WeightThatTheStoreLacksIsNamed) {
  LinearFixture fixture(32, 8, {});
  ASSERT_NE(fixture.store, nullptr);
  fixture.decoder.linears[0].name = "other";
  fixture.decoder.graph.nodes[0].inputs[1] = "other";
  fixture.decoder.graph.initializers[0].name = "other";
  EXPECT_THAT(
      BuildQdq(fixture.decoder, {{"x", {-1.0f, 1.0f}}, {"y", {-1.0f, 1.0f}}}, *fixture.store),
      StatusIs(StatusCode::kNotFound, HasSubstr("other")));
}

}  // namespace
}  // namespace hexport::quant
