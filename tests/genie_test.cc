// Qualcomm's Genie, called without a model. Label: emulator. Answers are checked by
// emulator_suite.py.
#include "ort/genie.h"

#include <gtest/gtest.h>

#include <string>

#include "base/status_matchers.h"

namespace hexport::ort {
namespace {

using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class GenieTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!FindQnnFolder().ok()) GTEST_SKIP() << FindQnnFolder().status().ToString();
  }
  // The status of a question that must fail before any text comes.
  static Status Ask(const std::string& config) {
    int pieces = 0;
    Status status = RunGenie(config, "Hello", [&](std::string_view, int) { ++pieces; });
    EXPECT_EQ(pieces, 0);
    return status;
  }
};

TEST_F(GenieTest, TextThatIsNoJsonIsRefused) {
  EXPECT_THAT(Ask("{"), StatusIs(StatusCode::kInvalidArgument, HasSubstr("expected JSON")));
}

TEST_F(GenieTest, ConfigWithoutMandatoryKeysIsRefused) {
  EXPECT_THAT(Ask(R"({"dialog": {"version": 1}})"),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("mandatory key"), HasSubstr("code -"))));
}

TEST_F(GenieTest, MissingFilesAreReportedBeforeGenieStumblesOverThem) {
  EXPECT_THAT(Ask(R"({"dialog": {"tokenizer": {"path": "/nonexistent/tokenizer.json"}}})"),
              StatusIs(StatusCode::kNotFound, HasSubstr("/nonexistent/tokenizer.json")));
  EXPECT_THAT(
      Ask(R"({"dialog": {"engine": {"model": {"binary": {"ctx-bins": ["/nonexistent/a.bin"]}}}}})"),
      StatusIs(StatusCode::kNotFound, HasSubstr("/nonexistent/a.bin")));
}

}  // namespace
}  // namespace hexport::ort
