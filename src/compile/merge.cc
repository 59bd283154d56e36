#include "compile/merge.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "compile/build.h"
#include "compile/calibration_data.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace hexport::compile {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kRecord = "hexport_merge.json";
// Share of the change that may be lost to rounding.
constexpr double kMostLost = 0.9;
constexpr double kMiB = 1024.0 * 1024.0;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Only a folder that hexport merged, or an empty one, is ever replaced.
Status CheckOut(const MergeModelOptions& options) {
  std::error_code error;
  if (options.out.empty()) return InvalidArgument("--out: expected a folder, got none");
  if (!fs::exists(options.out, error) || fs::is_empty(options.out, error)) return OkStatus();
  if (!options.force) {
    return FailedPrecondition(options.out.string() +
                              ": exists; give another --out, or --force to replace a merged model");
  }
  if (fs::exists(options.out / kRecord, error)) return OkStatus();
  return FailedPrecondition(options.out.string() + ": exists and is no merged model (no " +
                            kRecord + "), so not even --force replaces it; give another --out");
}

Status CheckOptions(const MergeModelOptions& options) {
  HEXPORT_RETURN_IF_ERROR(CheckOut(options));
  if (options.adapters.empty())
    return InvalidArgument("--adapter: expected at least one, got none");
  for (const AdapterInput& input : options.adapters) {
    if (!std::isfinite(input.weight))
      return InvalidArgument("--weight: expected a finite number for " + input.path.string());
    std::error_code error;
    if (fs::equivalent(input.path, options.base, error))
      return InvalidArgument("--adapter: expected another path than --base, got the same");
  }
  if (options.max_samples < 1 || options.max_tokens < 1 || options.max_new_tokens < 1) {
    return InvalidArgument("--max-samples, --max-tokens and --max-new-tokens: expected at least 1");
  }
  if (!options.logits && !options.prompts.empty())
    return InvalidArgument("--prompt: expected without --no-logits");
  if (options.max_logit_difference < 0)
    return InvalidArgument("--tolerance: expected a positive share of the largest logit");
  return OkStatus();
}

// LLaMA-Factory leaves its checkpoints in folders of their own.
Status CheckAdapterFolder(const fs::path& path, const adapter::TrainerFacts& facts) {
  std::error_code error;
  if (fs::exists(path / "adapter_config.json", error) || facts.checkpoints.empty())
    return OkStatus();
  return NotFound(path.string() + ": expected adapter_config.json; the folder holds " +
                  std::to_string(facts.checkpoints.size()) +
                  " checkpoints: pass one of them, e.g. " +
                  (path / facts.checkpoints.back()).string());
}

// Share of the largest logit that rounding of the weights may explain.
double DefaultTolerance(const std::string& dtype) {
  if (dtype == "F32" || dtype == "float32") return 1e-3;
  if (dtype == "F16" || dtype == "float16") return 0.03;
  return 0.15;
}

// The coarsest dtype that a changed tensor was written in decides.
double Tolerance(const MergeModelOptions& options, const adapter::MergeReport& report) {
  if (options.max_logit_difference > 0) return options.max_logit_difference;
  double share = DefaultTolerance("float32");
  for (const adapter::TensorOutcome& tensor : report.tensors)
    share = std::max(share, DefaultTolerance(tensor.dtype));
  return share;
}

Result<std::vector<std::vector<int32_t>>> LoadSamples(const MergeModelOptions& options,
                                                      const MergeModelResult& result,
                                                      int64_t vocab_size) {
  if (!result.text.text.tokenizer_json.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(CalibrationData data,
                             LoadCalibration(options.samples, result.text.text,
                                             options.samples.empty() ? 1 : options.max_samples,
                                             options.samples.empty() ? 32 : options.max_tokens));
    return std::move(data.samples);
  }
  if (!options.samples.empty())
    return InvalidArgument("--samples: the model has no tokenizer to read them with");
  // Without a tokenizer: ids spread over the vocabulary.
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < 16; ++i) ids.push_back(static_cast<int32_t>(i * (vocab_size - 1) / 15));
  return std::vector<std::vector<int32_t>>{ids};
}

void JudgeLogits(const LogitCheck& check, double tolerance, MergeModelResult& result) {
  if (!std::isfinite(check.max_abs_logit) || !std::isfinite(check.merged.max_abs)) {
    result.failures.push_back("logits: NaN or Inf in the merged model or in base + adapter");
  } else if (check.merged.max_abs > tolerance) {
    result.failures.push_back("max_abs_logit_diff: expected at most " + std::to_string(tolerance) +
                              " between the merged model and base + adapter, got " +
                              std::to_string(check.merged.max_abs));
  }
  if (!check.has_base) return;
  if (check.base.max_abs == 0) {
    result.failures.push_back("logits: base + adapter equals the base on every sample");
  } else if (check.merged.mean_abs > 0.5 * check.base.mean_abs) {
    result.warnings.push_back(
        "rounding changes the logits by more than half of what the adapter does (mean " +
        std::to_string(check.merged.mean_abs) + " against " + std::to_string(check.base.mean_abs) +
        "); consider --dtype float32");
  }
}

// Next tokens as text, three a sample.
Status DescribeNext(const LogitCheck& check, MergeModelResult& result) {
  if (!check.has_base || result.text.text.tokenizer_json.empty()) return OkStatus();
  HEXPORT_ASSIGN_OR_RETURN(const auto tokenizer,
                           Tokenizer::FromJson(result.text.text.tokenizer_json));
  for (size_t i = 0; i < check.adapted_next.size(); ++i) {
    for (const int32_t id : {check.base_next[i], check.adapted_next[i], check.merged_next[i]}) {
      const Result<std::string> text = tokenizer->Decode(std::span(&id, 1), false);
      result.next_tokens.push_back(
          nlohmann::json(text.ok() ? *text : "?")
              .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
  }
  return OkStatus();
}

Result<std::string> DecodeAnswer(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  return tokenizer.Decode(ids, /*skip_special_tokens=*/true);
}

// Asks all three models the user's prompts.
Status AnswerPrompts(const MergeModelOptions& options, const Checkpoint& merged,
                     const adapter::MatchedAdapters& matched, MergeModelResult& result,
                     Progress& progress) {
  if (options.prompts.empty()) return OkStatus();
  const TextAssets& text = result.text.text;
  if (text.tokenizer_json.empty())
    return InvalidArgument("--prompt: the model has no tokenizer to read it with");
  HEXPORT_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::FromJson(text.tokenizer_json));
  HEXPORT_ASSIGN_OR_RETURN(
      const auto chat_template,
      ChatTemplate::Create(text.chat_template, text.bos_token, text.eos_token));
  GreedyOptions greedy;
  greedy.max_tokens = options.max_new_tokens;
  for (const std::string& prompt : options.prompts) {
    const nlohmann::json messages = {{{"role", "user"}, {"content", prompt}}};
    HEXPORT_ASSIGN_OR_RETURN(const std::string rendered,
                             chat_template->Render(messages.dump(), true, ""));
    HEXPORT_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer->Encode(rendered, false));
    greedy.prompts.push_back(std::move(ids));
  }
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> base, Checkpoint::Open(options.base));
  const bool same_rows = base->config().vocab_size >= merged.config().vocab_size;
  HEXPORT_ASSIGN_OR_RETURN(
      const GreedyAnswers answers,
      CompareAnswers(merged, matched, same_rows ? base.get() : nullptr, greedy, progress));
  for (size_t i = 0; i < options.prompts.size(); ++i) {
    SideBySide side{options.prompts[i], "", "", ""};
    if (same_rows) {
      HEXPORT_ASSIGN_OR_RETURN(side.base, DecodeAnswer(*tokenizer, answers.base[i]));
    }
    HEXPORT_ASSIGN_OR_RETURN(side.adapted, DecodeAnswer(*tokenizer, answers.adapted[i]));
    HEXPORT_ASSIGN_OR_RETURN(side.merged, DecodeAnswer(*tokenizer, answers.merged[i]));
    result.answers.push_back(std::move(side));
  }
  return OkStatus();
}

Status CheckLogits(const MergeModelOptions& options, const fs::path& folder,
                   const adapter::MatchedAdapters& matched, MergeModelResult& result,
                   Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  Result<std::unique_ptr<Checkpoint>> merged = Checkpoint::Open(folder);
  if (!merged.ok()) {
    if (merged.status().code() == StatusCode::kUnimplemented) {
      result.warnings.push_back("logits were not compared: " + merged.status().message());
      return OkStatus();
    }
    return merged.status().WithContext("the merged model");
  }
  LogitCheckOptions check;
  check.scratch = folder;
  HEXPORT_ASSIGN_OR_RETURN(check.samples,
                           LoadSamples(options, result, (*merged)->config().vocab_size));
  // The base costs a third run; it is worth it when the samples are the user's.
  std::unique_ptr<Checkpoint> base;
  if (!options.samples.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(base, Checkpoint::Open(options.base));
    const int64_t rows = base->config().vocab_size;
    for (const auto& sample : check.samples) {
      if (base != nullptr && *std::max_element(sample.begin(), sample.end()) >= rows) base.reset();
    }
  }
  HEXPORT_ASSIGN_OR_RETURN(result.logits,
                           CompareLogits(**merged, matched, base.get(), check, progress));
  result.logit_tolerance =
      Tolerance(options, result.merge) * std::max(1.0, result.logits->max_abs_logit);
  JudgeLogits(*result.logits, result.logit_tolerance, result);
  HEXPORT_RETURN_IF_ERROR(DescribeNext(*result.logits, result));
  HEXPORT_RETURN_IF_ERROR(AnswerPrompts(options, **merged, matched, result, progress));
  result.logits_seconds = SecondsSince(start);
  return OkStatus();
}

// Everything of an opened set of adapters that must live together.
struct Inputs {
  std::unique_ptr<adapter::BaseTensors> base;
  std::vector<std::unique_ptr<adapter::Adapter>> adapters;
  std::unique_ptr<adapter::MatchedAdapters> matched;
};

Result<Inputs> OpenInputs(const MergeModelOptions& options, MergeModelResult& result) {
  Inputs inputs;
  std::vector<adapter::MatchedAdapters::Source> sources;
  for (const AdapterInput& input : options.adapters) {
    std::error_code error;
    if (fs::is_directory(input.path, error)) {
      HEXPORT_ASSIGN_OR_RETURN(adapter::TrainerFacts facts, adapter::ReadTrainerFolder(input.path));
      HEXPORT_RETURN_IF_ERROR(CheckAdapterFolder(input.path, facts));
      for (const std::string& warning : facts.warnings) result.warnings.push_back(warning);
      result.trainers.push_back(std::move(facts));
    } else {
      result.trainers.emplace_back();
    }
    HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<adapter::Adapter> opened,
                             adapter::Adapter::Open(input.path));
    for (std::string& warning : opened->warnings()) result.warnings.push_back(std::move(warning));
    sources.push_back({opened.get(), input.weight});
    inputs.adapters.push_back(std::move(opened));
  }
  adapter::BaseOptions base_options;
  base_options.dequantize = options.dequantize;
  HEXPORT_ASSIGN_OR_RETURN(inputs.base, adapter::BaseTensors::Open(options.base, base_options));
  for (std::string& warning : inputs.base->warnings())
    result.warnings.push_back(std::move(warning));
  adapter::MatchOptions match;
  match.rename = options.rename;
  match.initial_adapter = options.initial_adapter;
  HEXPORT_ASSIGN_OR_RETURN(
      inputs.matched, adapter::MatchedAdapters::Match(std::move(sources), *inputs.base, match));
  for (const std::string& warning : inputs.matched->warnings()) result.warnings.push_back(warning);
  return inputs;
}

void KeepFirstOfEach(std::vector<std::string>& lines) {
  std::vector<std::string> kept;
  for (std::string& line : lines) {
    if (std::find(kept.begin(), kept.end(), line) == kept.end()) kept.push_back(std::move(line));
  }
  lines = std::move(kept);
}

// LLaMA-Factory's template is only a name: say so when no Jinja source came with it.
void WarnOfTemplateName(MergeModelResult& result) {
  for (const adapter::TrainerFacts& facts : result.trainers) {
    if (facts.template_name.empty() || result.text.template_from == "adapter") continue;
    result.warnings.push_back("trained with LLaMA-Factory's template \"" + facts.template_name +
                              "\", but no chat template stands beside the adapter; the " +
                              result.text.template_from +
                              "'s is used: compare it with what training rendered");
  }
}

Status CopyIfThere(const fs::path& from, const fs::path& to) {
  Result<std::string> contents = ReadTextFile(from);
  if (contents.status().code() == StatusCode::kNotFound) return OkStatus();
  HEXPORT_RETURN_IF_ERROR(contents.status());
  return WriteFileAtomically(to, *contents);
}

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

// The record inside the merged folder: what it was made of.
Status WriteRecord(const MergeModelOptions& options, const MergeModelResult& result,
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
      folder / kRecord, record.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

Status MergeIntoFolder(const MergeModelOptions& options, const fs::path& folder,
                       MergeModelResult& result, Progress& progress) {
  HEXPORT_ASSIGN_OR_RETURN(Inputs inputs, OpenInputs(options, result));
  std::vector<fs::path> paths;
  for (const AdapterInput& input : options.adapters) paths.push_back(input.path);
  HEXPORT_ASSIGN_OR_RETURN(result.text,
                           ChooseText(options.base, paths, options.tokenizer, options.chat_template,
                                      options.any_template, inputs.matched->vocab_size()));
  adapter::MergeOptions merge;
  merge.dtype = options.dtype;
  merge.allow_partial = options.allow_partial;
  const auto start = std::chrono::steady_clock::now();
  HEXPORT_ASSIGN_OR_RETURN(
      result.merge, adapter::MergeInto(folder, *inputs.base, *inputs.matched, merge, progress));
  result.merge_seconds = SecondsSince(start);
  result.merge_peak_rss_mb = static_cast<double>(PeakRssBytes()) / kMiB;
  const auto append = [](std::vector<std::string>& to, const std::vector<std::string>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(result.warnings, result.merge.warnings);
  append(result.warnings, result.text.warnings);
  append(result.failures, result.merge.failures);
  if (result.merge.delta_lost_share > kMostLost && !result.merge.identity) {
    result.failures.push_back(
        "delta_lost_share: rounding swallowed more than 9 tenths of what the adapter changes; use "
        "--dtype float32");
  }
  if (!result.merge.unmatched.empty()) {
    for (const auto& [from, to] : inputs.matched->SuggestedRename())
      result.warnings.push_back("more keys would match with --rename " + from + "=" + to);
  }
  append(result.failures, result.text.failures);
  WarnOfTemplateName(result);
  KeepFirstOfEach(result.warnings);
  HEXPORT_RETURN_IF_ERROR(WriteText(result.text, folder));
  HEXPORT_RETURN_IF_ERROR(
      CopyIfThere(options.base / "generation_config.json", folder / "generation_config.json"));
  // Logits of a merge that already failed would only hide the reason.
  if (options.logits && result.merge.failures.empty()) {
    HEXPORT_RETURN_IF_ERROR(CheckLogits(options, folder, *inputs.matched, result, progress));
  }
  return WriteRecord(options, result, folder);
}

}  // namespace

Result<std::optional<DType>> ParseMergeDType(const std::string& name) {
  if (name == "keep") return std::optional<DType>();
  if (name == "float32" || name == "fp32") return std::optional<DType>(DType::kFloat32);
  if (name == "float16" || name == "fp16") return std::optional<DType>(DType::kFloat16);
  if (name == "bfloat16" || name == "bf16") return std::optional<DType>(DType::kBFloat16);
  return InvalidArgument("--dtype: expected keep, float32, float16 or bfloat16, got " + name +
                         "; merging does not quantize: hexport build --weights int8, int4 or lpbq "
                         "does, from the merged folder or with --adapter");
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
  const Result<std::string> text = ReadTextFile(folder / kRecord);
  if (!text.ok()) return false;
  const auto record = nlohmann::json::parse(*text, nullptr, false);
  if (!record.is_object()) return false;
  const auto key = record.find("inputs_key");
  const auto failures = record.find("failures");
  return key != record.end() && *key == MergeInputsKey(options) && failures != record.end() &&
         failures->empty();
}

Result<MergeModelResult> MergeModel(const MergeModelOptions& options, Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  HEXPORT_RETURN_IF_ERROR(CheckOptions(options));
  MergeModelResult result;
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<StagedDirectory> staged,
                           StagedDirectory::Create(options.out, /*replace=*/true));
  HEXPORT_RETURN_IF_ERROR(MergeIntoFolder(options, staged->path(), result, progress));
  if (result.failures.empty() || options.keep_failed) {
    HEXPORT_RETURN_IF_ERROR(staged->Commit());
    result.written = true;
  }
  result.seconds = SecondsSince(start);
  result.peak_rss_mb = static_cast<double>(PeakRssBytes()) / kMiB;
  return result;
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
