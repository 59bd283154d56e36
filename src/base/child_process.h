// Child processes: vendor code runs in them, so that its crash is a report and not our end.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace hexport {

struct ChildOptions {
  std::vector<std::string> argv;  // argv[0] is the program's path
  std::vector<std::pair<std::string, std::string>>
      environment;         // added to ours; an existing name is replaced
  std::string stdin_text;  // written to the child's standard input, then closed
  std::function<void(std::string_view line)> on_stdout_line;  // without newline; may be empty
  // Called about five times a second while the child runs; return false to kill it. May be empty.
  std::function<bool()> on_tick;
};

struct ChildResult {
  int exit_code = -1;          // valid when signal == 0
  int signal = 0;              // the signal that ended it, or 0
  std::string stdout_text;     // whole output when on_stdout_line is empty
  std::string stderr_tail;     // last 64 KiB
  int64_t peak_rss_bytes = 0;  // of this child, as the kernel accounts it (ru_maxrss)
  double seconds = 0;          // wall time
};

// Runs the child to its end. The child is killed if our process dies (PR_SET_PDEATHSIG).
// Errors: kUnavailable when it cannot be started, kCancelled when on_tick said so. An exit code
// other than 0 or a signal is not an error here: see DescribeExit.
Result<ChildResult> RunChild(const ChildOptions& options);

// "exit code 3", "killed by signal 9 (Killed; likely out of memory)", "crashed with signal 11
// (Segmentation fault)".
std::string DescribeExit(const ChildResult& result);

// Path of this very program (/proc/self/exe). HEXPORT_WORKER_EXE in the environment overrides it,
// for tests and for programs that embed the library.
std::filesystem::path WorkerExecutable();

}  // namespace hexport
