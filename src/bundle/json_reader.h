// Strict reading of a JSON object, field by field, with the field's path in every message. Private
// to src/bundle: the JSON library does not show in public headers.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace hexport::bundle {

// The value as a message shows it: JSON, cut after 60 bytes.
std::string Shown(const nlohmann::json& value);

// Why `path` may not stand in a manifest ("" when it may): it must be relative, with '/', without
// empty, "." and
// ".." parts, backslashes, colons and control characters.
std::string PathFault(std::string_view path);

// Reads one object. The first fault is kept in `status` (kInvalidArgument), later calls then do
// nothing. Every field is required, and Finish() refuses those that nobody read.
class JsonReader {
 public:
  // All references must outlive the reader. `path`: "" for the root, else "graphs[0]".
  JsonReader(const nlohmann::json& object, const std::string& where, std::string path,
             Status& status);

  void String(const char* key, std::string& out);
  void Word(const char* key, std::string& out, std::initializer_list<std::string_view> allowed);
  void Path(const char* key, std::string& out, bool may_be_empty = true);
  void Strings(const char* key, std::vector<std::string>& out);
  void Paths(const char* key, std::vector<std::string>& out);
  void Real(const char* key, double& out, double low, double high);
  void Reals(const char* key, std::vector<double>& out, double low, double high);
  void Integer(const char* key, int64_t& out, int64_t low, int64_t high);
  void Integer(const char* key, int& out, int64_t low, int64_t high);
  void Integers(const char* key, std::vector<int64_t>& out, int64_t low, int64_t high);
  // read(JsonReader, T&) for the object, or for each object of the list.
  template <typename T>
  void Object(const char* key, T& out, void (*read)(JsonReader, T&)) {
    if (const nlohmann::json* value = Get(key)) ReadObject(*value, FieldPath(key), out, read);
  }
  template <typename T>
  void Objects(const char* key, std::vector<T>& out, void (*read)(JsonReader, T&)) {
    const nlohmann::json* list = GetList(key);
    if (list == nullptr) return;
    out.resize(list->size());
    for (size_t i = 0; i < list->size() && status_.ok(); ++i) {
      ReadObject((*list)[i], FieldPath(key) + "[" + std::to_string(i) + "]", out[i], read);
    }
  }
  void Fail(const char* key, const std::string& fault);
  void Finish();

 private:
  const nlohmann::json* Get(const char* key);      // null after any fault
  const nlohmann::json* GetList(const char* key);  // the same
  std::string FieldPath(std::string_view key) const;
  void FailAt(const std::string& field, const std::string& fault);
  bool ToInteger(const nlohmann::json& value, const std::string& field, int64_t low, int64_t high,
                 int64_t& out);
  void ToPath(const nlohmann::json& value, const std::string& field, bool may_be_empty,
              std::string& out);
  template <typename T>
  void ReadObject(const nlohmann::json& value, const std::string& field, T& out,
                  void (*read)(JsonReader, T&)) {
    if (!value.is_object()) return FailAt(field, "expected an object, got " + Shown(value));
    read(JsonReader(value, where_, field, status_), out);
  }

  const nlohmann::json& object_;
  const std::string& where_;
  std::string path_;
  Status& status_;
  std::set<std::string, std::less<>> read_;
};

}  // namespace hexport::bundle
