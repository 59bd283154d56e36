#include "checkpoint/gguf_file.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

namespace hexport::checkpoint {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF", little-endian
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr uint64_t kMaxDimensions = 4;
constexpr uint64_t kMaxNameBytes = 1024;
constexpr int kMaxArrayDepth = 4;
constexpr uint64_t kMaxArrayCount = 1 << 24;         // four times the largest vocabulary allowed
constexpr uint64_t kSmallestMetadata = 8 + 4 + 1;    // empty key, type, one byte
constexpr uint64_t kSmallestTensor = 8 + 4 + 4 + 8;  // empty name, no dimension, type, offset
// The double with the same shortest decimal text as the float.
double Decimal(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double number = static_cast<double>(value);
  std::from_chars(text, end, number);
  return number;
}

// Bytes of a fixed-size type; 0 for string and array.
uint64_t FixedBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

// Reads forward with every step checked against the end.
class Cursor {
 public:
  Cursor(std::span<const std::byte> file, const std::string& where) : file_(file), where_(where) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return file_.size() - position_; }

  Status Error(uint64_t offset, std::string_view what) const {
    return DataLoss(where_ + "@" + std::to_string(offset) + ": " + std::string(what));
  }

  template <typename T>
  Result<T> Read(std::string_view what) {
    if (left() < sizeof(T)) return Truncated(what, sizeof(T));
    T value;
    std::memcpy(&value, file_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  Result<std::string_view> ReadString(std::string_view what) {
    const uint64_t start = position_;
    HEXPORT_ASSIGN_OR_RETURN(const uint64_t size, Read<uint64_t>(what));
    if (size > left()) {
      return Error(start, std::string(what) + ": expected at most " + std::to_string(left()) +
                              " bytes (end of file), got " + std::to_string(size));
    }
    const std::string_view text(reinterpret_cast<const char*>(file_.data()) + position_, size);
    position_ += size;
    return text;
  }

  // A count of things that take at least `smallest` bytes each.
  Status CheckCount(uint64_t offset, std::string_view what, uint64_t count,
                    uint64_t smallest) const {
    if (count <= left() / smallest) return OkStatus();
    return Error(offset, std::string(what) + ": expected at most " +
                             std::to_string(left() / smallest) + " in the rest of the file, got " +
                             std::to_string(count));
  }

 private:
  Status Truncated(std::string_view what, uint64_t wanted) const {
    return Error(position_, std::string(what) + ": expected " + std::to_string(wanted) +
                                " bytes, got the end of the file after " + std::to_string(left()));
  }

  std::span<const std::byte> file_;
  const std::string& where_;
  uint64_t position_ = 0;
};

Result<GgufType> ReadType(Cursor& cursor, std::string_view key) {
  const uint64_t offset = cursor.position();
  HEXPORT_ASSIGN_OR_RETURN(const uint32_t type, cursor.Read<uint32_t>("value type"));
  if (type > static_cast<uint32_t>(GgufType::kFloat64)) {
    return cursor.Error(
        offset, std::string(key) + ": value type: expected 0 to 12, got " + std::to_string(type));
  }
  return static_cast<GgufType>(type);
}

template <typename T>
Result<GgufValue> ReadInteger(Cursor& cursor, std::string_view key) {
  HEXPORT_ASSIGN_OR_RETURN(const T value, cursor.Read<T>(key));
  return GgufValue(static_cast<int64_t>(value));
}

// Any type but array.
Result<GgufValue> ReadScalar(Cursor& cursor, GgufType type, std::string_view key) {
  const uint64_t offset = cursor.position();
  switch (type) {
    case GgufType::kUint8:
      return ReadInteger<uint8_t>(cursor, key);
    case GgufType::kInt8:
      return ReadInteger<int8_t>(cursor, key);
    case GgufType::kUint16:
      return ReadInteger<uint16_t>(cursor, key);
    case GgufType::kInt16:
      return ReadInteger<int16_t>(cursor, key);
    case GgufType::kUint32:
      return ReadInteger<uint32_t>(cursor, key);
    case GgufType::kInt32:
      return ReadInteger<int32_t>(cursor, key);
    case GgufType::kInt64:
      return ReadInteger<int64_t>(cursor, key);
    case GgufType::kUint64: {
      HEXPORT_ASSIGN_OR_RETURN(const uint64_t value, cursor.Read<uint64_t>(key));
      return GgufValue(value);
    }
    case GgufType::kFloat32: {
      HEXPORT_ASSIGN_OR_RETURN(const float value, cursor.Read<float>(key));
      return GgufValue(Decimal(value));
    }
    case GgufType::kFloat64: {
      HEXPORT_ASSIGN_OR_RETURN(const double value, cursor.Read<double>(key));
      return GgufValue(value);
    }
    case GgufType::kBool: {
      HEXPORT_ASSIGN_OR_RETURN(const uint8_t value, cursor.Read<uint8_t>(key));
      if (value > 1) {
        return cursor.Error(
            offset, std::string(key) + ": bool: expected 0 or 1, got " + std::to_string(value));
      }
      return GgufValue(value == 1);
    }
    case GgufType::kString: {
      HEXPORT_ASSIGN_OR_RETURN(const std::string_view value, cursor.ReadString(key));
      return GgufValue(value);
    }
    case GgufType::kArray:
      break;
  }
  return Internal("gguf: an array is not a scalar");
}

Result<GgufArray> ReadArray(Cursor& cursor, std::string_view key, int depth) {
  GgufArray array;
  HEXPORT_ASSIGN_OR_RETURN(array.element_type, ReadType(cursor, key));
  const uint64_t offset = cursor.position();
  HEXPORT_ASSIGN_OR_RETURN(array.count, cursor.Read<uint64_t>("array count"));
  const bool nested = array.element_type == GgufType::kArray;
  const uint64_t smallest = nested ? 12 : std::max<uint64_t>(FixedBytes(array.element_type), 1);
  HEXPORT_RETURN_IF_ERROR(cursor.CheckCount(
      offset, key, array.count, array.element_type == GgufType::kString ? 8 : smallest));
  if (array.count > kMaxArrayCount) {
    return cursor.Error(offset, std::string(key) + ": expected at most " +
                                    std::to_string(kMaxArrayCount) + " elements, got " +
                                    std::to_string(array.count));
  }
  if (nested && depth >= kMaxArrayDepth) {
    return cursor.Error(offset, std::string(key) + ": expected arrays nested at most " +
                                    std::to_string(kMaxArrayDepth) + " deep, got more");
  }
  for (uint64_t i = 0; i < array.count; ++i) {
    if (nested) {
      HEXPORT_RETURN_IF_ERROR(ReadArray(cursor, key, depth + 1).status());
      continue;
    }
    HEXPORT_ASSIGN_OR_RETURN(const GgufValue value, ReadScalar(cursor, array.element_type, key));
    if (const auto* text = std::get_if<std::string_view>(&value)) array.strings.push_back(*text);
    if (const auto* number = std::get_if<double>(&value)) array.numbers.push_back(*number);
    if (const auto* integer = std::get_if<int64_t>(&value)) array.integers.push_back(*integer);
    if (const auto* flag = std::get_if<bool>(&value)) array.integers.push_back(*flag ? 1 : 0);
    if (const auto* big = std::get_if<uint64_t>(&value)) {
      constexpr auto kHighest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
      array.integers.push_back(static_cast<int64_t>(std::min(*big, kHighest)));
    }
  }
  return array;
}

Status ReadMetadata(Cursor& cursor, uint64_t count, GgufContents& contents) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t offset = cursor.position();
    HEXPORT_ASSIGN_OR_RETURN(const std::string_view key, cursor.ReadString("metadata key"));
    if (key.size() > kMaxNameBytes) {
      return cursor.Error(
          offset, "metadata key: expected at most 1024 bytes, got " + std::to_string(key.size()));
    }
    HEXPORT_ASSIGN_OR_RETURN(const GgufType type, ReadType(cursor, key));
    GgufValue value;
    if (type == GgufType::kArray) {
      HEXPORT_ASSIGN_OR_RETURN(value, ReadArray(cursor, key, 1));
    } else {
      HEXPORT_ASSIGN_OR_RETURN(value, ReadScalar(cursor, type, key));
    }
    if (!contents.metadata.emplace(key, std::move(value)).second) {
      return cursor.Error(offset,
                          "metadata: expected every key once, got again " + std::string(key));
    }
  }
  return OkStatus();
}

// Fills everything but the absolute offset: `tensor.offset` is relative to the data.
Status ReadTensor(Cursor& cursor, const std::string& where, GgufTensor& tensor) {
  const uint64_t start = cursor.position();
  HEXPORT_ASSIGN_OR_RETURN(tensor.name, cursor.ReadString("tensor name"));
  if (tensor.name.size() > kMaxNameBytes) {
    return cursor.Error(start, "tensor name: expected at most 1024 bytes, got " +
                                   std::to_string(tensor.name.size()));
  }
  const std::string name(tensor.name);
  const uint64_t offset = cursor.position();
  HEXPORT_ASSIGN_OR_RETURN(const uint32_t rank, cursor.Read<uint32_t>("dimension count"));
  if (rank > kMaxDimensions) {
    return cursor.Error(offset,
                        name + ": dimensions: expected at most 4, got " + std::to_string(rank));
  }
  for (uint32_t i = 0; i < rank; ++i) {
    HEXPORT_ASSIGN_OR_RETURN(const uint64_t size, cursor.Read<uint64_t>("dimension"));
    tensor.shape.insert(tensor.shape.begin(),
                        size > uint64_t{INT64_MAX} ? -1 : static_cast<int64_t>(size));
  }
  const int64_t count = NumElements(tensor.shape);
  if (count < 0)
    return cursor.Error(offset, name + ": expected a shape below 2^63 values, got more");
  const uint64_t type_offset = cursor.position();
  HEXPORT_ASSIGN_OR_RETURN(const uint32_t type, cursor.Read<uint32_t>("tensor type"));
  tensor.format = FindBlockFormat(type);
  if (tensor.format == nullptr) {
    return Unimplemented(where + "@" + std::to_string(type_offset) + ": " + name +
                         ": expected a known tensor type, got number " + std::to_string(type));
  }
  const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  if (row % tensor.format->elements != 0) {
    return cursor.Error(
        offset, name + ": " + std::string(tensor.format->name) + ": expected rows in blocks of " +
                    std::to_string(tensor.format->elements) + ", got " + std::to_string(row));
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(count / tensor.format->elements, tensor.format->bytes, &bytes)) {
    return cursor.Error(offset,
                        name + ": expected below 2^63 bytes, got " + ShapeString(tensor.shape));
  }
  tensor.bytes = static_cast<uint64_t>(bytes);
  HEXPORT_ASSIGN_OR_RETURN(tensor.offset, cursor.Read<uint64_t>("tensor offset"));
  return OkStatus();
}

// Makes offsets absolute and checks alignment, the end of the file, and that no two tensors
// overlap.
Status PlaceTensors(const Cursor& cursor, uint64_t alignment, uint64_t file_size,
                    std::vector<GgufTensor>& tensors) {
  const uint64_t table_end = cursor.position();
  const uint64_t data_begin = (table_end + alignment - 1) / alignment * alignment;
  std::set<std::string_view> names;
  std::vector<const GgufTensor*> order;
  for (GgufTensor& tensor : tensors) {
    const std::string name(tensor.name);
    if (!names.insert(tensor.name).second) {
      return cursor.Error(table_end, "tensors: expected every name once, got again " + name);
    }
    if (tensor.offset % alignment != 0) {
      return cursor.Error(table_end, name + ": offset: expected a multiple of " +
                                         std::to_string(alignment) + ", got " +
                                         std::to_string(tensor.offset));
    }
    const uint64_t room = file_size > data_begin ? file_size - data_begin : 0;
    if (tensor.offset > room || tensor.bytes > room - tensor.offset) {
      return cursor.Error(data_begin, name + ": expected " + std::to_string(tensor.bytes) +
                                          " bytes at data offset " + std::to_string(tensor.offset) +
                                          ", got a file with " + std::to_string(room) +
                                          " bytes of data (truncated?); fetch it again");
    }
    tensor.offset += data_begin;
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const GgufTensor* a, const GgufTensor* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset) {
      return cursor.Error(order[i]->offset, std::string(order[i]->name) +
                                                ": expected room of its own, "
                                                "got an overlap with " +
                                                std::string(order[i - 1]->name));
    }
  }
  return OkStatus();
}

Result<uint64_t> Alignment(const Cursor& cursor, const GgufContents& contents) {
  const auto found = contents.metadata.find("general.alignment");
  if (found == contents.metadata.end()) return kDefaultAlignment;
  const auto* value = std::get_if<int64_t>(&found->second);
  if (value == nullptr || *value < 1 || static_cast<uint64_t>(*value) > kMaxAlignment ||
      !std::has_single_bit(static_cast<uint64_t>(*value))) {
    return cursor.Error(cursor.position(),
                        "general.alignment: expected a power of two up to 2^20, got " +
                            (value == nullptr ? "another type" : std::to_string(*value)));
  }
  return static_cast<uint64_t>(*value);
}

}  // namespace

Result<GgufContents> ParseGguf(std::span<const std::byte> file, const std::string& where) {
  Cursor cursor(file, where);
  HEXPORT_ASSIGN_OR_RETURN(const uint32_t magic, cursor.Read<uint32_t>("magic"));
  if (magic != kMagic) return cursor.Error(0, "magic: expected \"GGUF\", got something else");
  GgufContents contents;
  HEXPORT_ASSIGN_OR_RETURN(contents.version, cursor.Read<uint32_t>("version"));
  if (contents.version != 2 && contents.version != 3) {
    const bool swapped = contents.version == 0x02000000 || contents.version == 0x03000000;
    return Unimplemented(where + "@4: version: expected 2 or 3, little-endian, got " +
                         (swapped ? "a big-endian file" : std::to_string(contents.version)));
  }
  HEXPORT_ASSIGN_OR_RETURN(const uint64_t tensor_count, cursor.Read<uint64_t>("tensor count"));
  HEXPORT_ASSIGN_OR_RETURN(const uint64_t value_count, cursor.Read<uint64_t>("metadata count"));
  HEXPORT_RETURN_IF_ERROR(cursor.CheckCount(8, "tensor count", tensor_count, kSmallestTensor));
  HEXPORT_RETURN_IF_ERROR(cursor.CheckCount(16, "metadata count", value_count, kSmallestMetadata));
  HEXPORT_RETURN_IF_ERROR(ReadMetadata(cursor, value_count, contents));
  HEXPORT_RETURN_IF_ERROR(
      cursor.CheckCount(cursor.position(), "tensor count", tensor_count, kSmallestTensor));
  contents.tensors.resize(tensor_count);
  for (GgufTensor& tensor : contents.tensors) {
    HEXPORT_RETURN_IF_ERROR(ReadTensor(cursor, where, tensor));
  }
  HEXPORT_ASSIGN_OR_RETURN(const uint64_t alignment, Alignment(cursor, contents));
  HEXPORT_RETURN_IF_ERROR(PlaceTensors(cursor, alignment, file.size(), contents.tensors));
  return contents;
}

}  // namespace hexport::checkpoint
