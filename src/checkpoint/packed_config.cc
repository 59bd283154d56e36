#include "checkpoint/packed_config.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>

namespace hexport::checkpoint {
namespace {

constexpr std::string_view kField = "quantization_config";

Status Refuse(const JsonFields& fields, std::string_view name, std::string_view expected) {
  return Unimplemented(std::string(fields.Mismatch(name, expected).message()) +
                       "; dequantize the checkpoint and save it as float weights");
}

// Which of `words` the field is, in lower case. Absent counts as the first.
Result<size_t> Choice(const JsonFields& fields, std::string_view name,
                      std::initializer_list<std::string_view> words) {
  HEXPORT_ASSIGN_OR_RETURN(std::string word, fields.String(name, *words.begin()));
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto* found = std::find(words.begin(), words.end(), word);
  if (found != words.end()) return static_cast<size_t>(found - words.begin());
  std::string expected;
  for (const std::string_view each : words)
    expected += (expected.empty() ? "" : " or ") + std::string(each);
  return Refuse(fields, name, expected);
}

// Absent, null, false or empty.
Status RequireOff(const JsonFields& fields, std::string_view name) {
  const nlohmann::json* value = fields.Find(name);
  const bool off = value == nullptr || *value == nlohmann::json(false) ||
                   (value->is_structured() && value->empty());
  return off ? OkStatus() : Refuse(fields, name, "none");
}

Status ParseGptq(const JsonFields& fields, PackedConfig& config) {
  HEXPORT_ASSIGN_OR_RETURN(const size_t format,
                           Choice(fields, "checkpoint_format", {"gptq", "gptq_v2"}));
  config.zeros_minus_one = format == 0;
  HEXPORT_ASSIGN_OR_RETURN(config.desc_act, fields.Bool("desc_act", false));
  HEXPORT_RETURN_IF_ERROR(Choice(fields, "pack_dtype", {"int32"}).status());
  HEXPORT_RETURN_IF_ERROR(RequireOff(fields, "is_marlin_format"));
  return RequireOff(fields, "dynamic");
}

Status ParseAwq(const JsonFields& fields, PackedConfig& config) {
  config.layout = PackedLayout::kAwq;
  HEXPORT_RETURN_IF_ERROR(Choice(fields, "version", {"gemm"}).status());
  if (config.bits != 4) return Refuse(fields, "bits", "4");
  HEXPORT_ASSIGN_OR_RETURN(const bool zero_point, fields.Bool("zero_point", true));
  return zero_point ? OkStatus() : Refuse(fields, "zero_point", "true");
}

}  // namespace

Result<std::optional<PackedConfig>> ParsePackedConfig(const JsonFields& all) {
  const nlohmann::json* value = all.Find(kField);
  if (value == nullptr) return std::optional<PackedConfig>();
  if (!value->is_object()) return Refuse(all, kField, "an object");
  const JsonFields fields(*value, all.where() + ": " + std::string(kField));
  HEXPORT_ASSIGN_OR_RETURN(const std::string method, fields.String("quant_method", ""));
  if (method != "gptq" && method != "awq") return Refuse(all, kField, "quant_method gptq or awq");
  PackedConfig config;
  HEXPORT_ASSIGN_OR_RETURN(const int64_t bits, fields.Int("bits"));
  if (bits != 4 && bits != 8) return Refuse(fields, "bits", "4 or 8");
  config.bits = static_cast<int>(bits);
  HEXPORT_ASSIGN_OR_RETURN(config.group_size, fields.Int("group_size", 128));
  if (config.group_size != -1 && config.group_size < 1)
    return fields.Mismatch("group_size", "-1 or a positive number");
  HEXPORT_RETURN_IF_ERROR(method == "gptq" ? ParseGptq(fields, config) : ParseAwq(fields, config));
  return std::optional<PackedConfig>(config);
}

Result<std::optional<PackedConfig>> ParsePackedConfig(std::string_view config_json,
                                                      const std::string& where) {
  HEXPORT_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJsonObject(config_json, where));
  return ParsePackedConfig(JsonFields(json, where));
}

}  // namespace hexport::checkpoint
