// Storage formats of weights, from plain floats to ggml's quantized blocks, and their widening to
// float32. Format facts: https://github.com/ggml-org/ggml (docs/gguf.md, struct block_* of
// ggml-common.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace hexport::checkpoint {

// A format: `elements` consecutive values of a row take `bytes` bytes. `id` is ggml's number.
struct BlockFormat {
  std::string_view name;  // "Q4_1", "F32", "BF16", ...
  uint32_t id = 0;
  int64_t elements = 1, bytes = 0;
  // Widens one block: block[bytes] -> out[elements]. Null: the size is known, the values are not
  // supported.
  void (*widen)(const std::byte* block, float* out) = nullptr;
  // One block as integers: codes[elements], value = (code - zero_point) * scale + offset. Null: the
  // format is none of whole codes with one scale.
  void (*unpack)(const std::byte* block, uint8_t* codes, float& scale, float& offset) = nullptr;
  int code_bits = 0;
  uint8_t zero_point = 0;
};

// Formats live for ever. nullptr for a number (name) that is not known.
const BlockFormat* FindBlockFormat(uint32_t id);
const BlockFormat* FindBlockFormat(std::string_view name);

// Widens whole blocks. kInvalidArgument when `bytes` and `out` are not the same number of whole
// blocks; kUnimplemented when format.widen is null.
Status Widen(const BlockFormat& format, std::span<const std::byte> bytes, std::span<float> out);

}  // namespace hexport::checkpoint
