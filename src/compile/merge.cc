#include "compile/merge.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/memory.h"
#include "compile/merge_steps.h"

namespace hexport::compile {
namespace {

namespace fs = std::filesystem;

// Share of the change that may be lost to rounding.
constexpr double kMostLost = 0.9;
constexpr double kMiB = 1024.0 * 1024.0;

// Only a folder that hexport merged, or an empty one, is ever replaced.
Status CheckOut(const MergeModelOptions& options) {
  std::error_code error;
  if (options.out.empty()) return InvalidArgument("--out: expected a folder, got none");
  if (!fs::exists(options.out, error) || fs::is_empty(options.out, error)) return OkStatus();
  if (!options.force) {
    return FailedPrecondition(options.out.string() +
                              ": exists; give another --out, or --force to replace a merged model");
  }
  if (fs::exists(options.out / kMergeRecord, error)) return OkStatus();
  return FailedPrecondition(options.out.string() + ": exists and is no merged model (no " +
                            kMergeRecord +
                            "), so not even --force replaces it; give another --out");
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
    HEXPORT_RETURN_IF_ERROR(CheckMergedLogits(options, folder, *inputs.matched, result, progress));
  }
  return WriteMergeRecord(options, result, folder);
}

}  // namespace

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Result<std::optional<DType>> ParseMergeDType(const std::string& name) {
  if (name == "keep") return std::optional<DType>();
  if (name == "float32" || name == "fp32") return std::optional<DType>(DType::kFloat32);
  if (name == "float16" || name == "fp16") return std::optional<DType>(DType::kFloat16);
  if (name == "bfloat16" || name == "bf16") return std::optional<DType>(DType::kBFloat16);
  return InvalidArgument("--dtype: expected keep, float32, float16 or bfloat16, got " + name +
                         "; merging does not quantize: hexport build --weights int8, int4 or lpbq "
                         "does, from the merged folder or with --adapter");
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

}  // namespace hexport::compile
