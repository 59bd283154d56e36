#include "checkpoint/block_format.h"

#include <array>
#include <cstring>
#include <string>

#include "base/dtype.h"

namespace hexport::checkpoint {
namespace {

uint32_t U8(const std::byte* p) { return std::to_integer<uint32_t>(*p); }
int I8(const std::byte* p) { return static_cast<int8_t>(std::to_integer<uint8_t>(*p)); }
uint32_t U16(const std::byte* p) { return U8(p) | U8(p + 1) << 8; }
uint32_t U32(const std::byte* p) { return U16(p) | U16(p + 2) << 16; }
float F16(const std::byte* p) { return HalfToFloat(static_cast<uint16_t>(U16(p))); }

void WidenF32(const std::byte* block, float* out) { std::memcpy(out, block, sizeof(float)); }
void WidenF16(const std::byte* block, float* out) { *out = F16(block); }
void WidenBF16(const std::byte* block, float* out) {
  *out = BFloat16ToFloat(static_cast<uint16_t>(U16(block)));
}

// Blocks of 32. Byte j of the codes holds value j in its low and value j + 16 in its high nibble.

void UnpackNibbles(const std::byte* packed, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = static_cast<uint8_t>(U8(packed + j) & 15);
    codes[j + 16] = static_cast<uint8_t>(U8(packed + j) >> 4);
  }
}

// d f16, codes[16]; value = (q - 8) d.
void WidenQ4_0(const std::byte* block, float* out) {
  const float d = F16(block);
  for (int j = 0; j < 16; ++j) {
    const uint32_t codes = U8(block + 2 + j);
    out[j] = static_cast<float>(static_cast<int>(codes & 15) - 8) * d;
    out[j + 16] = static_cast<float>(static_cast<int>(codes >> 4) - 8) * d;
  }
}

void UnpackQ4_0(const std::byte* block, uint8_t* codes, float& scale, float& offset) {
  scale = F16(block);
  offset = 0.0f;
  UnpackNibbles(block + 2, codes);
}

// d f16, m f16, codes[16]; value = q d + m.
void WidenQ4_1(const std::byte* block, float* out) {
  const float d = F16(block);
  const float m = F16(block + 2);
  for (int j = 0; j < 16; ++j) {
    const uint32_t codes = U8(block + 4 + j);
    out[j] = static_cast<float>(codes & 15) * d + m;
    out[j + 16] = static_cast<float>(codes >> 4) * d + m;
  }
}

void UnpackQ4_1(const std::byte* block, uint8_t* codes, float& scale, float& offset) {
  scale = F16(block);
  offset = F16(block + 2);
  UnpackNibbles(block + 4, codes);
}

// d f16, fifth bits u32 (bit j is value j's), codes[16]; value = (q - 16) d.
void WidenQ5_0(const std::byte* block, float* out) {
  const float d = F16(block);
  const uint32_t high = U32(block + 2);
  for (int j = 0; j < 16; ++j) {
    const uint32_t codes = U8(block + 6 + j);
    const uint32_t low_code = (codes & 15) | ((high >> j) & 1) << 4;
    const uint32_t high_code = (codes >> 4) | ((high >> (j + 16)) & 1) << 4;
    out[j] = static_cast<float>(static_cast<int>(low_code) - 16) * d;
    out[j + 16] = static_cast<float>(static_cast<int>(high_code) - 16) * d;
  }
}

// d f16, m f16, fifth bits u32, codes[16]; value = q d + m.
void WidenQ5_1(const std::byte* block, float* out) {
  const float d = F16(block);
  const float m = F16(block + 2);
  const uint32_t high = U32(block + 4);
  for (int j = 0; j < 16; ++j) {
    const uint32_t codes = U8(block + 8 + j);
    out[j] = static_cast<float>((codes & 15) | ((high >> j) & 1) << 4) * d + m;
    out[j + 16] = static_cast<float>((codes >> 4) | ((high >> (j + 16)) & 1) << 4) * d + m;
  }
}

// d f16, codes i8[32]; value = q d.
void WidenQ8_0(const std::byte* block, float* out) {
  const float d = F16(block);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(I8(block + 2 + j)) * d;
}

// Signed codes, moved up by 128.
void UnpackQ8_0(const std::byte* block, uint8_t* codes, float& scale, float& offset) {
  scale = F16(block);
  offset = 0.0f;
  for (int j = 0; j < 32; ++j) codes[j] = static_cast<uint8_t>(I8(block + 2 + j) + 128);
}

// Blocks of 256.

// Six-bit scale and minimum of sub-block j (0..7), packed in 12 bytes: the first four have theirs
// in the low six bits of bytes j and j + 4; the last four have low nibbles in bytes j + 4 and the
// two high bits above those of the first four.
struct ScaleMin {
  float scale, minimum;
};
ScaleMin UnpackScaleMin(const std::byte* packed, int j) {
  if (j < 4) {
    return {static_cast<float>(U8(packed + j) & 63), static_cast<float>(U8(packed + j + 4) & 63)};
  }
  const uint32_t both = U8(packed + j + 4);
  return {static_cast<float>((both & 15) | (U8(packed + j - 4) >> 6) << 4),
          static_cast<float>((both >> 4) | (U8(packed + j) >> 6) << 4)};
}

// d f16, dmin f16, scales[12], codes[128]; sub-blocks 2g and 2g + 1 are the low and high nibbles of
// codes [32g, 32g + 32); value = d scale q - dmin minimum.
void WidenQ4_K(const std::byte* block, float* out) {
  const float d = F16(block);
  const float dmin = F16(block + 2);
  for (int sub = 0; sub < 8; ++sub) {
    const ScaleMin packed = UnpackScaleMin(block + 4, sub);
    const float scale = d * packed.scale;
    const float minimum = dmin * packed.minimum;
    const std::byte* codes = block + 16 + 32 * (sub / 2);
    const int shift = 4 * (sub % 2);
    for (int j = 0; j < 32; ++j) {
      out[32 * sub + j] = scale * static_cast<float>((U8(codes + j) >> shift) & 15) - minimum;
    }
  }
}

// As Q4_K with fifth bits[32] between scales and codes: bit `sub` of byte j.
void WidenQ5_K(const std::byte* block, float* out) {
  const float d = F16(block);
  const float dmin = F16(block + 2);
  const std::byte* high = block + 16;
  for (int sub = 0; sub < 8; ++sub) {
    const ScaleMin packed = UnpackScaleMin(block + 4, sub);
    const float scale = d * packed.scale;
    const float minimum = dmin * packed.minimum;
    const std::byte* codes = block + 48 + 32 * (sub / 2);
    const int shift = 4 * (sub % 2);
    for (int j = 0; j < 32; ++j) {
      const uint32_t code = ((U8(codes + j) >> shift) & 15) | ((U8(high + j) >> sub) & 1) << 4;
      out[32 * sub + j] = scale * static_cast<float>(code) - minimum;
    }
  }
}

// low nibbles[128], high pairs of bits[64], scales i8[16], d f16. Each half of 128 values has four
// runs of 32: run r takes nibble r / 2 of low byte 32 (r % 2) + j and bit pair r of high byte j;
// one scale for every 16 values; value = d scale (q - 32).
void WidenQ6_K(const std::byte* block, float* out) {
  const float d = F16(block + 208);
  for (int half = 0; half < 2; ++half) {
    const std::byte* low = block + 64 * half;
    const std::byte* high = block + 128 + 32 * half;
    const std::byte* scales = block + 192 + 8 * half;
    for (int run = 0; run < 4; ++run) {
      for (int j = 0; j < 32; ++j) {
        const uint32_t nibble = (U8(low + 32 * (run % 2) + j) >> (4 * (run / 2))) & 15;
        const uint32_t pair = (U8(high + j) >> (2 * run)) & 3;
        const float scale = d * static_cast<float>(I8(scales + 2 * run + j / 16));
        out[128 * half + 32 * run + j] =
            scale * static_cast<float>(static_cast<int>(nibble | pair << 4) - 32);
      }
    }
  }
}

constexpr std::array kFormats{
    BlockFormat{"F32", 0, 1, 4, WidenF32},
    BlockFormat{"F16", 1, 1, 2, WidenF16},
    BlockFormat{"Q4_0", 2, 32, 18, WidenQ4_0, UnpackQ4_0, 4, 8},
    BlockFormat{"Q4_1", 3, 32, 20, WidenQ4_1, UnpackQ4_1, 4, 0},
    BlockFormat{"Q5_0", 6, 32, 22, WidenQ5_0},
    BlockFormat{"Q5_1", 7, 32, 24, WidenQ5_1},
    BlockFormat{"Q8_0", 8, 32, 34, WidenQ8_0, UnpackQ8_0, 8, 128},
    BlockFormat{"Q2_K", 10, 256, 84, nullptr},
    BlockFormat{"Q3_K", 11, 256, 110, nullptr},
    BlockFormat{"Q4_K", 12, 256, 144, WidenQ4_K},
    BlockFormat{"Q5_K", 13, 256, 176, WidenQ5_K},
    BlockFormat{"Q6_K", 14, 256, 210, WidenQ6_K},
    BlockFormat{"IQ2_XXS", 16, 256, 66, nullptr},
    BlockFormat{"IQ2_XS", 17, 256, 74, nullptr},
    BlockFormat{"IQ3_XXS", 18, 256, 98, nullptr},
    BlockFormat{"IQ1_S", 19, 256, 50, nullptr},
    BlockFormat{"IQ4_NL", 20, 32, 18, nullptr},
    BlockFormat{"IQ3_S", 21, 256, 110, nullptr},
    BlockFormat{"IQ2_S", 22, 256, 82, nullptr},
    BlockFormat{"IQ4_XS", 23, 256, 136, nullptr},
    BlockFormat{"I8", 24, 1, 1, nullptr},
    BlockFormat{"I16", 25, 1, 2, nullptr},
    BlockFormat{"I32", 26, 1, 4, nullptr},
    BlockFormat{"I64", 27, 1, 8, nullptr},
    BlockFormat{"F64", 28, 1, 8, nullptr},
    BlockFormat{"IQ1_M", 29, 256, 56, nullptr},
    BlockFormat{"BF16", 30, 1, 2, WidenBF16},
    BlockFormat{"TQ1_0", 34, 256, 54, nullptr},
    BlockFormat{"TQ2_0", 35, 256, 66, nullptr},
    BlockFormat{"MXFP4", 39, 32, 17, nullptr},
};

}  // namespace

const BlockFormat* FindBlockFormat(uint32_t id) {
  for (const BlockFormat& format : kFormats) {
    if (format.id == id) return &format;
  }
  return nullptr;
}

const BlockFormat* FindBlockFormat(std::string_view name) {
  for (const BlockFormat& format : kFormats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

Status Widen(const BlockFormat& format, std::span<const std::byte> bytes, std::span<float> out) {
  if (format.widen == nullptr) {
    return Unimplemented("tensor type " + std::string(format.name) +
                         ": expected a float type, Q4_0, "
                         "Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K");
  }
  const auto block_bytes = static_cast<size_t>(format.bytes);
  const auto block_elements = static_cast<size_t>(format.elements);
  const size_t blocks = bytes.size() / block_bytes;
  if (blocks * block_bytes != bytes.size() || blocks * block_elements != out.size()) {
    return InvalidArgument("blocks of " + std::string(format.name) + ": expected as many as " +
                           std::to_string(out.size()) + " values need, got " +
                           std::to_string(bytes.size()) + " bytes");
  }
  for (size_t i = 0; i < blocks; ++i) {
    format.widen(bytes.data() + i * block_bytes, out.data() + i * block_elements);
  }
  return OkStatus();
}

}  // namespace hexport::checkpoint
