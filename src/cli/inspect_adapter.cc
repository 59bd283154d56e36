#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "adapter/trainer_folder.h"
#include "cli/console.h"
#include "cli/inspect.h"

namespace hexport::cli {
namespace {

namespace fs = std::filesystem;
using adapter::AdapterConfig;
using adapter::ModuleFilter;
using nlohmann::ordered_json;

std::string FilterText(const ModuleFilter& filter) {
  switch (filter.kind) {
    case ModuleFilter::Kind::kNone:
      return "none";
    case ModuleFilter::Kind::kAllLinear:
      return "all-linear";
    case ModuleFilter::Kind::kRegex:
      return "regex " + filter.regex;
    case ModuleFilter::Kind::kList:
      break;
  }
  std::string out;
  for (const std::string& name : filter.names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

// "LoRA, rsLoRA scaling, DoRA".
std::string KindText(const AdapterConfig& config) {
  std::string out = "LoRA";
  if (config.use_rslora) out += ", rsLoRA scaling";
  if (config.use_dora) out += ", DoRA";
  if (config.lora_bias) out += ", with biases of B";
  if (config.bias != "none") out += ", bias " + config.bias;
  if (config.init == adapter::InitKind::kPissa || config.init == adapter::InitKind::kOlora)
    out += ", " + config.init_lora_weights + " (the base was changed in training)";
  return out;
}

// How the adapter fits a base, when one was named.
struct Fit {
  int64_t matched = 0, changed = 0;
  std::vector<std::string> unmatched;
  std::vector<std::pair<std::string, std::string>> rename;
};

Result<Fit> MatchWith(const adapter::Adapter& opened, const std::string& base_path,
                      std::vector<std::string>& odd) {
  adapter::BaseOptions options;
  options.dequantize = true;  // nothing is written
  HEXPORT_ASSIGN_OR_RETURN(const auto base, adapter::BaseTensors::Open(base_path, options));
  HEXPORT_ASSIGN_OR_RETURN(const auto matched,
                           adapter::MatchedAdapters::Match({{&opened, 1.0}}, *base, {}));
  for (const std::string& warning : matched->warnings()) odd.push_back(warning);
  Fit fit;
  for (const adapter::AdapterKey& key : matched->keys()) {
    if (key.tensor.empty())
      fit.unmatched.push_back(key.key);
    else
      ++fit.matched;
  }
  for (const auto& tensor : matched->tensors()) fit.changed += tensor.low_rank || tensor.replaced;
  if (!fit.unmatched.empty()) fit.rename = matched->SuggestedRename();
  return fit;
}

std::string PlanOf(const AdapterConfig& config, const InspectArguments& arguments) {
  const std::string base = !arguments.base.empty() ? arguments.base
                           : config.base_model_name_or_path.empty()
                               ? "BASE"
                               : config.base_model_name_or_path;
  return "hexport merge --base " + base + " --adapter " + arguments.path +
         " --out MERGED  (or hexport build --model ... --adapter ...)";
}

ordered_json FitJson(const Fit& fit) {
  ordered_json out = {
      {"matched", fit.matched}, {"tensors_changed", fit.changed}, {"unmatched", fit.unmatched}};
  for (const auto& [from, to] : fit.rename) out["suggested_rename"].push_back(from + "=" + to);
  return out;
}

ordered_json AdapterJson(const adapter::Adapter& opened, const adapter::TrainerFacts& trainer) {
  const AdapterConfig& config = opened.config();
  ordered_json ranks = ordered_json::object(), alphas = ordered_json::object();
  for (const auto& [pattern, rank] : config.rank_pattern) ranks[pattern] = rank;
  for (const auto& [pattern, alpha] : config.alpha_pattern) alphas[pattern] = alpha;
  ordered_json out = {{"kind", "adapter"},
                      {"peft_type", config.peft_type},
                      {"base_model_name_or_path", config.base_model_name_or_path},
                      {"r", config.r},
                      {"lora_alpha", config.lora_alpha},
                      {"rank_pattern", std::move(ranks)},
                      {"alpha_pattern", std::move(alphas)},
                      {"use_rslora", config.use_rslora},
                      {"use_dora", config.use_dora},
                      {"lora_bias", config.lora_bias},
                      {"bias", config.bias},
                      {"target_modules", FilterText(config.target_modules)},
                      {"modules_to_save", config.modules_to_save},
                      {"init_lora_weights", config.init_lora_weights},
                      {"adapter_tensors", opened.tensor_count()},
                      {"sha256", opened.sha256()}};
  if (!trainer.trainer.empty()) {
    out["trainer"] = {{"name", trainer.trainer},
                      {"template", trainer.template_name},
                      {"datasets", trainer.datasets}};
    if (trainer.global_step >= 0) out["trainer"]["global_step"] = trainer.global_step;
    if (trainer.last_loss.has_value()) out["trainer"]["last_loss"] = *trainer.last_loss;
  }
  return out;
}

void PrintAdapter(const InspectArguments& arguments, const adapter::Adapter& opened,
                  const adapter::TrainerFacts& trainer) {
  const AdapterConfig& config = opened.config();
  std::printf("%s: adapter, %s\n", arguments.path.c_str(), KindText(config).c_str());
  std::printf("  r %ld, lora_alpha %g, %ld tensors\n", static_cast<long>(config.r),
              config.lora_alpha, static_cast<long>(opened.tensor_count()));
  for (const auto& [pattern, rank] : config.rank_pattern)
    std::printf("    r %ld for %s\n", static_cast<long>(rank), pattern.c_str());
  for (const auto& [pattern, alpha] : config.alpha_pattern)
    std::printf("    lora_alpha %g for %s\n", alpha, pattern.c_str());
  std::printf("  targets: %s\n", FilterText(config.target_modules).c_str());
  for (const std::string& name : config.modules_to_save)
    std::printf("  saved whole: %s\n", name.c_str());
  if (!config.base_model_name_or_path.empty())
    std::printf("  trained on: %s\n", config.base_model_name_or_path.c_str());
  if (trainer.trainer.empty()) return;
  std::printf("  by %s", trainer.trainer.c_str());
  if (!trainer.template_name.empty()) std::printf(", template %s", trainer.template_name.c_str());
  if (trainer.global_step >= 0) std::printf(", %ld steps", static_cast<long>(trainer.global_step));
  if (trainer.last_loss.has_value()) std::printf(", last loss %.4g", *trainer.last_loss);
  std::printf("\n");
}

}  // namespace

bool IsAdapter(const fs::path& path) {
  std::error_code error;
  return fs::exists(path / "adapter_config.json", error) &&
         !fs::exists(path / "config.json", error);
}

int InspectAdapter(const InspectArguments& arguments) {
  const auto opened = adapter::Adapter::Open(arguments.path);
  if (!opened.ok()) return Fail(opened.status(), arguments.json);
  std::vector<std::string> odd = (*opened)->warnings();
  adapter::TrainerFacts trainer;
  if (Result<adapter::TrainerFacts> facts = adapter::ReadTrainerFolder(arguments.path); facts.ok())
    trainer = *std::move(facts);
  odd.insert(odd.end(), trainer.warnings.begin(), trainer.warnings.end());
  std::optional<Fit> fit;
  if (!arguments.base.empty()) {
    Result<Fit> matched = MatchWith(**opened, arguments.base, odd);
    if (!matched.ok()) return Fail(matched.status(), arguments.json);
    fit = *std::move(matched);
  }
  const std::string plan = PlanOf((*opened)->config(), arguments);
  if (arguments.json) {
    ordered_json out = AdapterJson(**opened, trainer);
    if (fit.has_value()) out["fit"] = FitJson(*fit);
    out["odd"] = odd;
    out["plan"] = plan;
    PrintJson(out);
    return kExitOk;
  }
  PrintAdapter(arguments, **opened, trainer);
  if (fit.has_value()) {
    std::printf("  fits the base: %ld of %ld keys, %ld tensors change\n",
                static_cast<long>(fit->matched),
                static_cast<long>(fit->matched + static_cast<int64_t>(fit->unmatched.size())),
                static_cast<long>(fit->changed));
    for (const auto& [from, to] : fit->rename)
      std::printf("  try: --rename %s=%s\n", from.c_str(), to.c_str());
  }
  for (const std::string& line : odd) std::printf("  odd: %s\n", line.c_str());
  std::printf("  next: %s\n", plan.c_str());
  return kExitOk;
}

}  // namespace hexport::cli
