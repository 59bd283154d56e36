#include <string>
#include <string_view>

#include "checkpoint/gguf_file.h"

namespace hexport::checkpoint {
namespace {

std::string_view KindOf(const GgufValue& value) {
  static constexpr std::string_view kKinds[] = {"an integer", "a 64-bit integer", "a number",
                                                "a bool",     "a string",         "an array"};
  return kKinds[value.index()];
}

}  // namespace

const GgufValue* GgufMetadata::Find(std::string_view key) const {
  const auto found = contents_.metadata.find(key);
  return found == contents_.metadata.end() ? nullptr : &found->second;
}

Status GgufMetadata::Mismatch(std::string_view key, std::string_view expected) const {
  const GgufValue* value = Find(key);
  const std::string message = where_ + ": " + std::string(key) + ": expected " +
                              std::string(expected) + ", got " +
                              (value == nullptr ? "nothing" : std::string(KindOf(*value)));
  if (value != nullptr && std::holds_alternative<GgufArray>(*value)) return Unimplemented(message);
  return InvalidArgument(message);
}

Result<int64_t> GgufMetadata::Int(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value != nullptr) {
    if (const auto* integer = std::get_if<int64_t>(value)) return *integer;
    if (const auto* big = std::get_if<uint64_t>(value);
        big != nullptr && *big <= uint64_t{INT64_MAX}) {
      return static_cast<int64_t>(*big);
    }
  }
  return Mismatch(key, "an integer");
}

Result<int64_t> GgufMetadata::Int(std::string_view key, int64_t otherwise) const {
  if (Find(key) == nullptr) return otherwise;
  return Int(key);
}

Result<double> GgufMetadata::Number(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value != nullptr) {
    if (const auto* number = std::get_if<double>(value)) return *number;
    if (const auto* integer = std::get_if<int64_t>(value)) return static_cast<double>(*integer);
  }
  return Mismatch(key, "a number");
}

Result<double> GgufMetadata::Number(std::string_view key, double otherwise) const {
  if (Find(key) == nullptr) return otherwise;
  return Number(key);
}

Result<bool> GgufMetadata::Bool(std::string_view key, bool otherwise) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return otherwise;
  if (const auto* flag = std::get_if<bool>(value)) return *flag;
  return Mismatch(key, "a bool");
}

Result<std::string_view> GgufMetadata::String(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value != nullptr) {
    if (const auto* text = std::get_if<std::string_view>(value)) return *text;
  }
  return Mismatch(key, "a string");
}

Result<std::string_view> GgufMetadata::String(std::string_view key,
                                              std::string_view otherwise) const {
  if (Find(key) == nullptr) return otherwise;
  return String(key);
}

Result<const GgufArray*> GgufMetadata::Array(std::string_view key, GgufType element_type) const {
  const GgufValue* value = Find(key);
  if (value != nullptr) {
    const auto* array = std::get_if<GgufArray>(value);
    if (array != nullptr && array->element_type == element_type) return array;
    if (array != nullptr) {
      return InvalidArgument(where_ + ": " + std::string(key) +
                             ": expected an array of another element type");
    }
  }
  return Mismatch(key, "an array");
}

}  // namespace hexport::checkpoint
