// Element types and shapes shared by every layer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hexport {

enum class DType : uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt8,
  kUInt8,
  kInt16,
  kUInt16,
  kInt32,
  kInt64,
  kBool,
  kInt4,
  kUInt4,
  kFloat64,
};

// Bits of one element; int4 and uint4 pack two per byte, low nibble first (ONNX's order).
int DTypeBits(DType dtype);
// "float32", "bfloat16", "int4", ... (numpy's and ONNX's words).
std::string_view DTypeName(DType dtype);

// Row-major dimensions. A dynamic dimension (graphs only) is kDynamicDim.
using Shape = std::vector<int64_t>;
inline constexpr int64_t kDynamicDim = -1;

// Product of dimensions, 1 for a scalar; -1 if a dimension is negative or the product overflows
// int64.
int64_t NumElements(const Shape& shape);
// Bytes of a tensor, rounded up to whole bytes; -1 as for NumElements.
int64_t NumBytes(DType dtype, const Shape& shape);
// "[1, 9, 128, 512]".
std::string ShapeString(const Shape& shape);

// IEEE half and bfloat16 <-> float, round to nearest even; NaN stays NaN.
float HalfToFloat(uint16_t bits);
uint16_t FloatToHalf(float value);
float BFloat16ToFloat(uint16_t bits);
uint16_t FloatToBFloat16(float value);

}  // namespace hexport
