// The JSON of QuantConfig: reading it strictly, writing it, and checking its patterns against a
// model.
#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/json_fields.h"
#include "quant/near_name.h"
#include "quant/quant_config.h"

namespace hexport::quant {
namespace {

using checkpoint::Excerpt;
using nlohmann::json;

const std::vector<std::string> kMethodNames = {"rtn",         "gptq",   "awq",
                                               "smoothquant", "seqmse", "import"};
constexpr size_t kMostRules = 10000, kLongestPattern = 200;

std::string Quoted(const std::string& text) { return Excerpt(json(text)); }

// Reads one object's fields; the first fault stays.
class Fields {
 public:
  Fields(const json& object, std::string path, Status& status)
      : object_(object), path_(std::move(path)), status_(status) {
    if (!object.is_object()) Fail("", "expected an object, got " + Excerpt(object));
  }

  const json* Find(const char* key) {
    known_.emplace_back(key);
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }
  template <typename T, typename Out>
  void Word(const char* key, Result<T> (*parse)(std::string_view),
            const std::vector<std::string>& candidates, Out& out) {
    const json* value = Find(key);
    if (value == nullptr) return;
    if (value->is_string()) {
      if (const Result<T> parsed = parse(value->get_ref<const std::string&>()); parsed.ok()) {
        out = *parsed;
        return;
      }
    }
    std::string list;
    for (const std::string& word : candidates) list += (list.empty() ? "" : ", ") + word;
    const std::string near =
        value->is_string() ? DidYouMean(value->get_ref<const std::string&>(), candidates) : "";
    Fail(key, "expected one of " + list + ", got " + Excerpt(*value) + near);
  }
  template <typename Out>
  void OneOf(const char* key, std::initializer_list<int> allowed, Out& out) {
    const json* value = Find(key);
    if (value == nullptr) return;
    std::string list;
    for (const int number : allowed) {
      if (value->is_number_integer() && *value == number) {
        out = number;
        return;
      }
      list += (list.empty() ? "" : ", ") + std::to_string(number);
    }
    Fail(key, "expected one of " + list + ", got " + Excerpt(*value));
  }
  void Number(const char* key, double above, double most, double& out) {
    const json* value = Find(key);
    if (value == nullptr) return;
    if (value->is_number() && value->get<double>() > above && value->get<double>() <= most) {
      out = value->get<double>();
      return;
    }
    Fail(key, "expected a number above " + json(above).dump() + ", up to " + json(most).dump() +
                  ", got " + Excerpt(*value));
  }
  void Bool(const char* key, bool& out) {
    const json* value = Find(key);
    if (value == nullptr) return;
    if (!value->is_boolean()) return Fail(key, "expected true or false, got " + Excerpt(*value));
    out = value->get<bool>();
  }
  void Pattern(const char* key, std::string& out) {
    const json* value = Find(key);
    if (value == nullptr) return Fail(key, "expected a pattern of names, got nothing");
    ToPattern(PathOf(key), *value, out);
  }
  void Patterns(const char* key, std::vector<std::string>& out) {
    const json* list = List(key);
    if (list == nullptr) return;
    for (size_t i = 0; i < list->size() && status_.ok(); ++i) {
      ToPattern(PathOf(key) + "[" + std::to_string(i) + "]", (*list)[i], out.emplace_back());
    }
  }
  template <typename T>
  void Rules(const char* key, std::vector<T>& out, void (*read)(Fields&, T&)) {
    const json* list = List(key);
    if (list == nullptr) return;
    for (size_t i = 0; i < list->size() && status_.ok(); ++i) {
      Fields fields((*list)[i], PathOf(key) + "[" + std::to_string(i) + "]", status_);
      if (!status_.ok()) return;
      read(fields, out.emplace_back());
    }
  }
  void RefuseOthers() {
    for (const auto& [key, value] : object_.items()) {
      if (!status_.ok() || std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      Fail(key.c_str(), "expected a known field, got " + Quoted(key) + DidYouMean(key, known_));
    }
  }
  void Fail(const std::string& key, const std::string& fault) { FailAt(PathOf(key), fault); }

 private:
  std::string PathOf(const std::string& key) const {
    if (path_.empty() || key.empty()) return path_ + key;
    return path_ + "." + key;
  }
  void FailAt(const std::string& path, const std::string& fault) {
    if (status_.ok()) status_ = InvalidArgument(path + ": " + fault);
  }
  const json* List(const char* key) {
    const json* value = Find(key);
    if (value == nullptr) return nullptr;
    if (value->is_array() && value->size() <= kMostRules) return value;
    Fail(key,
         "expected a list of at most " + std::to_string(kMostRules) + ", got " + Excerpt(*value));
    return nullptr;
  }
  void ToPattern(const std::string& path, const json& value, std::string& out) {
    if (value.is_string()) out = value.get<std::string>();
    if (out.empty() || out.size() > kLongestPattern) {
      FailAt(path, "expected a pattern of names like \"layers.3.*\" of at most " +
                       std::to_string(kLongestPattern) + " bytes, got " + Excerpt(value));
    }
  }

  const json& object_;
  std::string path_;
  Status& status_;
  std::vector<std::string> known_;
};

void ReadLinearRule(Fields& fields, LinearRule& rule) {
  fields.Pattern("pattern", rule.pattern);
  fields.Word("weights", ParseWeightFormat, {"int8", "int4", "lpbq"}, rule.weights);
  fields.OneOf("block_size", {16, 32, 64}, rule.block_size);
  fields.Word("method", ParseMethod, kMethodNames, rule.method);
  fields.RefuseOthers();
  if (rule.block_size.has_value() &&
      rule.weights.value_or(WeightFormat::kLpbq) != WeightFormat::kLpbq)
    fields.Fail("block_size", "expected none with weights other than lpbq");
  if (!rule.weights.has_value() && !rule.block_size.has_value() && !rule.method.has_value())
    fields.Fail("", "expected weights, block_size or method, got a pattern alone");
}

void ReadActivationRule(Fields& fields, ActivationRule& rule) {
  fields.Pattern("pattern", rule.pattern);
  fields.OneOf("bits", {8, 16}, rule.bits);
  fields.Bool("float16", rule.float16);
  fields.RefuseOthers();
  if (rule.bits.has_value() == rule.float16)
    fields.Fail("", "expected either bits or \"float16\": true");
}

void ReadConfig(Fields& fields, QuantConfig& config) {
  fields.Word("method", ParseMethod, kMethodNames, config.method);
  fields.Word("weights", ParseWeightFormat, {"int8", "int4", "lpbq"}, config.weights.format);
  fields.OneOf("block_size", {16, 32, 64}, config.weights.block_size);
  fields.OneOf("activation_bits", {8, 16}, config.activation_bits);
  fields.OneOf("kv_bits", {8, 16}, config.kv_bits);
  fields.Word("ranges", ParseRangeMethod,
              {"minmax", "moving_average", "percentile", "mse", "entropy"}, config.ranges);
  fields.Number("percentile", 50.0, 100.0, config.percentile);
  fields.Bool("fold_channels", config.fold_channels);
  fields.Patterns("exclude", config.exclude);
  fields.Rules("linears", config.linears, ReadLinearRule);
  fields.Rules("activations", config.activations, ReadActivationRule);
  fields.Patterns("float16", config.float16);
  fields.RefuseOthers();
}

// "layers.12.mlp.up_proj" -> "layers.*.mlp.up_proj"
std::string WithoutNumbers(const std::string& name) {
  std::string out;
  for (const char c : name) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit) out += c;
    if (digit && (out.empty() || out.back() != '*')) out += '*';
  }
  return out;
}

// Names that patterns may match, and the general forms of them that suggestions are taken from.
class Names {
 public:
  void Add(const std::string& name) {
    names_.push_back(name);
    general_.insert(WithoutNumbers(name));
  }
  Status Check(const std::string& path, const std::string& pattern, const char* what) const {
    const auto matches = [&pattern](const std::string& name) {
      return MatchesPattern(pattern, name);
    };
    if (std::any_of(names_.begin(), names_.end(), matches)) return OkStatus();
    std::vector<std::string> candidates(general_.begin(), general_.end());
    candidates.insert(candidates.end(), names_.begin(), names_.end());
    std::string near = DidYouMean(WithoutNumbers(pattern), general_list());
    if (near.empty()) near = DidYouMean(pattern, candidates);
    return InvalidArgument(path + ": expected a pattern that matches " + what +
                           " of this model, got " + Quoted(pattern) + near);
  }

 private:
  std::vector<std::string> general_list() const { return {general_.begin(), general_.end()}; }
  std::vector<std::string> names_;
  std::set<std::string> general_;
};

Status CheckPatterns(const QuantConfig& config, const Names& linears, const Names& activations) {
  const auto path = [](const char* list, size_t index) {
    return list + ("[" + std::to_string(index) + "]");
  };
  for (size_t i = 0; i < config.exclude.size(); ++i) {
    if (config.exclude[i] == "embed_tokens") continue;
    HEXPORT_RETURN_IF_ERROR(linears.Check(path("exclude", i), config.exclude[i], "a linear"));
  }
  for (size_t i = 0; i < config.linears.size(); ++i) {
    HEXPORT_RETURN_IF_ERROR(
        linears.Check(path("linears", i) + ".pattern", config.linears[i].pattern, "a linear"));
  }
  for (size_t i = 0; i < config.activations.size(); ++i) {
    HEXPORT_RETURN_IF_ERROR(activations.Check(path("activations", i) + ".pattern",
                                              config.activations[i].pattern, "an activation"));
  }
  for (size_t i = 0; i < config.float16.size(); ++i) {
    if (config.float16[i] == "norm" || config.float16[i] == "softmax") continue;
    HEXPORT_RETURN_IF_ERROR(
        activations.Check(path("float16", i), config.float16[i],
                          "an activation (or the word \"norm\" or \"softmax\")"));
  }
  return OkStatus();
}

}  // namespace

Result<QuantConfig> ParseQuantConfig(std::string_view text, const std::string& where) {
  HEXPORT_ASSIGN_OR_RETURN(const json parsed, checkpoint::ParseJsonObject(text, where));
  QuantConfig config;
  Status status;
  Fields fields(parsed, "", status);
  ReadConfig(fields, config);
  if (!status.ok()) return status.WithContext(where);
  return config;
}

std::string QuantConfigToJson(const QuantConfig& config) {
  nlohmann::ordered_json out;
  out["method"] = MethodName(config.method);
  out["weights"] = WeightFormatName(config.weights.format);
  out["block_size"] = config.weights.block_size;
  out["activation_bits"] = config.activation_bits;
  out["kv_bits"] = config.kv_bits;
  out["ranges"] = RangeMethodName(config.ranges);
  out["percentile"] = config.percentile;
  out["fold_channels"] = config.fold_channels;
  out["exclude"] = config.exclude;
  out["linears"] = json::array();
  for (const LinearRule& rule : config.linears) {
    nlohmann::ordered_json entry = {{"pattern", rule.pattern}};
    if (rule.weights.has_value()) entry["weights"] = WeightFormatName(*rule.weights);
    if (rule.block_size.has_value()) entry["block_size"] = *rule.block_size;
    if (rule.method.has_value()) entry["method"] = MethodName(*rule.method);
    out["linears"].push_back(std::move(entry));
  }
  out["activations"] = json::array();
  for (const ActivationRule& rule : config.activations) {
    nlohmann::ordered_json entry = {{"pattern", rule.pattern}};
    if (rule.bits.has_value()) entry["bits"] = *rule.bits;
    if (rule.float16) entry["float16"] = true;
    out["activations"].push_back(std::move(entry));
  }
  out["float16"] = config.float16;
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Status CheckConfig(const QuantConfig& config, const decoder::DecoderGraph& graph,
                   const std::string& where) {
  Names linears, activations;
  for (const decoder::LinearWeight& linear : graph.linears)
    linears.Add(std::string(ModuleOf(linear)));
  for (const decoder::Activation& activation : graph.activations) activations.Add(activation.name);
  return CheckPatterns(config, linears, activations).WithContext(where);
}

}  // namespace hexport::quant
