// PEFT's rules for which module an adapter changes, and with which rank and scale.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>

#include "adapter/adapter_config.h"
#include "text/regex.h"

namespace hexport::adapter {
namespace {

Result<bool> Matches(const std::string& pattern, RegexMode mode, std::string_view text) {
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<Regex> regex, Regex::Compile(pattern, mode));
  return regex->Matches(text);
}

// The whole path, or its end at a dot.
bool IsListed(const std::vector<std::string>& names, std::string_view module) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return module == name || module.ends_with("." + name);
  });
}

Result<bool> IsExcluded(const AdapterConfig& config, std::string_view module) {
  if (config.exclude_modules.kind == ModuleFilter::Kind::kRegex) {
    HEXPORT_ASSIGN_OR_RETURN(const bool excluded,
                             Matches(config.exclude_modules.regex, RegexMode::kFullMatch, module));
    if (excluded) return true;
  }
  if (IsListed(config.exclude_modules.names, module)) return true;
  for (const std::string& saved : config.modules_to_save) {
    HEXPORT_ASSIGN_OR_RETURN(const bool inside,
                             Matches("(^|.*\\.)" + saved + "($|\\..*)", RegexMode::kMatch, module));
    if (inside) return true;
  }
  return false;
}

std::optional<int64_t> LeadingNumber(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool ends_at_dot = end != text.data() + text.size() && *end == '.';
  if (error != std::errc() || end == text.data() || number < 0 || !ends_at_dot) return std::nullopt;
  return number;
}

// The number of the first segment that follows two others and is all digits.
std::optional<int64_t> FirstNumberedSegment(std::string_view module) {
  size_t dots = 0;
  for (size_t at = module.find('.'); at != std::string_view::npos; at = module.find('.', at + 1)) {
    if (++dots < 2) continue;
    if (const auto number = LeadingNumber(module.substr(at + 1)); number.has_value()) return number;
  }
  return std::nullopt;
}

// The number after the first place where `pattern` matches whole segments.
Result<std::optional<int64_t>> NumberAfterPattern(const std::string& pattern,
                                                  std::string_view module) {
  for (size_t at = module.find('.'); at != std::string_view::npos; at = module.find('.', at + 1)) {
    const auto number = LeadingNumber(module.substr(at + 1));
    if (!number.has_value()) continue;
    HEXPORT_ASSIGN_OR_RETURN(
        const bool found,
        Matches("(?:^|.*?\\.)(?:" + pattern + ")", RegexMode::kFullMatch, module.substr(0, at)));
    if (found) return number;
  }
  return std::optional<int64_t>();
}

Result<bool> IsInLayers(const AdapterConfig& config, std::string_view module) {
  if (config.layers_to_transform.empty()) return true;
  std::optional<int64_t> layer;
  if (config.layers_pattern.empty()) layer = FirstNumberedSegment(module);
  for (const std::string& pattern : config.layers_pattern) {
    if (layer.has_value()) break;
    HEXPORT_ASSIGN_OR_RETURN(layer, NumberAfterPattern(pattern, module));
  }
  return layer.has_value() &&
         std::find(config.layers_to_transform.begin(), config.layers_to_transform.end(), *layer) !=
             config.layers_to_transform.end();
}

template <typename T>
Result<std::optional<T>> PatternValue(const std::vector<std::pair<std::string, T>>& patterns,
                                      std::string_view module) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : patterns) keys.push_back(key);
  HEXPORT_ASSIGN_OR_RETURN(const std::optional<size_t> index, MatchPattern(keys, module));
  if (!index.has_value()) return std::optional<T>();
  return std::optional<T>(patterns[*index].second);
}

}  // namespace

Result<std::optional<size_t>> MatchPattern(const std::vector<std::string>& patterns,
                                           std::string_view module) {
  for (size_t i = 0; i < patterns.size(); ++i) {
    HEXPORT_ASSIGN_OR_RETURN(const bool matches,
                             Matches("(.*\\.)?(" + patterns[i] + ")$", RegexMode::kMatch, module));
    if (matches) return std::optional<size_t>(i);
  }
  return std::optional<size_t>();
}

Result<bool> IsTarget(const AdapterConfig& config, std::string_view module, bool linear,
                      bool output_head) {
  HEXPORT_ASSIGN_OR_RETURN(const bool excluded, IsExcluded(config, module));
  if (excluded) return false;
  switch (config.target_modules.kind) {
    case ModuleFilter::Kind::kNone:  // PEFT's default for the model type, which config.json tells
      return linear && !output_head;
    case ModuleFilter::Kind::kAllLinear:
      return linear && !output_head;
    case ModuleFilter::Kind::kRegex:
      return Matches(config.target_modules.regex, RegexMode::kFullMatch, module);
    case ModuleFilter::Kind::kList:
      break;
  }
  const std::vector<std::string>& names = config.target_modules.names;
  // A whole path names one module, whatever layers_to_transform says.
  if (std::find(names.begin(), names.end(), module) != names.end()) return true;
  if (!IsListed(names, module)) return false;
  return IsInLayers(config, module);
}

Result<int64_t> RankOf(const AdapterConfig& config, std::string_view module) {
  HEXPORT_ASSIGN_OR_RETURN(const std::optional<int64_t> rank,
                           PatternValue(config.rank_pattern, module));
  return rank.value_or(config.r);
}

Result<double> ScaleOf(const AdapterConfig& config, std::string_view module, int64_t rank) {
  HEXPORT_ASSIGN_OR_RETURN(const std::optional<double> alpha,
                           PatternValue(config.alpha_pattern, module));
  const auto divisor = static_cast<double>(rank);
  return alpha.value_or(config.lora_alpha) / (config.use_rslora ? std::sqrt(divisor) : divisor);
}

}  // namespace hexport::adapter
