// Which nodes the NPU did not take, from what the QNN provider logged.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"

namespace hexport::ort {

// "find_places (NonZero)" for each node of the lines "Unsupported nodes in QNN EP: { name: ...,
// type: ... }, ...", each once, in order.
std::vector<std::string> UnsupportedNodes(const std::vector<std::string>& log_lines);

// kUnimplemented naming `nodes`, with the reason of each that the op trace in `trace_dir` (may be
// empty or without a trace) tells.
Status UnsupportedNodesError(const std::vector<std::string>& nodes,
                             const std::filesystem::path& trace_dir);

}  // namespace hexport::ort
