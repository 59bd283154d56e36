#include "runtime/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

namespace hexport::runtime {
namespace {

// uint8 caches are symmetric around code 128; float zero is all zero bits.
std::byte ZeroByte(DType dtype) { return dtype == DType::kUInt8 ? std::byte{128} : std::byte{0}; }

size_t Size(int64_t value) { return static_cast<size_t>(value); }

// `rows` rows of `row` bytes each, of which the first `used` count, become rows of `new_row` bytes.
// Growing runs backwards so that a row's new place never covers an old row that is still to be
// moved.
void MoveRows(std::byte* data, size_t rows, size_t row, size_t new_row, size_t used,
              std::byte zero) {
  const auto move = [&](size_t i) { std::memmove(data + i * new_row, data + i * row, used); };
  if (new_row > row) {
    for (size_t i = rows; i-- > 0;) {
      move(i);
      std::memset(data + i * new_row + used, static_cast<int>(zero), new_row - used);
    }
  } else {
    for (size_t i = 0; i < rows; ++i) {
      move(i);
      std::memset(data + i * new_row + used, static_cast<int>(zero), new_row - used);
    }
  }
}

}  // namespace

Result<KvCache> KvCache::Create(const Geometry& geometry) {
  const bool known = geometry.dtype == DType::kUInt8 || geometry.dtype == DType::kFloat32;
  if (!known || geometry.layers < 1 || geometry.num_key_value_heads < 1 || geometry.head_dim < 1 ||
      geometry.context_length < 2) {
    return InvalidArgument("KV cache: expected uint8 or float32 and positive sizes, got " +
                           std::string(DTypeName(geometry.dtype)) + " " +
                           ShapeString({geometry.layers, geometry.num_key_value_heads,
                                        geometry.head_dim, geometry.context_length}));
  }
  KvCache cache;
  cache.geometry_ = geometry;
  cache.stride_ = geometry.context_length - 1;
  const int64_t bytes =
      NumBytes(geometry.dtype, {geometry.num_key_value_heads, geometry.head_dim, cache.stride_});
  const std::string shown =
      std::to_string(geometry.layers) + " layers of 2 x " + std::to_string(bytes) + " bytes";
  if (bytes < 0) return ResourceExhausted("KV cache: too large to count");
  try {
    const std::vector<std::byte> zero(Size(bytes), ZeroByte(geometry.dtype));
    cache.keys_.assign(Size(geometry.layers), zero);
    cache.values_.assign(Size(geometry.layers), zero);
  } catch (const std::exception&) {
    return ResourceExhausted("KV cache: no memory for " + shown + "; use a shorter context");
  }
  return cache;
}

Status KvCache::Restride(int64_t stride) {
  if (stride < 0 || stride > geometry_.context_length - 1) {
    return InvalidArgument("KV cache: expected a stride from 0 to " +
                           std::to_string(geometry_.context_length - 1) + ", got " +
                           std::to_string(stride));
  }
  if (length_ > stride) {
    return ResourceExhausted("KV cache: " + std::to_string(length_) +
                             " tokens do not fit a stride of " + std::to_string(stride));
  }
  if (stride == stride_) return OkStatus();
  const size_t element = Size(DTypeBits(geometry_.dtype) / 8);
  const size_t heads = Size(geometry_.num_key_value_heads), dim = Size(geometry_.head_dim);
  const std::byte zero = ZeroByte(geometry_.dtype);
  for (std::vector<std::byte>& key : keys_) {  // [H, D, stride]: a row for every head and dimension
    MoveRows(key.data(), heads * dim, Size(stride_) * element, Size(stride) * element,
             Size(length_) * element, zero);
  }
  for (std::vector<std::byte>& value : values_) {  // [H, stride, D]: a row for every head
    MoveRows(value.data(), heads, Size(stride_) * dim * element, Size(stride) * dim * element,
             Size(length_) * dim * element, zero);
  }
  stride_ = stride;
  return OkStatus();
}

std::span<const std::byte> KvCache::Key(int64_t layer) const {
  const int64_t bytes =
      NumBytes(geometry_.dtype, {geometry_.num_key_value_heads, geometry_.head_dim, stride_});
  return std::span<const std::byte>(keys_[Size(layer)]).first(Size(bytes));
}

std::span<const std::byte> KvCache::Value(int64_t layer) const {
  const int64_t bytes =
      NumBytes(geometry_.dtype, {geometry_.num_key_value_heads, geometry_.head_dim, stride_});
  return std::span<const std::byte>(values_[Size(layer)]).first(Size(bytes));
}

Status KvCache::Append(int64_t layer, std::span<const std::byte> key,
                       std::span<const std::byte> value, int64_t ar, int64_t count) {
  const int64_t expected =
      ar < 0 ? -1
             : NumBytes(geometry_.dtype, {geometry_.num_key_value_heads, geometry_.head_dim, ar});
  if (layer < 0 || layer >= geometry_.layers || count < 0 || count > ar || expected < 0 ||
      key.size() != Size(expected) || value.size() != Size(expected)) {
    return InvalidArgument("KV cache: layer " + std::to_string(layer) + ": expected " +
                           std::to_string(expected) + " bytes of key and value for " +
                           std::to_string(ar) + " tokens, got " + std::to_string(key.size()) +
                           " and " + std::to_string(value.size()) + ", " + std::to_string(count) +
                           " of them valid");
  }
  if (count > stride_ - length_) {
    return ResourceExhausted("KV cache: " + std::to_string(length_) + " + " +
                             std::to_string(count) + " tokens do not fit a stride of " +
                             std::to_string(stride_));
  }
  const size_t element = Size(DTypeBits(geometry_.dtype) / 8);
  const size_t heads = Size(geometry_.num_key_value_heads), dim = Size(geometry_.head_dim);
  std::byte* keys = keys_[Size(layer)].data();
  for (size_t row = 0; row < heads * dim; ++row) {
    std::memcpy(keys + (row * Size(stride_) + Size(length_)) * element,
                key.data() + row * Size(ar) * element, Size(count) * element);
  }
  std::byte* values = values_[Size(layer)].data();
  for (size_t head = 0; head < heads; ++head) {
    std::memcpy(values + (head * Size(stride_) + Size(length_)) * dim * element,
                value.data() + head * Size(ar) * dim * element, Size(count) * dim * element);
  }
  return OkStatus();
}

Status KvCache::Truncate(int64_t length) {
  if (length < 0 || length > length_) {
    return InvalidArgument("KV cache: expected a length from 0 to " + std::to_string(length_) +
                           ", got " + std::to_string(length));
  }
  length_ = length;
  return OkStatus();
}

}  // namespace hexport::runtime
