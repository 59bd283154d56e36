#include "compile/worker.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/child_process.h"
#include "ort/session.h"

namespace hexport::compile {
namespace {

using nlohmann::json;

// The last lines of a child's stderr that are not blank, for an error message.
std::string LastLines(const std::string& text, int count) {
  size_t begin = text.size();
  while (begin > 0 && text[begin - 1] == '\n') --begin;
  const size_t end = begin;
  for (int line = 0; begin > 0; --begin) {
    if (text[begin - 1] == '\n' && ++line == count) break;
  }
  return text.substr(begin, end - begin);
}

struct Outcome {
  std::optional<json> result;
  Status error;
  bool reported = false;  // the child said how it ended
};

void TakeLine(std::string_view line, const std::function<void(const json&)>& on_event,
              Outcome& outcome) {
  const size_t at = line.find(kWorkerPrefix);
  if (at == std::string_view::npos) return;
  json message = json::parse(line.substr(at + kWorkerPrefix.size()), nullptr, false);
  if (!message.is_object()) return;
  if (auto event = message.find("event"); event != message.end()) {
    if (on_event) on_event(*event);
  } else if (auto result = message.find("result"); result != message.end()) {
    outcome.result = std::move(*result);
    outcome.reported = true;
  } else if (auto error = message.find("error"); error != message.end() && error->is_object()) {
    outcome.error =
        Status(static_cast<StatusCode>(error->value("code", 13)), error->value("message", ""));
    outcome.reported = true;
  }
}

}  // namespace

Result<json> CallWorker(std::string_view task, const json& request, std::string_view what,
                        const std::function<void(const json&)>& on_event, WorkerReport* report) {
  json full = request;
  full["task"] = task;
  Outcome outcome;
  ChildOptions options;
  options.argv = {WorkerExecutable().string(), std::string(kWorkerCommand)};
  options.environment = {{"LD_LIBRARY_PATH", ort::VendorLibraryPath()}};
  options.stdin_text = full.dump();
  options.on_stdout_line = [&](std::string_view line) { TakeLine(line, on_event, outcome); };
  Result<ChildResult> child = RunChild(options);
  if (!child.ok()) return child.status().WithContext(what);
  if (report != nullptr) *report = {child->peak_rss_bytes, child->seconds};
  if (outcome.reported && !outcome.error.ok()) {
    // Genie and the compiler tell their reasons on stderr only.
    const std::string tail = child->stderr_tail.empty() ? "" : LastLines(child->stderr_tail, 4);
    const std::string message = outcome.error.message() + (tail.empty() ? "" : "\n" + tail);
    return Status(outcome.error.code(), message).WithContext(what);
  }
  if (child->signal != 0 || child->exit_code != 0 || !outcome.result.has_value()) {
    // A vendor library that crashes while it unloads, after the result was told, did its work.
    if (outcome.result.has_value() && child->signal != 0) return *std::move(outcome.result);
    std::string message = std::string(what) +
                          ": the child process that runs Qualcomm's code ended without a result: " +
                          DescribeExit(*child) + "; peak memory " +
                          std::to_string(child->peak_rss_bytes >> 20) + " MiB";
    if (std::string tail = LastLines(child->stderr_tail, 6); !tail.empty())
      message += "; its last words:\n" + tail;
    return Internal(std::move(message));
  }
  return *std::move(outcome.result);
}

}  // namespace hexport::compile
