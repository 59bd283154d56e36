#include "checkpoint/json_fields.h"

#include <limits>

namespace hexport::checkpoint {
namespace {

using nlohmann::json;

std::optional<int64_t> AsInt64(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

constexpr int kMaxDepth = 100;

// The JSON library's copies and dumps recurse, so deep nesting is refused before it is parsed.
bool IsTooDeep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

Result<json> ParseJsonObject(std::string_view text, const std::string& where) {
  if (IsTooDeep(text)) {
    return DataLoss(where + ": expected valid JSON nested at most " + std::to_string(kMaxDepth) +
                    " deep, got more");
  }
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) {
    return DataLoss(where + ": expected valid JSON, got " + std::to_string(text.size()) +
                    " bytes that are not; fetch the file again");
  }
  if (!parsed.is_object()) {
    return DataLoss(where + ": expected a JSON object, got " + std::string(parsed.type_name()));
  }
  return parsed;
}

std::string Excerpt(const json& value) {
  static constexpr size_t kLongest = 60;
  if (value.is_structured() && value.size() > 8) {
    return std::string("an ") + value.type_name() + " of " + std::to_string(value.size());
  }
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest - 3) + "...";
  return text;
}

const json* JsonFields::Find(std::string_view name) const {
  const auto found = json_.find(name);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

Status JsonFields::Mismatch(std::string_view name, std::string_view expected) const {
  const json* value = Find(name);
  return InvalidArgument(where_ + ": " + std::string(name) + ": expected " + std::string(expected) +
                         ", got " + (value == nullptr ? "nothing" : Excerpt(*value)));
}

Result<std::optional<int64_t>> JsonFields::OptionalInt(std::string_view name) const {
  const json* value = Find(name);
  if (value == nullptr) return std::optional<int64_t>();
  const std::optional<int64_t> number = AsInt64(*value);
  if (!number.has_value()) return Mismatch(name, "an integer");
  return number;
}

Result<int64_t> JsonFields::Int(std::string_view name) const {
  HEXPORT_ASSIGN_OR_RETURN(const std::optional<int64_t> value, OptionalInt(name));
  if (!value.has_value()) return Mismatch(name, "an integer");
  return *value;
}

Result<int64_t> JsonFields::Int(std::string_view name, int64_t otherwise) const {
  HEXPORT_ASSIGN_OR_RETURN(const std::optional<int64_t> value, OptionalInt(name));
  return value.value_or(otherwise);
}

Result<double> JsonFields::Number(std::string_view name) const {
  const json* value = Find(name);
  if (value == nullptr || !value->is_number()) return Mismatch(name, "a number");
  return value->get<double>();
}

Result<double> JsonFields::Number(std::string_view name, double otherwise) const {
  if (Find(name) == nullptr) return otherwise;
  return Number(name);
}

Result<bool> JsonFields::Bool(std::string_view name, bool otherwise) const {
  const json* value = Find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) return Mismatch(name, "true or false");
  return value->get<bool>();
}

Result<std::string> JsonFields::String(std::string_view name, std::string_view otherwise) const {
  const json* value = Find(name);
  if (value == nullptr) return std::string(otherwise);
  if (!value->is_string()) return Mismatch(name, "a string");
  return value->get<std::string>();
}

}  // namespace hexport::checkpoint
