#include "ort/unsupported_nodes.h"

#include <algorithm>
#include <string_view>

#include "ort/op_trace.h"

namespace hexport::ort {
namespace {

constexpr std::string_view kHeading = "Unsupported nodes in QNN EP:";
constexpr std::string_view kName = "{ name: ";
constexpr std::string_view kType = ", type: ";
constexpr std::string_view kEnd = " }";

}  // namespace

std::vector<std::string> UnsupportedNodes(const std::vector<std::string>& log_lines) {
  std::vector<std::string> nodes;
  for (const std::string& line : log_lines) {
    const size_t heading = line.find(kHeading);
    if (heading == std::string::npos) continue;
    std::string_view rest = std::string_view(line).substr(heading + kHeading.size());
    while (true) {
      const size_t name = rest.find(kName);
      if (name == std::string_view::npos) break;
      const size_t type = rest.find(kType, name);
      const size_t end = type == std::string_view::npos ? type : rest.find(kEnd, type);
      if (end == std::string_view::npos) break;
      const size_t name_start = name + kName.size(), type_start = type + kType.size();
      std::string node = std::string(rest.substr(name_start, type - name_start)) + " (" +
                         std::string(rest.substr(type_start, end - type_start)) + ")";
      if (std::find(nodes.begin(), nodes.end(), node) == nodes.end())
        nodes.push_back(std::move(node));
      rest = rest.substr(end);
    }
  }
  return nodes;
}

Status UnsupportedNodesError(const std::vector<std::string>& nodes,
                             const std::filesystem::path& trace_dir) {
  std::vector<std::string> reasons;
  if (!trace_dir.empty()) {
    if (const Result<OpTrace> trace = ReadOpTrace(trace_dir / "qnn_op_trace.json"); trace.ok()) {
      reasons = trace->unsupported;
    }
  }
  std::string text;
  for (const std::string& node : nodes) {
    const auto reason = std::find_if(reasons.begin(), reasons.end(),
                                     [&](const std::string& r) { return r.starts_with(node); });
    text += (text.empty() ? "" : "; ") + (reason == reasons.end() ? node : *reason);
  }
  return Unimplemented("expected every node on the NPU, got " + std::to_string(nodes.size()) +
                       " that it does not take: " + text);
}

}  // namespace hexport::ort
