// The vendor's code runs in a child: `hexport __worker`, this same program with one request on
// standard input.
//
// Protocol: the request is one JSON object {"task": ..., ...}. The child prints lines that begin
// with kWorkerPrefix and hold one JSON object each: {"event": {...}} any number of times, then
// {"result": {...}} or
// {"error": {"code": int, "message": text}}. Other lines are the vendor's chatter and are ignored.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace hexport::compile {

inline constexpr std::string_view kWorkerPrefix = "@hexport ";
inline constexpr std::string_view kWorkerCommand = "__worker";

struct WorkerReport {
  int64_t peak_rss_bytes = 0;  // of the child
  double seconds = 0;
};

// Runs `task` in a child and returns its result. `what` names the work in errors ("compile
// prompt_ar128_cl512_1_of_1"). `report` may be null; it is filled in even when the child fails.
// `on_event` may be empty. Errors: the child's own status with `what` before it; kInternal when it
// crashed or was killed (signal, last lines of its output); kUnavailable when it can't be started.
Result<nlohmann::json> CallWorker(std::string_view task, const nlohmann::json& request,
                                  std::string_view what,
                                  const std::function<void(const nlohmann::json&)>& on_event,
                                  WorkerReport* report);

// The child's side: reads the request from standard input, runs it, prints the result. Returns the
// exit code.
int WorkerMain();

}  // namespace hexport::compile
