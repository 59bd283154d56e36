// Builds GGUF bytes, honest or lying, for tests only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf_file.h"

namespace hexport::checkpoint::testing {

class GgufBuilder {
 public:
  template <typename T>
  GgufBuilder& Value(std::string_view key, GgufType type, T value) {
    Key(key, type);
    Append(metadata_, value);
    return *this;
  }
  GgufBuilder& Uint32(std::string_view key, uint32_t value) {
    return Value(key, GgufType::kUint32, value);
  }
  GgufBuilder& Float32(std::string_view key, float value) {
    return Value(key, GgufType::kFloat32, value);
  }
  GgufBuilder& Bool(std::string_view key, bool value) {
    return Value(key, GgufType::kBool, static_cast<uint8_t>(value ? 1 : 0));
  }
  GgufBuilder& String(std::string_view key, std::string_view value) {
    Key(key, GgufType::kString);
    AppendString(metadata_, value);
    return *this;
  }
  GgufBuilder& Strings(std::string_view key, const std::vector<std::string>& values) {
    Array(key, GgufType::kString, values.size());
    for (const std::string& value : values) AppendString(metadata_, value);
    return *this;
  }
  template <typename T>
  GgufBuilder& Numbers(std::string_view key, GgufType element_type, const std::vector<T>& values) {
    Array(key, element_type, values.size());
    for (const T value : values) Append(metadata_, value);
    return *this;
  }
  // Only the array's head: element bytes are the caller's (Raw) or missing.
  GgufBuilder& Array(std::string_view key, GgufType element_type, uint64_t count) {
    Key(key, GgufType::kArray);
    Append(metadata_, static_cast<uint32_t>(element_type));
    Append(metadata_, count);
    return *this;
  }
  template <typename T>
  GgufBuilder& Raw(T value) {
    Append(metadata_, value);
    return *this;
  }
  // dimensions: innermost first, as in the file. `data` is appended at the next multiple of 32.
  GgufBuilder& Tensor(std::string_view name, const std::vector<uint64_t>& dimensions, uint32_t type,
                      std::string_view data) {
    data_.resize((data_.size() + 31) / 32 * 32, '\0');
    TensorAt(name, dimensions, type, data_.size());
    data_ += data;
    return *this;
  }
  GgufBuilder& TensorAt(std::string_view name, const std::vector<uint64_t>& dimensions,
                        uint32_t type, uint64_t offset) {
    AppendString(table_, name);
    Append(table_, static_cast<uint32_t>(dimensions.size()));
    for (const uint64_t dimension : dimensions) Append(table_, dimension);
    Append(table_, type);
    Append(table_, offset);
    ++tensor_count_;
    return *this;
  }

  uint32_t magic = 0x46554747;
  uint32_t version = 3;
  int64_t extra_tensors = 0, extra_values = 0;  // lies: added to the counts

  std::string Build() const {
    std::string file;
    Append(file, magic);
    Append(file, version);
    Append(file, tensor_count_ + static_cast<uint64_t>(extra_tensors));
    Append(file, value_count_ + static_cast<uint64_t>(extra_values));
    file += metadata_ + table_;
    file.resize((file.size() + 31) / 32 * 32, '\0');
    return file + data_;
  }

 private:
  template <typename T>
  static void Append(std::string& out, T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    out.append(bytes, sizeof(T));
  }
  static void AppendString(std::string& out, std::string_view text) {
    Append(out, static_cast<uint64_t>(text.size()));
    out += text;
  }
  void Key(std::string_view key, GgufType type) {
    AppendString(metadata_, key);
    Append(metadata_, static_cast<uint32_t>(type));
    ++value_count_;
  }

  std::string metadata_, table_, data_;
  uint64_t tensor_count_ = 0, value_count_ = 0;
};

inline std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

}  // namespace hexport::checkpoint::testing
