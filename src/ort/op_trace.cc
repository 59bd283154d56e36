#include "ort/op_trace.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"

namespace hexport::ort {
namespace {

using nlohmann::json;

TracedOp ReadOp(const json& mapping) {
  TracedOp op;
  op.name = mapping.at("dst_name").get<std::string>();
  op.qnn_op = mapping.at("dst_qnn_op_type").get<std::string>();
  op.group = mapping.value("node_group_type", "");
  for (const json& source : mapping.at("sources")) {
    if (source.value("type", "") == "OP") op.nodes.push_back(source.at("name").get<std::string>());
  }
  return op;
}

std::string ReadUnsupported(const json& node) {
  std::string text =
      node.at("node_name").get<std::string>() + " (" + node.value("op_type", "?") + ")";
  if (const std::string reason = node.value("reason", ""); !reason.empty()) text += ": " + reason;
  return text;
}

}  // namespace

Result<OpTrace> ParseOpTrace(std::string_view text, std::string_view where) {
  try {
    const json document = json::parse(text);
    OpTrace trace;
    for (const json& subgraph : document.at("subgraph_traces")) {
      ++trace.subgraphs;
      for (const json& mapping : subgraph.at("op_mappings")) trace.ops.push_back(ReadOp(mapping));
    }
    for (const json& node : document.at("unsupported_nodes"))
      trace.unsupported.push_back(ReadUnsupported(node));
    trace.onnx_nodes = document.at("summary").at("total_onnx_nodes").get<int64_t>();
    return trace;
  } catch (const json::exception& error) {
    return DataLoss(std::string(where) +
                    ": expected an op trace of the QNN provider, got: " + error.what());
  }
}

Result<OpTrace> ReadOpTrace(const std::filesystem::path& path) {
  HEXPORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  return ParseOpTrace(text, path.string());
}

}  // namespace hexport::ort
