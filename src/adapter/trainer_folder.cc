#include "adapter/trainer_folder.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/file.h"

namespace hexport::adapter {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMaxSettingsBytes = size_t{1} << 20;
constexpr size_t kMaxStateBytes = size_t{1} << 28;  // logs every step of a long run

// "a, b" -> {"a", "b"}.
std::vector<std::string> SplitNames(const std::string& names) {
  std::vector<std::string> out;
  size_t begin = 0;
  while (begin <= names.size()) {
    const size_t end = std::min(names.find(',', begin), names.size());
    std::string name = names.substr(begin, end - begin);
    name.erase(0, name.find_first_not_of(" \t"));
    name.erase(name.find_last_not_of(" \t") + 1);
    if (!name.empty()) out.push_back(std::move(name));
    begin = end + 1;
  }
  return out;
}

// LLaMA-Factory's arguments: the file itself, or what its web page stores with a prefix.
void ReadYaml(const fs::path& path, TrainerFacts& facts) {
  Result<std::string> text = ReadTextFile(path, kMaxSettingsBytes);
  if (!text.ok()) {
    if (text.status().code() != StatusCode::kNotFound)
      facts.warnings.push_back(text.status().message());
    return;
  }
  try {
    const YAML::Node root = YAML::Load(*text);
    if (!root.IsMap()) {
      facts.warnings.push_back(path.string() + ": expected a mapping of arguments");
      return;
    }
    const auto scalar = [&](const char* name) -> std::string {
      for (const std::string& key : {std::string(name), "top." + std::string(name)}) {
        const YAML::Node value = root[key];
        if (value.IsDefined() && value.IsScalar()) return value.Scalar();
      }
      return "";
    };
    facts.trainer = "LLaMA-Factory";
    facts.template_name = scalar("template");
    facts.base_model = scalar("model_name_or_path");
    facts.stage = scalar("stage");
    facts.finetuning_type = scalar("finetuning_type");
    facts.datasets = SplitNames(scalar("dataset"));
  } catch (const YAML::Exception& e) {
    facts.warnings.push_back(path.string() + ": expected YAML, got " + e.what());
  }
}

void ReadLog(const json& history, TrainerFacts& facts) {
  if (!history.is_array()) return;
  bool not_finite = false;
  for (const json& entry : history) {
    if (!entry.is_object()) continue;
    const auto loss = entry.find("loss");
    if (loss == entry.end()) continue;
    if (loss->is_number())
      facts.last_loss = loss->get<double>();
    else
      not_finite = true;  // Trainer writes NaN, which is no JSON, or a string
    if (facts.last_loss.has_value() && !std::isfinite(*facts.last_loss)) not_finite = true;
  }
  if (not_finite)
    facts.warnings.push_back("trainer_state.json: the loss was not finite at some step");
  if (facts.last_loss.has_value() && *facts.last_loss == 0.0) {
    facts.warnings.push_back(
        "trainer_state.json: the last loss is exactly 0; training in half precision may have "
        "overflowed");
  }
}

void ReadState(const fs::path& path, TrainerFacts& facts) {
  Result<std::string> text = ReadTextFile(path, kMaxStateBytes);
  if (!text.ok()) {
    if (text.status().code() != StatusCode::kNotFound)
      facts.warnings.push_back(text.status().message());
    return;
  }
  // Python writes NaN and Infinity, which JSON does not have.
  for (const char* word : {"NaN", "-Infinity", "Infinity"}) {
    const std::string name = word;
    for (size_t at = 0; (at = text->find(": " + name, at)) != std::string::npos;) {
      text->replace(at + 2, name.size(), "\"" + name + "\"");
    }
  }
  const json state = json::parse(*text, nullptr, false);
  if (!state.is_object()) {
    facts.warnings.push_back(path.string() + ": expected a JSON object");
    return;
  }
  if (facts.trainer.empty()) facts.trainer = "Hugging Face Trainer";
  if (const auto step = state.find("global_step"); step != state.end() && step->is_number_integer())
    facts.global_step = step->get<int64_t>();
  if (const auto epoch = state.find("epoch"); epoch != state.end() && epoch->is_number())
    facts.epoch = epoch->get<double>();
  if (const auto history = state.find("log_history"); history != state.end())
    ReadLog(*history, facts);
}

void ReadDatasetInfo(const fs::path& path, TrainerFacts& facts) {
  const Result<std::string> text = ReadTextFile(path, kMaxSettingsBytes);
  if (!text.ok()) return;
  const json info = json::parse(*text, nullptr, false);
  if (!info.is_object()) {
    facts.warnings.push_back(path.string() + ": expected a JSON object of data sets");
    return;
  }
  if (facts.trainer != "LLaMA-Factory") facts.trainer = "LLaMA-Factory";
  if (facts.datasets.empty()) {
    for (const auto& item : info.items()) facts.datasets.push_back(item.key());
  }
}

// Names of checkpoint-<step> folders, by step.
std::vector<std::string> FindCheckpoints(const fs::path& folder) {
  static const std::string kPrefix = "checkpoint-";
  std::vector<std::pair<long, std::string>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !entry.is_directory(error)) continue;
    const std::string digits = name.substr(kPrefix.size());
    if (digits.empty() || digits.size() > 12 ||
        digits.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    found.emplace_back(std::stol(digits), name);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (auto& [step, name] : found) names.push_back(std::move(name));
  return names;
}

}  // namespace

Result<TrainerFacts> ReadTrainerFolder(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    return NotFound(folder.string() + ": expected a folder, got none");
  TrainerFacts facts;
  for (const char* name : {"llamaboard_config.yaml", "training_args.yaml"}) {
    ReadYaml(folder / name, facts);
  }
  ReadDatasetInfo(folder / "dataset_info.json", facts);
  ReadState(folder / "trainer_state.json", facts);
  facts.checkpoints = FindCheckpoints(folder);
  return facts;
}

}  // namespace hexport::adapter
