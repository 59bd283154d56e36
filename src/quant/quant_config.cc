#include "quant/quant_config.h"

#include <algorithm>
#include <array>
#include <utility>

namespace hexport::quant {
namespace {

template <typename T, size_t kCount>
Result<T> ParseWord(std::string_view what, std::string_view text,
                    const std::array<std::pair<T, std::string_view>, kCount>& words) {
  std::string list;
  for (const auto& [value, word] : words) {
    if (word == text) return value;
    list += (list.empty() ? "" : ", ") + std::string(word);
  }
  return InvalidArgument(std::string(what) + ": expected one of " + list + ", got \"" +
                         std::string(text) + "\"");
}

template <typename T, size_t kCount>
std::string_view WordOf(T value, const std::array<std::pair<T, std::string_view>, kCount>& words) {
  const auto found = std::find_if(words.begin(), words.end(),
                                  [value](const auto& word) { return word.first == value; });
  return found == words.end() ? "" : found->second;
}

constexpr std::array<std::pair<Method, std::string_view>, 6> kMethods = {
    {{Method::kRtn, "rtn"},
     {Method::kGptq, "gptq"},
     {Method::kAwq, "awq"},
     {Method::kSmoothQuant, "smoothquant"},
     {Method::kSeqMse, "seqmse"},
     {Method::kImport, "import"}}};
constexpr std::array<std::pair<RangeMethod, std::string_view>, 5> kRangeMethods = {
    {{RangeMethod::kMinMax, "minmax"},
     {RangeMethod::kMovingAverage, "moving_average"},
     {RangeMethod::kPercentile, "percentile"},
     {RangeMethod::kMse, "mse"},
     {RangeMethod::kEntropy, "entropy"}}};

}  // namespace

std::string_view ModuleOf(const decoder::LinearWeight& linear) {
  std::string_view name = linear.name;
  if (name.ends_with(".weight")) name.remove_suffix(std::string_view(".weight").size());
  return name;
}

Result<Method> ParseMethod(std::string_view text) { return ParseWord("method", text, kMethods); }
std::string_view MethodName(Method method) { return WordOf(method, kMethods); }
Result<RangeMethod> ParseRangeMethod(std::string_view text) {
  return ParseWord("ranges", text, kRangeMethods);
}
std::string_view RangeMethodName(RangeMethod method) { return WordOf(method, kRangeMethods); }

bool MatchesPattern(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0, star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;  // the last star takes one more character
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

LinearPlan PlanLinear(const QuantConfig& config, const decoder::LinearWeight& linear) {
  const std::string_view name = ModuleOf(linear);
  LinearPlan plan{config.weights, config.method, false};
  if (linear.lm_head) {
    plan.weights.format = WeightFormat::kInt8;
    if (plan.method != Method::kGptq) plan.method = Method::kRtn;
  }
  for (const LinearRule& rule : config.linears) {
    if (!MatchesPattern(rule.pattern, name)) continue;
    plan.weights.format = rule.weights.value_or(plan.weights.format);
    plan.weights.block_size = rule.block_size.value_or(plan.weights.block_size);
    plan.method = rule.method.value_or(plan.method);
  }
  for (const std::string& pattern : config.exclude) {
    if (MatchesPattern(pattern, name)) plan.weights.format = WeightFormat::kInt8;
  }
  if (plan.weights.format == WeightFormat::kLpbq && plan.weights.block_size > 0 &&
      linear.in_features % plan.weights.block_size != 0) {
    plan.weights.format = WeightFormat::kInt8;
    plan.block_does_not_divide = true;
  }
  return plan;
}

ActivationPlan PlanActivation(const QuantConfig& config, const std::string& name) {
  return PlanActivations(config, std::span(&name, 1));
}

ActivationPlan PlanActivations(const QuantConfig& config, std::span<const std::string> names) {
  ActivationPlan plan;
  const auto matches = [names](const std::string& pattern) {
    return std::any_of(names.begin(), names.end(), [&pattern](const std::string& name) {
      return MatchesPattern(pattern, name);
    });
  };
  if (matches("past_*")) plan.bits = config.kv_bits;
  for (const std::string& pattern : config.float16) {
    if (pattern != "norm" && pattern != "softmax" && matches(pattern)) plan.float16 = true;
  }
  for (const ActivationRule& rule : config.activations) {
    if (!matches(rule.pattern)) continue;
    plan.float16 = rule.float16;
    if (!rule.bits.has_value()) continue;
    plan.bits = *rule.bits;
    plan.ruled = true;
  }
  return plan;
}

}  // namespace hexport::quant
