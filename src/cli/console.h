// What the program shows: a progress bar on a terminal, plain lines elsewhere (always on stderr),
// results on stdout.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/progress.h"
#include "base/status.h"

namespace hexport::cli {

// 0 good, 1 a check failed, 2 bad usage or input, 3 the environment lacks something (library, disk,
// permission) or the vendor's code failed.
inline constexpr int kExitOk = 0, kExitCheckFailed = 1, kExitBadInput = 2, kExitEnvironment = 3;
int ExitCodeFor(StatusCode code);

class ConsoleProgress : public Progress {
 public:
  explicit ConsoleProgress(bool quiet);
  ~ConsoleProgress() override;
  void Update(std::string_view stage, int64_t done, int64_t total) override;
  void Note(std::string_view line) override;
  // Ends an open bar so that other output starts on its own line.
  void Clear();

 private:
  void Draw(int64_t done, int64_t total);
  bool quiet_, terminal_, open_ = false;
  std::string stage_;
  int64_t last_percent_ = -1;
  std::chrono::steady_clock::time_point stage_start_, last_draw_;
};

// Prints "hexport: <message>" to stderr and, with `json`, {"error": {"code", "message"}} to stdout.
// Returns the exit code.
int Fail(const Status& status, bool json);

// One JSON object on stdout. Invalid UTF-8 is replaced.
void PrintJson(const nlohmann::ordered_json& value);

}  // namespace hexport::cli
