// Which ONNX node became which QNN op, as the QNN provider writes it (enable_framework_op_trace=1,
// framework_op_trace_dir=<dir> -> <dir>/qnn_op_trace.json).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace hexport::ort {

struct TracedOp {
  std::string name;    // of the QNN op
  std::string qnn_op;  // "FullyConnected"
  std::string group;   // "OrtNodeUnit", or the fusion: "LowPowerBlockQuantizedMatMulFusion"
  std::vector<std::string>
      nodes;  // names of the ONNX nodes it stands for, Quantize and Dequantize among them
};

struct OpTrace {
  std::vector<TracedOp> ops;             // of all subgraphs, in order
  std::vector<std::string> unsupported;  // "find_places (NonZero): reason"
  int64_t onnx_nodes = 0;                // nodes the provider looked at
  int64_t subgraphs = 0;                 // 1 when the whole graph went to the NPU
};

// Errors: kNotFound, kDataLoss (not JSON, or not of the expected form).
Result<OpTrace> ReadOpTrace(const std::filesystem::path& path);
// The same from text; `where` is named in errors.
Result<OpTrace> ParseOpTrace(std::string_view text, std::string_view where);

}  // namespace hexport::ort
