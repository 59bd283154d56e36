#include "graph/graph.h"

#include <gtest/gtest.h>

#include "base/status_matchers.h"

namespace hexport::graph {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// y = x + one
Graph AddOne() {
  Graph graph;
  graph.name = "add_one";
  graph.inputs = {{"x", DType::kFloat32, {2}, {}}};
  graph.outputs = {{"y", DType::kFloat32, {2}, {}}};
  graph.initializers = {MakeConstant<float>("one", DType::kFloat32, {2}, {1.0f, 1.0f})};
  graph.nodes = {{"Add", "", "y", {"x", "one"}, {"y"}, {}}};
  return graph;
}

TEST(CheckGraphTest, AcceptsAWholeGraph) { EXPECT_THAT(CheckGraph(AddOne()), IsOk()); }

TEST(CheckGraphTest, AcceptsAnAbsentOptionalInput) {
  Graph graph = AddOne();
  graph.nodes[0].inputs.push_back("");
  EXPECT_THAT(CheckGraph(graph), IsOk());
}

TEST(CheckGraphTest, NamesTheNodeOfADanglingInput) {
  Graph graph = AddOne();
  graph.nodes[0].inputs[1] = "two";
  EXPECT_THAT(CheckGraph(graph),
              StatusIs(StatusCode::kInternal, AllOf(HasSubstr("\"y\""), HasSubstr("\"two\""))));
}

TEST(CheckGraphTest, RefusesAnInputMadeLater) {
  Graph graph = AddOne();
  graph.nodes.insert(graph.nodes.begin(), {"Neg", "", "z", {"y"}, {"z"}, {}});
  EXPECT_THAT(CheckGraph(graph),
              StatusIs(StatusCode::kInternal, AllOf(HasSubstr("\"z\""), HasSubstr("\"y\""))));
}

TEST(CheckGraphTest, RefusesTwoValuesOfOneName) {
  Graph graph = AddOne();
  graph.nodes.push_back({"Neg", "", "again", {"y"}, {"x"}, {}});
  EXPECT_THAT(CheckGraph(graph), StatusIs(StatusCode::kInternal, HasSubstr("\"x\" a second time")));
}

TEST(CheckGraphTest, RefusesTwoNodesOfOneName) {
  Graph graph = AddOne();
  graph.nodes.push_back({"Neg", "", "y", {"y"}, {"z"}, {}});
  EXPECT_THAT(CheckGraph(graph), StatusIs(StatusCode::kInternal, HasSubstr("\"y\" a second time")));
}

TEST(CheckGraphTest, RefusesAnOutputThatNothingMakes) {
  Graph graph = AddOne();
  graph.outputs[0].name = "logits";
  EXPECT_THAT(CheckGraph(graph), StatusIs(StatusCode::kInternal, HasSubstr("output \"logits\"")));
}

TEST(CheckGraphTest, RefusesADynamicInitializer) {
  Graph graph = AddOne();
  graph.initializers[0].shape = {kDynamicDim};
  EXPECT_THAT(CheckGraph(graph), StatusIs(StatusCode::kInternal, HasSubstr("\"one\"")));
}

TEST(GraphTest, FindsByName) {
  const Graph graph = AddOne();
  EXPECT_EQ(graph.FindInitializer("one"), &graph.initializers[0]);
  EXPECT_EQ(graph.FindInput("x"), &graph.inputs[0]);
  EXPECT_EQ(graph.FindOutput("y"), &graph.outputs[0]);
  EXPECT_EQ(graph.FindInput("y"), nullptr);
}

TEST(MakeConstantTest, GivesItsBytesAndChecksTheSize) {
  const Initializer constant = MakeConstant<int64_t>("shape", DType::kInt64, {2}, {3, -1});
  int64_t values[2] = {};
  EXPECT_THAT(constant.source(std::as_writable_bytes(std::span(values))), IsOk());
  EXPECT_EQ(values[0], 3);
  EXPECT_EQ(values[1], -1);
  EXPECT_THAT(constant.source(std::as_writable_bytes(std::span(values).first(1))),
              StatusIs(StatusCode::kInternal, HasSubstr("expected 8 bytes, got 16")));
}

}  // namespace
}  // namespace hexport::graph
