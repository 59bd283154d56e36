// The KV cache as the NPU graphs see it (SmartMask layout): the past is left-aligned, new tokens
// sit at the right end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace hexport::runtime {

// One contiguous buffer per layer and kind, [H, D, stride] for keys (transposed) and [H, stride, D]
// for values, where stride = CL - AR of the graph about to run. Elements: uint8 (code 128 is zero)
// or float32. Thread-compatible.
class KvCache {
 public:
  struct Geometry {
    int64_t layers = 0, num_key_value_heads = 0, head_dim = 0, context_length = 0;
    DType dtype = DType::kUInt8;
  };
  // Allocates for stride = context_length - 1. Errors: kResourceExhausted, kInvalidArgument.
  static Result<KvCache> Create(const Geometry& geometry);

  int64_t length() const { return length_; }  // valid tokens
  int64_t stride() const { return stride_; }
  // Changes the stride in place (backwards when growing); valid tokens keep their values, the rest
  // is zero. kResourceExhausted when length() > stride.
  Status Restride(int64_t stride);
  // Bytes for the graph input, shape [H,1,D,stride] or [H,1,stride,D].
  std::span<const std::byte> Key(int64_t layer) const;
  std::span<const std::byte> Value(int64_t layer) const;
  // Appends the first `count` tokens of a graph's outputs: key [H,1,D,ar], value [H,1,ar,D]. Call
  // for every layer, then Advance(count). kResourceExhausted when length() + count > stride;
  // unchanged then.
  Status Append(int64_t layer, std::span<const std::byte> key, std::span<const std::byte> value,
                int64_t ar, int64_t count);
  void Advance(int64_t count) { length_ += count; }
  // Going back to a common prefix. kInvalidArgument when length > length().
  Status Truncate(int64_t length);

 private:
  Geometry geometry_;
  int64_t length_ = 0, stride_ = 0;
  std::vector<std::vector<std::byte>> keys_, values_;
};

}  // namespace hexport::runtime
