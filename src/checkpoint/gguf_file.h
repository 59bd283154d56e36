// The GGUF container, versions 2 and 3, little-endian: header, metadata, tensor table, aligned
// data. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "checkpoint/block_format.h"

namespace hexport::checkpoint {

// The numbers are the format's.
enum class GgufType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

// Numbers are widened; arrays of arrays are checked but their elements are not kept.
struct GgufArray {
  GgufType element_type = GgufType::kUint8;
  uint64_t count = 0;
  std::vector<int64_t> integers;  // integers and bools
  std::vector<double> numbers;    // floats
  std::vector<std::string_view> strings;
};

// float32 becomes the double of the same shortest decimal: 1e-05, not 9.99999974737875e-06.
using GgufValue = std::variant<int64_t, uint64_t, double, bool, std::string_view, GgufArray>;

struct GgufTensor {
  std::string_view name;
  Shape shape;  // row-major: the file's dimensions in reverse order
  const BlockFormat* format = nullptr;
  uint64_t offset = 0;  // absolute
  uint64_t bytes = 0;
};

struct GgufContents {
  uint32_t version = 0;
  std::map<std::string_view, GgufValue> metadata;
  std::vector<GgufTensor> tensors;
};

// Parses and checks everything against the file's size. Views point into `file`, which must outlive
// the result. Memory stays within a small multiple of file.size(), whatever the header claims.
// Errors: kDataLoss ("where@offset: ..., expected, got") for anything broken; kUnimplemented for
// version 1, a big-endian file, or an unknown tensor type.
Result<GgufContents> ParseGguf(std::span<const std::byte> file, const std::string& where);

// Typed metadata. `otherwise` overloads return it when the key is absent. Errors: kInvalidArgument
// for an absent key or a wrong type, kUnimplemented for an array where one value is expected
// (per-layer sizes).
class GgufMetadata {
 public:
  GgufMetadata(const GgufContents& contents, std::string where)
      : contents_(contents), where_(std::move(where)) {}
  const GgufValue* Find(std::string_view key) const;  // nullptr when absent
  Result<int64_t> Int(std::string_view key) const;
  Result<int64_t> Int(std::string_view key, int64_t otherwise) const;
  Result<double> Number(std::string_view key) const;
  Result<double> Number(std::string_view key, double otherwise) const;
  Result<bool> Bool(std::string_view key, bool otherwise) const;
  Result<std::string_view> String(std::string_view key) const;
  Result<std::string_view> String(std::string_view key, std::string_view otherwise) const;
  Result<const GgufArray*> Array(std::string_view key, GgufType element_type) const;
  const std::string& where() const { return where_; }

 private:
  Status Mismatch(std::string_view key, std::string_view expected) const;
  const GgufContents& contents_;
  std::string where_;
};

}  // namespace hexport::checkpoint
