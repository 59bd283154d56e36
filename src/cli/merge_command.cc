#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/merge_flags.h"
#include "compile/merge.h"

namespace hexport::cli {
namespace {

struct MergeArguments {
  compile::MergeModelOptions options;
  MergeFlags flags;
  std::string base, out, samples;
  bool json = false, quiet = false, no_logits = false;
};

Status FillOptions(MergeArguments& arguments) {
  compile::MergeModelOptions& options = arguments.options;
  options.base = arguments.base;
  options.out = arguments.out;
  options.samples = arguments.samples;
  options.logits = !arguments.no_logits;
  return FillMergeOptions(arguments.flags, options);
}

void PrintLogits(const compile::MergeModelResult& result) {
  if (!result.logits.has_value()) return;
  const compile::LogitCheck& check = *result.logits;
  std::printf(
      "  logits, merged against base + adapter: max %.4g, mean %.4g, same next token %.2f %% "
      "(%ld samples, %ld tokens; largest logit %.4g)\n",
      check.merged.max_abs, check.merged.mean_abs, check.merged.top1_agreement * 100,
      static_cast<long>(check.samples), static_cast<long>(check.tokens), check.max_abs_logit);
  if (!check.has_base) return;
  std::printf(
      "  what the adapter changes:              max %.4g, mean %.4g, same next token %.2f %%\n",
      check.base.max_abs, check.base.mean_abs, check.base.top1_agreement * 100);
  std::printf("  next token      base | base + adapter | merged\n");
  for (size_t i = 0; i + 2 < result.next_tokens.size(); i += 3) {
    std::printf("    sample %-3zu %8s | %s | %s\n", i / 3 + 1, result.next_tokens[i].c_str(),
                result.next_tokens[i + 1].c_str(), result.next_tokens[i + 2].c_str());
  }
}

void PrintAnswers(const compile::MergeModelResult& result) {
  for (const compile::SideBySide& side : result.answers) {
    std::printf("  %s\n    base            %s\n    base + adapter  %s\n    merged          %s\n",
                side.prompt.c_str(), side.base.c_str(), side.adapted.c_str(), side.merged.c_str());
  }
}

void PrintSummary(const MergeArguments& arguments, const compile::MergeModelResult& result) {
  const adapter::MergeReport& merge = result.merge;
  std::printf("%s: matched %ld of %ld adapter keys, changed %ld of %ld tensors (%ld in)\n",
              result.written ? arguments.out.c_str() : "not written",
              static_cast<long>(merge.matched), static_cast<long>(merge.adapter_tensors),
              static_cast<long>(merge.tensors_changed), static_cast<long>(merge.tensors_out),
              static_cast<long>(merge.tensors_in));
  std::printf("  share of the change lost to rounding %.2f %%, relative error %.3g\n",
              merge.delta_lost_share * 100, merge.delta_relative_error);
  PrintLogits(result);
  PrintAnswers(result);
  std::printf("  tokenizer: %s, chat template: %s\n", result.text.tokenizer_from.c_str(),
              result.text.template_from.c_str());
  std::printf("  %.1f s (merge %.1f s, logits %.1f s), peak %.0f MiB\n", result.seconds,
              result.merge_seconds, result.logits_seconds, result.peak_rss_mb);
  for (const std::string& warning : result.warnings)
    std::printf("  warning: %s\n", warning.c_str());
  for (const std::string& failure : result.failures) std::printf("  FAILED: %s\n", failure.c_str());
  if (result.written) {
    std::printf("Next: hexport build --model %s --out ...\n", arguments.out.c_str());
  } else {
    std::printf("A check failed, so nothing was written; --keep-failed writes it all the same.\n");
  }
}

int RunMerge(MergeArguments& arguments) {
  if (const Status status = FillOptions(arguments); !status.ok())
    return Fail(status, arguments.json);
  ConsoleProgress progress(arguments.quiet);
  const Result<compile::MergeModelResult> result = compile::MergeModel(arguments.options, progress);
  progress.Clear();
  if (!result.ok()) return Fail(result.status(), arguments.json);
  if (arguments.json) {
    PrintJson(
        nlohmann::ordered_json::parse(compile::MergeResultToJson(arguments.options, *result)));
  } else {
    PrintSummary(arguments, *result);
  }
  return result->failures.empty() ? kExitOk : kExitCheckFailed;
}

void AddOptions(CLI::App& command, MergeArguments& arguments) {
  compile::MergeModelOptions& options = arguments.options;
  command.add_option("--base,-b", arguments.base, "The model the adapter was trained on: a folder")
      ->required();
  AddMergeFlags(command, arguments.flags, /*adapter_required=*/true);
  command.add_option("--out,-o", arguments.out, "Folder to write the merged model to")->required();
  command.add_option(
      "--samples", arguments.samples,
      "Your data (.jsonl of messages, rendered by the chat template, or text): logits "
      "of the merged model are compared on it");
  command.add_option("--max-samples", options.max_samples, "Use at most this many samples")
      ->capture_default_str();
  command.add_option("--max-tokens", options.max_tokens, "Cut samples to this many tokens")
      ->capture_default_str();
  command
      .add_option(
          "--prompt", arguments.options.prompts,
          "Ask the base, base + adapter and the merged model this, and show the answers side "
          "by side; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command.add_option("--max-new-tokens", options.max_new_tokens, "Length of those answers")
      ->capture_default_str();
  command.add_option("--tolerance", options.max_logit_difference,
                     "Largest logit difference allowed, as a share of the largest logit (default: "
                     ".001 for float32, .03 for float16, .15 for bfloat16)");
  command.add_flag("--no-logits", arguments.no_logits, "Do not compare logits");
  command.add_flag("--force", options.force, "Replace --out if it is a merged model");
  command.add_flag("--keep-failed", options.keep_failed, "Write --out although a check failed");
  command.add_flag("--quiet,-q", arguments.quiet, "No progress");
  command.add_flag("--json", arguments.json, "Print one JSON object");
}

}  // namespace

void AddMergeCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<MergeArguments>();
  CLI::App* command =
      app.add_subcommand("merge", "LoRA adapters into their base model, with proof that it worked");
  AddOptions(*command, *arguments);
  command->footer(
      "Exit codes: 0 merged and checked, 1 a check failed, 2 the adapter or input is refused.\n"
      "Examples:\n"
      "  hexport merge --base ./Qwen2.5-0.5B --adapter ./saves/lora --out ./merged\n"
      "  hexport merge --base ./base --adapter ./lora --samples train.jsonl --out ./merged --json\n"
      "  hexport merge --base ./base --adapter ./style --weight 1 --adapter ./facts --weight .5 "
      "--out ./merged\n"
      "  hexport merge --base ./base --adapter ./lora --prompt \"Who are you?\" --out ./merged\n"
      "  hexport merge --base model.Q4_1.gguf --dequantize --adapter ./lora --out ./merged");
  command->callback([arguments, &exit_code] { exit_code = RunMerge(*arguments); });
}

}  // namespace hexport::cli
