#include "base/child_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "base/status_matchers.h"
#include "base/test_directory.h"

namespace hexport {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::Slurp;
using ::hexport::testing::StatusIs;
using ::hexport::testing::TestDirectory;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

ChildOptions Shell(const std::string& script) {
  ChildOptions options;
  options.argv = {"/bin/sh", "-c", script};
  return options;
}

TEST(ChildProcessTest, CollectsOutputAndExitCode) {
  const auto result = RunChild(Shell("echo out; echo err >&2; exit 3"));
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->exit_code, 3);
  EXPECT_EQ(result->signal, 0);
  EXPECT_EQ(result->stdout_text, "out\n");
  EXPECT_EQ(result->stderr_tail, "err\n");
  EXPECT_EQ(DescribeExit(*result), "exit code 3");
}

TEST(ChildProcessTest, FeedsStandardInput) {
  ChildOptions options = Shell("cat");
  options.stdin_text = std::string(300'000, 'z');
  const auto result = RunChild(options);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->stdout_text, options.stdin_text);
}

TEST(ChildProcessTest, UnreadStandardInputDoesNotHurt) {
  ChildOptions options = Shell("exit 0");
  options.stdin_text = std::string(10'000'000, 'z');
  const auto result = RunChild(options);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->exit_code, 0);
}

TEST(ChildProcessTest, DeliversLinesAndTheUnfinishedLast) {
  std::vector<std::string> lines;
  ChildOptions options = Shell("printf 'one\\n\\ntwo'");
  options.on_stdout_line = [&](std::string_view line) { lines.emplace_back(line); };
  const auto result = RunChild(options);
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(lines, ElementsAre("one", "", "two"));
  EXPECT_EQ(result->stdout_text, "");
}

TEST(ChildProcessTest, AddsAndReplacesEnvironment) {
  setenv("HEXPORT_TEST_OLD", "old", 1);
  ChildOptions options = Shell("echo $HEXPORT_TEST_OLD $HEXPORT_TEST_NEW; test -n \"$PATH\"");
  options.environment = {{"HEXPORT_TEST_OLD", "replaced"}, {"HEXPORT_TEST_NEW", "new"}};
  const auto result = RunChild(options);
  unsetenv("HEXPORT_TEST_OLD");
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->stdout_text, "replaced new\n");
  EXPECT_EQ(result->exit_code, 0);
}

TEST(ChildProcessTest, KeepsTheTailOfStandardError) {
  const auto result = RunChild(Shell("head -c 1000000 /dev/zero | tr '\\0' x >&2; echo end >&2"));
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->stderr_tail.size(), 64u * 1024);
  EXPECT_THAT(result->stderr_tail, EndsWith("xend\n"));
}

TEST(ChildProcessTest, ReportsACrash) {
  const auto result = RunChild(Shell("kill -SEGV $$"));
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->signal, SIGSEGV);
  EXPECT_EQ(DescribeExit(*result), "crashed with signal 11 (Segmentation fault)");
}

TEST(ChildProcessTest, ReportsAKill) {
  const auto result = RunChild(Shell("kill -KILL $$"));
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(DescribeExit(*result), "killed by signal 9 (Killed; likely out of memory)");
}

TEST(ChildProcessTest, NamesAProgramThatIsNotThere) {
  ChildOptions options;
  options.argv = {"/no/such/program"};
  EXPECT_THAT(RunChild(options), StatusIs(StatusCode::kUnavailable, HasSubstr("/no/such/program")));
}

TEST(ChildProcessTest, NeedsAProgram) {
  EXPECT_THAT(RunChild(ChildOptions()), StatusIs(StatusCode::kInvalidArgument, HasSubstr("argv")));
}

TEST(ChildProcessTest, TicksWhileTheChildRuns) {
  int ticks = 0;
  ChildOptions options = Shell("sleep 1");
  options.on_tick = [&] {
    ++ticks;
    return true;
  };
  const auto result = RunChild(options);
  ASSERT_THAT(result, IsOk());
  EXPECT_GE(ticks, 2);
  EXPECT_LE(ticks, 8);
  EXPECT_GE(result->seconds, 0.9);
}

TEST(ChildProcessTest, CancelKillsTheWholeGroup) {
  const TestDirectory folder;
  const std::string pid_file = (folder / "pid").string();
  ChildOptions options = Shell("sleep 100 & echo $! > " + pid_file + "; wait");
  options.on_tick = [&] { return Slurp(pid_file).empty(); };
  EXPECT_THAT(RunChild(options), StatusIs(StatusCode::kCancelled, HasSubstr("/bin/sh")));
  const pid_t grandchild = std::atoi(Slurp(pid_file).c_str());
  ASSERT_GT(grandchild, 0);
  // Killed; whoever inherited it may not have reaped it yet.
  const std::string status = "/proc/" + std::to_string(grandchild) + "/stat";
  bool gone = false;
  for (int i = 0; i < 100 && !gone; ++i) {
    const std::string stat = Slurp(status);
    gone = stat.empty() || stat.find(") Z") != std::string::npos;
    if (!gone) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(gone);
}

TEST(ChildProcessTest, DoesNotWaitForAGrandchildThatHoldsThePipes) {
  const auto result = RunChild(Shell("sleep 20 & echo done"));
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->stdout_text, "done\n");
  EXPECT_LT(result->seconds, 10);
}

TEST(ChildProcessTest, MeasuresTheChildsMemoryAndNotOurs) {
  constexpr size_t kOurs = size_t{200} << 20;
  const auto block = std::make_unique_for_overwrite<char[]>(kOurs);
  std::memset(block.get(), 1, kOurs);
  const auto result = RunChild(Shell("sleep 0.5"));
  ASSERT_THAT(result, IsOk());
  EXPECT_GT(result->peak_rss_bytes, 0);
  EXPECT_LT(result->peak_rss_bytes, int64_t{100} << 20);
  EXPECT_EQ(block[kOurs - 1], 1);
}

TEST(ChildProcessTest, MeasuresALargeChild) {
  // dd fills one buffer of 300 MB.
  const auto result = RunChild(Shell("dd if=/dev/zero of=/dev/null bs=300M count=1"));
  ASSERT_THAT(result, IsOk());
  EXPECT_GT(result->peak_rss_bytes, int64_t{250} << 20);
}

TEST(ChildProcessTest, WorksFromSeveralThreads) {
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&good, i] {
      const auto result = RunChild(Shell("echo " + std::to_string(i)));
      if (result.ok() && result->stdout_text == std::to_string(i) + "\n") ++good;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 4);
}

TEST(WorkerExecutableTest, IsThisProgramUnlessOverridden) {
  unsetenv("HEXPORT_WORKER_EXE");
  EXPECT_EQ(WorkerExecutable().filename(), "base_test");
  setenv("HEXPORT_WORKER_EXE", "/opt/other", 1);
  EXPECT_EQ(WorkerExecutable(), "/opt/other");
  unsetenv("HEXPORT_WORKER_EXE");
}

}  // namespace
}  // namespace hexport
