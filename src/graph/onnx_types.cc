#include "graph/onnx_types.h"

#include <onnx-ml.pb.h>

#include <array>
#include <utility>

namespace hexport::graph {
namespace {

constexpr std::array<std::pair<DType, int32_t>, 13> kTypes = {{
    {DType::kFloat32, onnx::TensorProto::FLOAT},
    {DType::kFloat16, onnx::TensorProto::FLOAT16},
    {DType::kBFloat16, onnx::TensorProto::BFLOAT16},
    {DType::kInt8, onnx::TensorProto::INT8},
    {DType::kUInt8, onnx::TensorProto::UINT8},
    {DType::kInt16, onnx::TensorProto::INT16},
    {DType::kUInt16, onnx::TensorProto::UINT16},
    {DType::kInt32, onnx::TensorProto::INT32},
    {DType::kInt64, onnx::TensorProto::INT64},
    {DType::kBool, onnx::TensorProto::BOOL},
    {DType::kInt4, onnx::TensorProto::INT4},
    {DType::kUInt4, onnx::TensorProto::UINT4},
    {DType::kFloat64, onnx::TensorProto::DOUBLE},
}};

}  // namespace

int32_t ToOnnxType(DType dtype) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == dtype) return theirs;
  }
  return onnx::TensorProto::UNDEFINED;
}

std::optional<DType> FromOnnxType(int32_t type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == type) return ours;
  }
  return std::nullopt;
}

}  // namespace hexport::graph
