// What is said of a merge: the record in its folder, the JSON of the command.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/sha256.h"
#include "compile/build.h"
#include "compile/merge.h"
#include "compile/merge_steps.h"

namespace hexport::compile {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

ordered_json LogitsJson(const LogitCheck& check) {
  const auto difference = [](const LogitDifference& d) {
    return ordered_json{
        {"max_abs", d.max_abs}, {"mean_abs", d.mean_abs}, {"top1_agreement", d.top1_agreement}};
  };
  ordered_json out = {{"samples", check.samples},
                      {"tokens", check.tokens},
                      {"max_abs_logit", check.max_abs_logit},
                      {"merged_against_adapted", difference(check.merged)}};
  if (check.has_base) out["base_against_adapted"] = difference(check.base);
  return out;
}

ordered_json TrainerJson(const adapter::TrainerFacts& facts) {
  ordered_json out = {{"trainer", facts.trainer},
                      {"template", facts.template_name},
                      {"base_model", facts.base_model},
                      {"stage", facts.stage},
                      {"finetuning_type", facts.finetuning_type},
                      {"datasets", facts.datasets}};
  if (facts.global_step >= 0) out["global_step"] = facts.global_step;
  if (facts.epoch >= 0) out["epoch"] = facts.epoch;
  if (facts.last_loss.has_value() && std::isfinite(*facts.last_loss))
    out["last_loss"] = *facts.last_loss;
  return out;
}

ordered_json AdaptersJson(const MergeModelOptions& options, const MergeModelResult& result) {
  ordered_json adapters = ordered_json::array();
  for (size_t i = 0; i < options.adapters.size(); ++i) {
    ordered_json entry = {{"path", options.adapters[i].path.string()},
                          {"weight", options.adapters[i].weight}};
    if (i < result.merge.adapter_sha256.size()) entry["sha256"] = result.merge.adapter_sha256[i];
    if (i < result.trainers.size() && !result.trainers[i].trainer.empty())
      entry["trainer"] = TrainerJson(result.trainers[i]);
    adapters.push_back(std::move(entry));
  }
  return adapters;
}

}  // namespace

Status WriteMergeRecord(const MergeModelOptions& options, const MergeModelResult& result,
                        const fs::path& folder) {
  ordered_json dtypes = ordered_json::object();
  for (const adapter::TensorOutcome& tensor : result.merge.tensors)
    dtypes[tensor.name] = tensor.dtype;
  ordered_json record = {{"hexport_version", HexportVersion()},
                         {"inputs_key", MergeInputsKey(options)},
                         {"base", fs::absolute(options.base).string()},
                         {"base_sha256", result.merge.base_sha256},
                         {"adapters", AdaptersJson(options, result)},
                         {"tokenizer_from", result.text.tokenizer_from},
                         {"template_from", result.text.template_from},
                         {"failures", result.failures},
                         {"warnings", result.warnings},
                         {"dtypes", std::move(dtypes)}};
  if (result.logits.has_value()) record["logits"] = LogitsJson(*result.logits);
  return WriteFileAtomically(
      folder / kMergeRecord,
      record.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

std::string MergeInputsKey(const MergeModelOptions& options) {
  std::string facts = HexportVersion();
  const auto add_file = [&](const fs::path& path) {
    std::error_code error;
    const auto time = fs::last_write_time(path, error).time_since_epoch().count();
    facts += "|" + fs::absolute(path).string() + "|" + std::to_string(fs::file_size(path, error)) +
             "|" + std::to_string(time);
  };
  const auto add = [&](const fs::path& path) {
    std::error_code error;
    if (!fs::is_directory(path, error)) return add_file(path);
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path, error)) {
      if (entry.is_regular_file(error)) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) add_file(file);
  };
  add(options.base);
  for (const AdapterInput& input : options.adapters) {
    add(input.path);
    facts += "|weight " + std::to_string(input.weight);
  }
  if (!options.initial_adapter.empty()) add(options.initial_adapter);
  for (const auto& [from, to] : options.rename) facts += "|" + from + "=" + to;
  facts += "|" + std::string(options.dtype.has_value() ? DTypeName(*options.dtype) : "keep") + "|" +
           std::to_string(static_cast<int>(options.tokenizer)) + "|" +
           std::to_string(static_cast<int>(options.chat_template)) + "|" +
           (options.dequantize ? "dequantize" : "") + (options.allow_partial ? "partial" : "");
  return Sha256Hex(facts);
}

bool IsMergeOf(const fs::path& folder, const MergeModelOptions& options) {
  const Result<std::string> text = ReadTextFile(folder / kMergeRecord);
  if (!text.ok()) return false;
  const auto record = nlohmann::json::parse(*text, nullptr, false);
  if (!record.is_object()) return false;
  const auto key = record.find("inputs_key");
  const auto failures = record.find("failures");
  return key != record.end() && *key == MergeInputsKey(options) && failures != record.end() &&
         failures->empty();
}

std::string MergeResultToJson(const MergeModelOptions& options, const MergeModelResult& result) {
  const adapter::MergeReport& merge = result.merge;
  ordered_json max_diff = nullptr, mean_diff = nullptr;
  if (result.logits.has_value()) {
    max_diff = result.logits->merged.max_abs;
    mean_diff = result.logits->merged.mean_abs;
  }
  ordered_json out = {{"out", options.out.string()},
                      {"written", result.written},
                      {"matched", merge.matched},
                      {"adapter_tensors", merge.adapter_tensors},
                      {"tensors_in", merge.tensors_in},
                      {"tensors_out", merge.tensors_out},
                      {"tensors_changed", merge.tensors_changed},
                      {"delta_lost_share", merge.delta_lost_share},
                      {"delta_relative_error", merge.delta_relative_error},
                      {"delta_norm", merge.delta_norm},
                      {"nonfinite", merge.nonfinite},
                      {"nonfinite_tensors", merge.nonfinite_tensors},
                      {"identity", merge.identity},
                      {"base_projection", merge.base_projection},
                      {"base_sha256", merge.base_sha256},
                      {"adapters", AdaptersJson(options, result)},
                      {"unmatched", merge.unmatched},
                      {"max_abs_logit_diff", max_diff},
                      {"mean_abs_logit_diff", mean_diff},
                      {"logit_tolerance", result.logit_tolerance},
                      {"tokenizer_from", result.text.tokenizer_from},
                      {"template_from", result.text.template_from},
                      {"template_difference", result.text.first_difference},
                      {"differing_tokenizer_probes", result.text.differing_probes},
                      {"warnings", result.warnings},
                      {"failures", result.failures},
                      {"seconds", result.seconds},
                      {"merge_seconds", result.merge_seconds},
                      {"logits_seconds", result.logits_seconds},
                      {"peak_rss_mb", result.peak_rss_mb},
                      {"merge_peak_rss_mb", result.merge_peak_rss_mb}};
  if (result.logits.has_value()) {
    out["logits"] = LogitsJson(*result.logits);
    ordered_json next = ordered_json::array();
    for (size_t i = 0; i + 2 < result.next_tokens.size(); i += 3) {
      next.push_back({{"base", result.next_tokens[i]},
                      {"base_and_adapter", result.next_tokens[i + 1]},
                      {"merged", result.next_tokens[i + 2]}});
    }
    out["next_tokens"] = std::move(next);
  }
  for (const SideBySide& side : result.answers) {
    out["answers"].push_back({{"prompt", side.prompt},
                              {"base", side.base},
                              {"base_and_adapter", side.adapted},
                              {"merged", side.merged}});
  }
  ordered_json dtypes = ordered_json::object();
  for (const adapter::TensorOutcome& tensor : merge.tensors) {
    ordered_json& count = dtypes[tensor.dtype];
    count = count.is_null() ? 1 : count.get<int64_t>() + 1;
  }
  out["tensors_by_dtype"] = std::move(dtypes);
  return out.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace hexport::compile
