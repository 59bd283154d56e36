#include "base/dtype.h"

#include <bit>
#include <limits>

namespace hexport {

int DTypeBits(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 64;
    case DType::kFloat32:
    case DType::kInt32:
      return 32;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16:
    case DType::kUInt16:
      return 16;
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
      return 8;
    case DType::kInt4:
    case DType::kUInt4:
      return 4;
  }
  return 0;
}

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return "float64";
    case DType::kInt64:
      return "int64";
    case DType::kFloat32:
      return "float32";
    case DType::kInt32:
      return "int32";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kInt16:
      return "int16";
    case DType::kUInt16:
      return "uint16";
    case DType::kInt8:
      return "int8";
    case DType::kUInt8:
      return "uint8";
    case DType::kBool:
      return "bool";
    case DType::kInt4:
      return "int4";
    case DType::kUInt4:
      return "uint4";
  }
  return "unknown";
}

int64_t NumElements(const Shape& shape) {
  int64_t count = 1;
  bool overflow = false;
  bool zero = false;
  for (int64_t dimension : shape) {
    if (dimension < 0) return -1;
    if (dimension == 0) zero = true;
    // Overflow of the other dimensions does not matter beside a zero, so it is judged at the end.
    if (!overflow && __builtin_mul_overflow(count, dimension, &count)) overflow = true;
  }
  if (zero) return 0;
  return overflow ? -1 : count;
}

int64_t NumBytes(DType dtype, const Shape& shape) {
  const int64_t count = NumElements(shape);
  const int64_t bits = DTypeBits(dtype);
  if (count < 0) return -1;
  if (bits >= 8) {
    int64_t bytes = 0;
    return __builtin_mul_overflow(count, bits / 8, &bytes) ? -1 : bytes;
  }
  const int64_t per_byte = 8 / bits;
  return count / per_byte + (count % per_byte != 0 ? 1 : 0);
}

std::string ShapeString(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
  // Zero or subnormal: mantissa x 2^-24 is exact in float32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);  // keep the payload's high bits, quiet
  } else if (magnitude >= 0x47800000u) {
    half = 0x7c00u;  // 65536 and above; [65520, 65536) rounds up to infinity below
  } else if (magnitude >= 0x38800000u) {
    // Normal: rebias the exponent, round the 13 dropped bits to nearest even. A carry runs into the
    // exponent as it should.
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  } else if (magnitude >= 0x33000000u) {
    const uint32_t shift = 126 - (magnitude >> 23);  // 14 .. 24
    const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t kept = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1);
    const uint32_t middle = 1u << (shift - 1);
    half = kept + ((rest > middle || (rest == middle && (kept & 1u) != 0)) ? 1u : 0u);
  }
  return static_cast<uint16_t>(sign | half);
}

float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>((bits >> 16) |
                                 0x40u);  // quiet: rounding could turn it to infinity
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace hexport
