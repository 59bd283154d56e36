#include "compile/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/status_matchers.h"

namespace hexport::compile {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Puts a shell script in the worker's place, so that every way to die can be played.
class WorkerTest : public ::testing::Test {
 protected:
  void Script(const std::string& body) {
    ASSERT_THAT(WriteFileAtomically(path_, "#!/bin/sh\n" + body), IsOk());
    ASSERT_EQ(::chmod(path_.c_str(), 0755), 0);
    ASSERT_EQ(::setenv("HEXPORT_WORKER_EXE", path_.c_str(), 1), 0);
  }
  void TearDown() override {
    ::unsetenv("HEXPORT_WORKER_EXE");
    std::filesystem::remove(path_);
  }
  std::filesystem::path path_ = std::filesystem::temp_directory_path() / "hexport_worker_test.sh";
};

TEST_F(WorkerTest, PassesTheRequestAndReadsEventsAmongChatter) {
  Script(
      "read -r request\necho \" # vendor chatter\"\necho '@hexport {\"event\":{\"done\":1}}'\n"
      "echo \"@hexport {\\\"result\\\":$request}\"\n");
  int events = 0;
  WorkerReport report;
  const auto result = CallWorker(
      "logits", {{"x", 5}}, "w", [&](const json& event) { events += event["done"].get<int>(); },
      &report);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ((*result)["x"], 5);
  EXPECT_EQ((*result)["task"], "logits");
  EXPECT_EQ(events, 1);
  EXPECT_GT(report.peak_rss_bytes, 0);
}

TEST_F(WorkerTest, KilledChildIsAnErrorThatNamesTheWork) {
  Script("kill -9 $$\n");
  EXPECT_THAT(
      CallWorker("compile", {}, "prompt_ar128", {}, nullptr),
      StatusIs(StatusCode::kInternal, AllOf(HasSubstr("prompt_ar128"), HasSubstr("signal 9"))));
}

TEST_F(WorkerTest, CrashShowsTheLastWords) {
  Script("echo 'out of VTCM' >&2\nkill -11 $$\n");
  EXPECT_THAT(
      CallWorker("compile", {}, "token_ar1", {}, nullptr),
      StatusIs(StatusCode::kInternal, AllOf(HasSubstr("signal 11"), HasSubstr("out of VTCM"))));
}

TEST_F(WorkerTest, ErrorOfTheChildKeepsItsCode) {
  Script("echo '@hexport {\"error\":{\"code\":12,\"message\":\"node x\"}}'\nexit 1\n");
  EXPECT_THAT(CallWorker("compile", {}, "g", {}, nullptr),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("g: node x")));
}

TEST_F(WorkerTest, EndWithoutAResultIsAnError) {
  Script("exit 0\n");
  EXPECT_THAT(CallWorker("compile", {}, "g", {}, nullptr),
              StatusIs(StatusCode::kInternal, HasSubstr("without a result")));
}

}  // namespace
}  // namespace hexport::compile
