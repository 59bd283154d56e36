#include "ort/element_type.h"

#include <array>
#include <utility>

namespace hexport::ort {
namespace {

constexpr std::array<std::pair<DType, ONNXTensorElementDataType>, 11> kTypes = {{
    {DType::kFloat32, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT},
    {DType::kFloat16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16},
    {DType::kBFloat16, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16},
    {DType::kInt8, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8},
    {DType::kUInt8, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8},
    {DType::kInt16, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16},
    {DType::kUInt16, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16},
    {DType::kInt32, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32},
    {DType::kInt64, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64},
    {DType::kBool, ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL},
    {DType::kFloat64, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE},
}};

}  // namespace

std::optional<DType> FromOnnxType(ONNXTensorElementDataType type) {
  for (const auto& [dtype, onnx] : kTypes) {
    if (onnx == type) return dtype;
  }
  return std::nullopt;
}

std::optional<ONNXTensorElementDataType> ToOnnxType(DType dtype) {
  for (const auto& [ours, onnx] : kTypes) {
    if (ours == dtype) return onnx;
  }
  return std::nullopt;
}

}  // namespace hexport::ort
