#include "cli/console.h"

#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace hexport::cli {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

int ExitCodeFor(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return kExitOk;
    case StatusCode::kResourceExhausted:
    case StatusCode::kPermissionDenied:
    case StatusCode::kUnavailable:
    case StatusCode::kInternal:
    case StatusCode::kDeadlineExceeded:
      return kExitEnvironment;
    default:
      return kExitBadInput;
  }
}

ConsoleProgress::ConsoleProgress(bool quiet)
    : quiet_(quiet),
      terminal_(::isatty(STDERR_FILENO) == 1),
      stage_start_(Clock::now()),
      last_draw_(stage_start_) {}

ConsoleProgress::~ConsoleProgress() { Clear(); }

void ConsoleProgress::Update(std::string_view stage, int64_t done, int64_t total) {
  if (quiet_) return;
  const bool changed = stage != stage_;
  if (changed) {
    Clear();
    stage_ = stage;
    stage_start_ = last_draw_ = Clock::now();
    last_percent_ = -1;
  }
  if (terminal_) {
    if (!changed && done < total && SecondsSince(last_draw_) < 0.1) return;
    Draw(done, total);
    return;
  }
  // Plain lines: one when a stage starts, then one each quarter.
  const int64_t percent = total > 0 ? done * 100 / total : 0;
  if (!changed && percent / 25 <= last_percent_ / 25) return;
  last_percent_ = percent;
  if (total > 0 && done > 0) {
    std::fprintf(stderr, "%s: %" PRId64 " of %" PRId64 "\n", stage_.c_str(), done, total);
  } else if (changed) {
    std::fprintf(stderr, "%s\n", stage_.c_str());
  }
}

void ConsoleProgress::Draw(int64_t done, int64_t total) {
  last_draw_ = Clock::now();
  open_ = true;
  const double elapsed = SecondsSince(stage_start_);
  if (total <= 0) {
    std::fprintf(stderr, "\r\033[K%s ...", stage_.c_str());
    return;
  }
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(done * kWidth / total);
  const std::string bar = std::string(static_cast<size_t>(filled), '#') +
                          std::string(static_cast<size_t>(kWidth - filled), '.');
  const double left =
      done > 0 ? elapsed / static_cast<double>(done) * static_cast<double>(total - done) : 0;
  std::fprintf(stderr, "\r\033[K%-24s [%s] %" PRId64 "/%" PRId64 "  %.0f s, %.0f s left",
               stage_.c_str(), bar.c_str(), done, total, elapsed, left);
}

void ConsoleProgress::Note(std::string_view line) {
  if (quiet_) return;
  Clear();
  std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}

void ConsoleProgress::Clear() {
  if (!open_) return;
  std::fprintf(stderr, "\r\033[K");
  open_ = false;
}

int Fail(const Status& status, bool json) {
  std::fprintf(stderr, "hexport: %s\n", status.ToString().c_str());
  if (json) {
    PrintJson(
        {{"error",
          {{"code", std::string(StatusCodeName(status.code()))}, {"message", status.message()}}}});
  }
  return ExitCodeFor(status.code());
}

void PrintJson(const nlohmann::ordered_json& value) {
  std::printf("%s\n",
              value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

}  // namespace hexport::cli
