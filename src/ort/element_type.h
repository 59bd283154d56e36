// hexport's element types and ONNX Runtime's. Private to src/ort.
#pragma once

#include <onnxruntime_c_api.h>

#include <optional>

#include "base/dtype.h"

namespace hexport::ort {

// Nothing for types that hexport does not pass across a session's edge (strings, 4 bit integers,
// ...).
std::optional<DType> FromOnnxType(ONNXTensorElementDataType type);
std::optional<ONNXTensorElementDataType> ToOnnxType(DType dtype);

}  // namespace hexport::ort
