// Element types of ONNX's TensorProto and ours. Private to src/graph.
#pragma once

#include <cstdint>
#include <optional>

#include "base/dtype.h"

namespace hexport::graph {

// Value of onnx::TensorProto::DataType.
int32_t ToOnnxType(DType dtype);
// Nothing for types hexport does not hold (strings, complex, float8, ...).
std::optional<DType> FromOnnxType(int32_t type);

}  // namespace hexport::graph
