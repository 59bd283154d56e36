#include "ort/op_trace.h"

#include <gtest/gtest.h>

#include "base/status_matchers.h"
#include "ort/unsupported_nodes.h"

namespace hexport::ort {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const fs::path kData = fs::path(HEXPORT_TEST_DATA) / "ort";

// Written by the compiler for qdq_unsupported.onnx.
TEST(OpTraceTest, ReadsWhichNodesBecameWhichOp) {
  const Result<OpTrace> trace = ReadOpTrace(kData / "unsupported/qnn_op_trace.json");
  ASSERT_THAT(trace, IsOk());
  ASSERT_EQ(trace->ops.size(), 2u);
  EXPECT_EQ(trace->ops[0].name, "product");
  EXPECT_EQ(trace->ops[0].qnn_op, "FullyConnected");
  EXPECT_EQ(trace->ops[0].group, "OrtNodeUnit");
  EXPECT_THAT(trace->ops[0].nodes, ElementsAre("x_DQ", "w_DQ", "product", "y_Q"));
  EXPECT_EQ(trace->onnx_nodes, 6);
  EXPECT_EQ(trace->subgraphs, 1);
}

TEST(OpTraceTest, ReadsUnsupportedNodesWithTheirReason) {
  const Result<OpTrace> trace = ReadOpTrace(kData / "unsupported/qnn_op_trace.json");
  ASSERT_THAT(trace, IsOk());
  EXPECT_THAT(trace->unsupported,
              ElementsAre(HasSubstr("y_DQ (DequantizeLinear): "),
                          AllOf(HasSubstr("find_places (NonZero): "), HasSubstr("static"))));
}

TEST(OpTraceTest, MissingFileIsNotFound) {
  EXPECT_THAT(ReadOpTrace(kData / "none.json"),
              StatusIs(StatusCode::kNotFound, HasSubstr("none.json")));
}

TEST(OpTraceTest, TextThatIsNoTraceIsDataLoss) {
  EXPECT_THAT(ParseOpTrace("{", "trace"), StatusIs(StatusCode::kDataLoss, HasSubstr("trace: ")));
  EXPECT_THAT(ParseOpTrace("[]", "trace"), StatusIs(StatusCode::kDataLoss, HasSubstr("trace: ")));
  EXPECT_THAT(
      ParseOpTrace(R"({"subgraph_traces": 3, "unsupported_nodes": [], "summary": {}})", "trace"),
      StatusIs(StatusCode::kDataLoss, HasSubstr("trace: ")));
}

TEST(UnsupportedNodesTest, TakesNamesFromTheLogOnceEach) {
  EXPECT_THAT(UnsupportedNodes({"something else",
                                "x: Unsupported nodes in QNN EP: { name: a, type: NonZero }, { "
                                "name: b/c, type: TopK }, ",
                                "x: Unsupported nodes in QNN EP: { name: a, type: NonZero }, "}),
              ElementsAre("a (NonZero)", "b/c (TopK)"));
}

TEST(UnsupportedNodesTest, CutLineGivesNoHalfName) {
  EXPECT_THAT(UnsupportedNodes({"Unsupported nodes in QNN EP: { name: a, type: NonZ"}),
              ElementsAre());
}

TEST(UnsupportedNodesTest, ErrorTakesTheReasonFromTheTrace) {
  EXPECT_THAT(UnsupportedNodesError({"find_places (NonZero)"}, kData / "unsupported"),
              StatusIs(StatusCode::kUnimplemented,
                       AllOf(HasSubstr("find_places (NonZero): NonZero output shape"),
                             Not(HasSubstr("y_DQ")))));
}

TEST(UnsupportedNodesTest, ErrorWithoutATraceStillNamesTheNode) {
  EXPECT_THAT(UnsupportedNodesError({"find_places (NonZero)"}, ""),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("find_places (NonZero)")));
}

}  // namespace
}  // namespace hexport::ort
