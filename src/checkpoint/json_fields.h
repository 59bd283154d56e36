// Typed reading of JSON fields with errors that name the field, for the .cc files of readers.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace hexport::checkpoint {

// Parses text that must hold one JSON object, nested at most 100 deep. kDataLoss names `where`.
Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& where);

// Fields of one JSON object. A field that is null counts as absent. All errors are
// kInvalidArgument: "where: field: expected an integer, got "12"".
class JsonFields {
 public:
  // Both must outlive this object. `json` is an object.
  JsonFields(const nlohmann::json& json, std::string where)
      : json_(json), where_(std::move(where)) {}

  const nlohmann::json* Find(std::string_view name) const;  // nullptr when absent or null
  bool Contains(std::string_view name) const { return json_.contains(name); }  // also when null
  const nlohmann::json& object() const { return json_; }
  Result<std::optional<int64_t>> OptionalInt(std::string_view name) const;
  Result<int64_t> Int(std::string_view name) const;
  Result<int64_t> Int(std::string_view name, int64_t otherwise) const;
  Result<double> Number(std::string_view name) const;
  Result<double> Number(std::string_view name, double otherwise) const;
  Result<bool> Bool(std::string_view name, bool otherwise) const;
  Result<std::string> String(std::string_view name, std::string_view otherwise) const;
  const std::string& where() const { return where_; }

  // kInvalidArgument: "where: name: expected `expected`, got <short JSON of the value>".
  Status Mismatch(std::string_view name, std::string_view expected) const;

 private:
  const nlohmann::json& json_;
  std::string where_;
};

// At most 60 characters of the value's JSON, for messages.
std::string Excerpt(const nlohmann::json& value);

}  // namespace hexport::checkpoint
