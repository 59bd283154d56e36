#include "bundle/json_reader.h"

#include <algorithm>
#include <sstream>

namespace hexport::bundle {

using nlohmann::json;

std::string Shown(const json& value) {
  std::string text;
  if (value.is_structured()) {  // a large one is not worth printing
    text = value.is_array() ? "a list of " + std::to_string(value.size()) : "an object";
  } else {
    text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  }
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

std::string PathFault(std::string_view path) {
  if (path.empty()) return "expected a path, got \"\"";
  if (path.front() == '/') return "expected a relative path, got an absolute one";
  for (const char c : path) {
    if (c == '\\') return "expected '/' between folders, got a backslash";
    if (c == ':' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      return "expected a file name without colons and control characters";
    }
  }
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") {
      return "expected a path inside the bundle, without empty, \".\" and \"..\" parts";
    }
    begin = end + 1;
  }
  return "";
}

JsonReader::JsonReader(const json& object, const std::string& where, std::string path,
                       Status& status)
    : object_(object), where_(where), path_(std::move(path)), status_(status) {}

std::string JsonReader::FieldPath(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

void JsonReader::FailAt(const std::string& field, const std::string& fault) {
  if (status_.ok()) status_ = InvalidArgument(where_ + ": " + field + ": " + fault);
}

void JsonReader::Fail(const char* key, const std::string& fault) { FailAt(FieldPath(key), fault); }

const json* JsonReader::Get(const char* key) {
  if (!status_.ok()) return nullptr;
  read_.insert(key);
  const auto found = object_.find(key);
  if (found == object_.end()) {
    Fail(key, "missing");
    return nullptr;
  }
  return &*found;
}

const json* JsonReader::GetList(const char* key) {
  const json* value = Get(key);
  if (value != nullptr && !value->is_array()) {
    Fail(key, "expected a list, got " + Shown(*value));
    return nullptr;
  }
  return value;
}

void JsonReader::String(const char* key, std::string& out) {
  const json* value = Get(key);
  if (value == nullptr) return;
  if (!value->is_string()) return Fail(key, "expected a string, got " + Shown(*value));
  out = value->get_ref<const std::string&>();
}

void JsonReader::Word(const char* key, std::string& out,
                      std::initializer_list<std::string_view> allowed) {
  const json* value = Get(key);
  if (value == nullptr) return;
  if (value->is_string()) out = value->get_ref<const std::string&>();
  if (value->is_string() && std::find(allowed.begin(), allowed.end(), out) != allowed.end()) return;
  std::string words;
  for (const std::string_view word : allowed) {
    words += (words.empty() ? "\"" : ", \"") + std::string(word) + "\"";
  }
  Fail(key, "expected one of " + words + ", got " + Shown(*value));
}

void JsonReader::ToPath(const json& value, const std::string& field, bool may_be_empty,
                        std::string& out) {
  if (!value.is_string()) return FailAt(field, "expected a string, got " + Shown(value));
  out = value.get_ref<const std::string&>();
  if (out.empty() && may_be_empty) return;
  const std::string fault = PathFault(out);
  if (!fault.empty()) FailAt(field, fault + " in " + Shown(value));
}

void JsonReader::Path(const char* key, std::string& out, bool may_be_empty) {
  if (const json* value = Get(key)) ToPath(*value, FieldPath(key), may_be_empty, out);
}

void JsonReader::Paths(const char* key, std::vector<std::string>& out) {
  const json* list = GetList(key);
  if (list == nullptr) return;
  out.resize(list->size());
  for (size_t i = 0; i < list->size() && status_.ok(); ++i) {
    ToPath((*list)[i], FieldPath(key) + "[" + std::to_string(i) + "]", /*may_be_empty=*/false,
           out[i]);
  }
}

void JsonReader::Real(const char* key, double& out, double low, double high) {
  const json* value = Get(key);
  if (value == nullptr) return;
  if (!value->is_number()) return Fail(key, "expected a number, got " + Shown(*value));
  out = value->get<double>();
  if (out >= low && out <= high) return;
  std::ostringstream range;
  range << "expected a number from " << low << " to " << high << ", got " << Shown(*value);
  Fail(key, range.str());
}

void JsonReader::Strings(const char* key, std::vector<std::string>& out) {
  const json* list = GetList(key);
  if (list == nullptr) return;
  for (const json& value : *list) {
    if (!value.is_string()) return Fail(key, "expected a list of strings, got " + Shown(value));
    out.push_back(value.get<std::string>());
  }
}

void JsonReader::Reals(const char* key, std::vector<double>& out, double low, double high) {
  const json* list = GetList(key);
  if (list == nullptr) return;
  for (const json& value : *list) {
    const bool good =
        value.is_number() && value.get<double>() >= low && value.get<double>() <= high;
    if (!good) {
      std::ostringstream range;
      range << "expected numbers from " << low << " to " << high << ", got " << Shown(value);
      return Fail(key, range.str());
    }
    out.push_back(value.get<double>());
  }
}

bool JsonReader::ToInteger(const json& value, const std::string& field, int64_t low, int64_t high,
                           int64_t& out) {
  bool good = value.is_number_integer();
  if (good && value.is_number_unsigned()) good = value.get<uint64_t>() <= uint64_t{INT64_MAX};
  if (good) out = value.get<int64_t>();
  if (good && out >= low && out <= high) return true;
  std::string expected = "an integer from " + std::to_string(low) + " to " + std::to_string(high);
  if (low == 1 && (!good || out < 1)) expected = "a positive integer";
  FailAt(field, "expected " + expected + ", got " + Shown(value));
  return false;
}

void JsonReader::Integer(const char* key, int64_t& out, int64_t low, int64_t high) {
  if (const json* value = Get(key)) ToInteger(*value, FieldPath(key), low, high, out);
}

void JsonReader::Integer(const char* key, int& out, int64_t low, int64_t high) {
  int64_t wide = 0;
  const json* value = Get(key);
  if (value != nullptr && ToInteger(*value, FieldPath(key), low, high, wide)) {
    out = static_cast<int>(wide);
  }
}

void JsonReader::Integers(const char* key, std::vector<int64_t>& out, int64_t low, int64_t high) {
  const json* list = GetList(key);
  if (list == nullptr) return;
  out.resize(list->size());
  for (size_t i = 0; i < list->size() && status_.ok(); ++i) {
    ToInteger((*list)[i], FieldPath(key) + "[" + std::to_string(i) + "]", low, high, out[i]);
  }
}

void JsonReader::Finish() {
  for (auto field = object_.begin(); status_.ok() && field != object_.end(); ++field) {
    if (read_.find(field.key()) == read_.end()) FailAt(FieldPath(field.key()), "unknown field");
  }
}

}  // namespace hexport::bundle
