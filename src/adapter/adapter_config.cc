#include "adapter/adapter_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/json_fields.h"
#include "text/regex.h"

namespace hexport::adapter {
namespace {

using checkpoint::Excerpt;
using checkpoint::JsonFields;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kMaxRank = 1 << 16;

// Read by ParseAdapterConfig.
constexpr std::array kReadFields{"peft_type",
                                 "base_model_name_or_path",
                                 "revision",
                                 "task_type",
                                 "r",
                                 "lora_alpha",
                                 "use_rslora",
                                 "use_dora",
                                 "lora_bias",
                                 "fan_in_fan_out",
                                 "bias",
                                 "rank_pattern",
                                 "alpha_pattern",
                                 "target_modules",
                                 "exclude_modules",
                                 "layers_to_transform",
                                 "layers_pattern",
                                 "modules_to_save",
                                 "trainable_token_indices",
                                 "init_lora_weights",
                                 "hexport_base_sha256",
                                 "ensure_weight_tying"};

// Bear on training, on where the model runs, or only together with a field that is refused.
constexpr std::array kHarmlessFields{"auto_mapping",   "peft_version",          "inference_mode",
                                     "lora_dropout",   "megatron_core",         "loftq_config",
                                     "eva_config",     "corda_config",          "lora_ga_config",
                                     "velora_config",  "runtime_config",        "qalora_group_size",
                                     "modules_to_tie", "target_modules_to_tie", "unsloth_fixed",
                                     "lora_dtype",     "lorap_lr_ratio",        "lorap_emb_lr"};

struct Refused {
  const char* field;
  const char* reason;
};
constexpr std::array kRefusedFields{
    Refused{"layer_replication", "repeats layers of the base; replicate them in the base first"},
    Refused{"target_parameters", "changes bare parameters (mixture of experts), not linear layers"},
    Refused{"alora_invocation_tokens",
            "is on for some tokens only, so no single set of weights equals it"},
    Refused{"use_qalora", "pools the inputs of lora_A, so it fits a quantized base only"},
    Refused{"arrow_config", "routes each token to adapters, so no single set of weights equals it"},
    Refused{"megatron_config", "is for Megatron's parallel layers; export the adapter from there"},
    Refused{"use_bdlora", "stores block-diagonal factors; expand them to full ones first"},
    Refused{"kasa_config", "takes singular values out of the base and scales between A and B"},
    Refused{"monteclora_config", "draws random weights in every pass"},
};

template <typename Names>
bool Contains(const Names& names, std::string_view name) {
  return std::any_of(names.begin(), names.end(),
                     [&](std::string_view candidate) { return candidate == name; });
}

// null, false, 0, "", [] and {} leave a feature off.
bool IsOff(const json& value) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0.0;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.empty();
}

Status RefuseWhatChangesTheMaths(const json& object, const std::string& where) {
  for (const Refused& refused : kRefusedFields) {
    const auto found = object.find(refused.field);
    if (found == object.end() || IsOff(*found)) continue;
    return Unimplemented(where + ": " + refused.field + ": expected it unset, got " +
                         Excerpt(*found) + "; it " + refused.reason);
  }
  for (const auto& item : object.items()) {
    const auto is_refused = [&](const Refused& refused) { return item.key() == refused.field; };
    if (Contains(kReadFields, item.key()) || Contains(kHarmlessFields, item.key()) ||
        std::any_of(kRefusedFields.begin(), kRefusedFields.end(), is_refused) ||
        IsOff(item.value())) {
      continue;
    }
    return Unimplemented(where + ": " + Excerpt(json(item.key())) + ": got " +
                         Excerpt(item.value()) +
                         ", a field that hexport does not know and that may change the maths; "
                         "set it to null if it does not");
  }
  return OkStatus();
}

// A list of strings, one string (a list of one), or nothing.
Result<std::vector<std::string>> Strings(const JsonFields& fields, std::string_view name) {
  std::vector<std::string> out;
  const json* value = fields.Find(name);
  if (value == nullptr) return out;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& element : list) {
    if (!element.is_string() || element.get_ref<const std::string&>().empty()) {
      return fields.Mismatch(name, "a list of names");
    }
    out.push_back(element.get<std::string>());
  }
  return out;
}

Result<std::vector<int64_t>> Indices(const JsonFields& fields, const json& value,
                                     std::string_view name) {
  std::vector<int64_t> out;
  for (const json& element : value.is_array() ? value : json::array({value})) {
    if (!element.is_number_unsigned() || element.get<uint64_t>() > uint64_t{INT32_MAX}) {
      return fields.Mismatch(name, "a list of indices");
    }
    out.push_back(element.get<int64_t>());
  }
  return out;
}

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

Status CheckPattern(const JsonFields& fields, std::string_view name, std::string_view pattern,
                    RegexMode mode) {
  return Regex::Compile(pattern, mode)
      .status()
      .WithContext(fields.where() + ": " + std::string(name));
}

Result<ModuleFilter> ParseFilter(const JsonFields& fields, std::string_view name) {
  ModuleFilter filter;
  const json* value = fields.Find(name);
  if (value == nullptr || IsOff(*value)) return filter;
  if (!value->is_string()) {
    filter.kind = ModuleFilter::Kind::kList;
    HEXPORT_ASSIGN_OR_RETURN(filter.names, Strings(fields, name));
    return filter;
  }
  filter.regex = value->get<std::string>();
  if (Lower(filter.regex) == "all-linear") {
    filter.kind = ModuleFilter::Kind::kAllLinear;
    filter.regex.clear();
    return filter;
  }
  filter.kind = ModuleFilter::Kind::kRegex;
  HEXPORT_RETURN_IF_ERROR(CheckPattern(fields, name, filter.regex, RegexMode::kFullMatch));
  return filter;
}

// Objects keep the file's order only when they are parsed for it.
Status ParsePatterns(const ordered_json& object, const JsonFields& fields, AdapterConfig& config) {
  for (const char* name : {"rank_pattern", "alpha_pattern"}) {
    const auto found = object.find(name);
    if (found == object.end() || found->is_null()) continue;
    if (!found->is_object()) return fields.Mismatch(name, "an object");
    for (const auto& item : found->items()) {
      HEXPORT_RETURN_IF_ERROR(
          CheckPattern(fields, name, "(.*\\.)?(" + item.key() + ")$", RegexMode::kMatch));
      const ordered_json& value = item.value();
      if (std::string_view(name) == "alpha_pattern") {
        if (!value.is_number()) return fields.Mismatch(name, "numbers");
        config.alpha_pattern.emplace_back(item.key(), value.get<double>());
      } else if (!value.is_number_unsigned() || value.get<uint64_t>() < 1 ||
                 value.get<uint64_t>() > uint64_t{kMaxRank}) {
        return fields.Mismatch(name, "ranks of 1 to " + std::to_string(kMaxRank));
      } else {
        config.rank_pattern.emplace_back(item.key(), value.get<int64_t>());
      }
    }
  }
  return OkStatus();
}

Status ParseInit(const JsonFields& fields, AdapterConfig& config) {
  const json* value = fields.Find("init_lora_weights");
  if (value == nullptr) return OkStatus();
  if (value->is_boolean()) {
    config.init_lora_weights = value->get<bool>() ? "true" : "false";
    return OkStatus();
  }
  if (!value->is_string()) return fields.Mismatch("init_lora_weights", "true, false or a name");
  config.init_lora_weights = value->get<std::string>();
  const std::string kind = Lower(config.init_lora_weights);
  static constexpr std::array kUntouched{"gaussian", "orthogonal", "eva", "mica", "true", "false"};
  if (Contains(kUntouched, kind)) return OkStatus();
  config.init = kind == "pissa"   ? InitKind::kPissa
                : kind == "olora" ? InitKind::kOlora
                                  : InitKind::kBaseChanged;
  return OkStatus();
}

Status ParseTokenIndices(const JsonFields& fields, AdapterConfig& config) {
  static constexpr std::string_view kName = "trainable_token_indices";
  const json* value = fields.Find(kName);
  if (value == nullptr || IsOff(*value)) return OkStatus();
  if (!value->is_object()) {
    HEXPORT_ASSIGN_OR_RETURN(config.trainable_token_indices["embed_tokens"],
                             Indices(fields, *value, kName));
    return OkStatus();
  }
  for (const auto& item : value->items()) {
    HEXPORT_ASSIGN_OR_RETURN(config.trainable_token_indices[item.key()],
                             Indices(fields, item.value(), kName));
  }
  return OkStatus();
}

Status ParseScale(const JsonFields& fields, AdapterConfig& config) {
  HEXPORT_ASSIGN_OR_RETURN(config.r, fields.Int("r", 8));
  if (config.r < 1 || config.r > kMaxRank) {
    return fields.Mismatch("r", "a rank of 1 to " + std::to_string(kMaxRank));
  }
  HEXPORT_ASSIGN_OR_RETURN(config.lora_alpha, fields.Number("lora_alpha", 8.0));
  if (!std::isfinite(config.lora_alpha)) return fields.Mismatch("lora_alpha", "a finite number");
  HEXPORT_ASSIGN_OR_RETURN(config.use_rslora, fields.Bool("use_rslora", false));
  HEXPORT_ASSIGN_OR_RETURN(config.use_dora, fields.Bool("use_dora", false));
  HEXPORT_ASSIGN_OR_RETURN(config.lora_bias, fields.Bool("lora_bias", false));
  HEXPORT_ASSIGN_OR_RETURN(config.fan_in_fan_out, fields.Bool("fan_in_fan_out", false));
  HEXPORT_ASSIGN_OR_RETURN(config.ensure_weight_tying, fields.Bool("ensure_weight_tying", false));
  HEXPORT_ASSIGN_OR_RETURN(config.bias, fields.String("bias", "none"));
  if (config.bias != "none" && config.bias != "all" && config.bias != "lora_only") {
    return fields.Mismatch("bias", "none, all or lora_only");
  }
  return OkStatus();
}

Status ParseModules(const JsonFields& fields, AdapterConfig& config) {
  HEXPORT_ASSIGN_OR_RETURN(config.target_modules, ParseFilter(fields, "target_modules"));
  HEXPORT_ASSIGN_OR_RETURN(config.exclude_modules, ParseFilter(fields, "exclude_modules"));
  if (config.exclude_modules.kind == ModuleFilter::Kind::kAllLinear) {
    config.exclude_modules.kind = ModuleFilter::Kind::kRegex;  // to PEFT an expression like others
    config.exclude_modules.regex = "all-linear";
  }
  HEXPORT_ASSIGN_OR_RETURN(config.layers_pattern, Strings(fields, "layers_pattern"));
  for (const std::string& pattern : config.layers_pattern) {
    HEXPORT_RETURN_IF_ERROR(CheckPattern(fields, "layers_pattern", pattern, RegexMode::kMatch));
  }
  HEXPORT_ASSIGN_OR_RETURN(config.modules_to_save, Strings(fields, "modules_to_save"));
  if (const json* layers = fields.Find("layers_to_transform"); layers != nullptr) {
    HEXPORT_ASSIGN_OR_RETURN(config.layers_to_transform,
                             Indices(fields, *layers, "layers_to_transform"));
  }
  return ParseTokenIndices(fields, config);
}

}  // namespace

Result<AdapterConfig> ParseAdapterConfig(std::string_view text, const std::string& where) {
  HEXPORT_ASSIGN_OR_RETURN(const json object, checkpoint::ParseJsonObject(text, where));
  const JsonFields fields(object, where);
  AdapterConfig config;
  HEXPORT_ASSIGN_OR_RETURN(config.peft_type, fields.String("peft_type", ""));
  if (config.peft_type.empty()) return fields.Mismatch("peft_type", "\"LORA\"");
  if (config.peft_type != "LORA") {
    return Unimplemented(where + ": peft_type: expected LORA, got " +
                         Excerpt(json(config.peft_type)) +
                         "; merge it with PEFT (merge_and_unload) and export the result");
  }
  HEXPORT_RETURN_IF_ERROR(RefuseWhatChangesTheMaths(object, where));
  HEXPORT_ASSIGN_OR_RETURN(config.base_model_name_or_path,
                           fields.String("base_model_name_or_path", ""));
  HEXPORT_ASSIGN_OR_RETURN(config.revision, fields.String("revision", ""));
  HEXPORT_ASSIGN_OR_RETURN(config.task_type, fields.String("task_type", ""));
  HEXPORT_ASSIGN_OR_RETURN(config.base_sha256, fields.String("hexport_base_sha256", ""));
  HEXPORT_RETURN_IF_ERROR(ParseScale(fields, config));
  HEXPORT_RETURN_IF_ERROR(ParseModules(fields, config));
  HEXPORT_RETURN_IF_ERROR(ParseInit(fields, config));
  HEXPORT_RETURN_IF_ERROR(ParsePatterns(
      ordered_json::parse(text, nullptr, /*allow_exceptions=*/false), fields, config));
  if (config.fan_in_fan_out) {
    config.warnings.push_back(where + ": fan_in_fan_out is for GPT-2's layers and is ignored");
  }
  if (!config.task_type.empty() && config.task_type != "CAUSAL_LM") {
    config.warnings.push_back(where + ": task_type is " + config.task_type +
                              ", expected CAUSAL_LM");
  }
  return config;
}

}  // namespace hexport::adapter
