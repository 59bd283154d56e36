// The part of a merge's check that runs the models.
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "compile/calibration_data.h"
#include "compile/merge.h"
#include "compile/merge_steps.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace hexport::compile {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

Status CheckMergedLogits(const MergeModelOptions& options, const fs::path& folder,
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

}  // namespace hexport::compile
