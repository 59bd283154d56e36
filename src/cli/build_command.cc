#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/merge_flags.h"
#include "cli/quant_flags.h"
#include "compile/build.h"
#include "quant/quantized_model.h"

namespace hexport::cli {
namespace {

struct BuildArguments {
  compile::BuildOptions options;
  std::string model, out, calibration, chat_template;
  QuantFlags quant;
  MergeFlags merge;
  bool json = false, quiet = false, no_weight_shared = false, no_rotation = false;
};

nlohmann::ordered_json StagesJson(const compile::BuildReport& report) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const auto& stage : report.stages) {
    stages.push_back({{"name", stage.name},
                      {"seconds", stage.seconds},
                      {"peak_rss_mb", stage.peak_rss_mb},
                      {"child_peak_rss_mb", stage.child_peak_rss_mb},
                      {"reused", stage.reused}});
  }
  return stages;
}

void PrintSummary(const std::string& out, const compile::BuildResult& result) {
  std::printf("%s: %s, %s for %s, context %ld\n", out.c_str(), result.manifest.model.name.c_str(),
              result.manifest.weights.c_str(), result.manifest.soc.c_str(),
              static_cast<long>(result.manifest.context_length));
  std::printf("%-40s %9s %10s %12s\n", "stage", "seconds", "peak MiB", "child MiB");
  for (const auto& stage : result.report.stages) {
    std::printf("%-40s %9.1f %10.0f %12.0f%s\n", stage.name.c_str(), stage.seconds,
                stage.peak_rss_mb, stage.child_peak_rss_mb, stage.reused ? "  reused" : "");
  }
  std::printf("Next: hexport verify %s   ·   hexport run %s --engine cpu --prompt \"...\"\n",
              out.c_str(), out.c_str());
}

// The adapters did not merge well: no bundle was built.
int FailedMerge(const compile::MergeModelResult& merge, bool json) {
  if (json) PrintJson({{"merge_failures", merge.failures}, {"warnings", merge.warnings}});
  for (const std::string& failure : merge.failures)
    std::fprintf(stderr, "hexport: merging failed a check: %s\n", failure.c_str());
  std::fprintf(stderr, "hexport: no bundle was built; see hexport merge for details\n");
  return kExitCheckFailed;
}

// A quantized model is built as it is.
Status CheckModelAlone(const BuildArguments& arguments) {
  if (!quant::IsQuantizedModel(arguments.model)) return OkStatus();
  for (const auto& [flag, given] : {std::pair{"--config", !arguments.quant.config.empty()},
                                    std::pair{"--calibration", !arguments.calibration.empty()},
                                    std::pair{"--no-rotation", arguments.no_rotation}}) {
    if (given)
      return InvalidArgument(std::string(flag) +
                             ": the quantized model decides that; leave one out");
  }
  return RefuseQuantFlags(arguments.quant, "the quantized model");
}

int RunBuild(BuildArguments& arguments) {
  if (const Status alone = CheckModelAlone(arguments); !alone.ok())
    return Fail(alone, arguments.json);
  const Result<quant::QuantConfig> config = ConfigFrom(arguments.quant);
  if (!config.ok()) return Fail(config.status(), arguments.json);
  compile::BuildOptions& options = arguments.options;
  options.config = *config;
  options.model = arguments.model;
  options.out = arguments.out;
  options.calibration = arguments.calibration;
  options.chat_template = arguments.chat_template;
  options.weight_shared = !arguments.no_weight_shared;
  options.rotate_residual = !arguments.no_rotation;
  if (const Status status = FillMergeOptions(arguments.merge, options.merge); !status.ok())
    return Fail(status, arguments.json);
  // A template file of the user's settles which one counts.
  if (!arguments.chat_template.empty() &&
      options.merge.chat_template == compile::TextSource::kUnset)
    options.merge.any_template = true;
  ConsoleProgress progress(arguments.quiet);
  const Result<compile::BuildResult> result = compile::Build(options, progress);
  progress.Clear();
  if (!result.ok()) return Fail(result.status(), arguments.json);
  if (result->merge.has_value() && !result->merge->failures.empty())
    return FailedMerge(*result->merge, arguments.json);
  if (arguments.json) {
    PrintJson({{"bundle", arguments.out},
               {"up_to_date", result->up_to_date},
               {"build_key", result->manifest.build_key},
               {"seconds", result->report.seconds},
               {"stages", StagesJson(result->report)}});
  } else if (result->up_to_date) {
    std::printf("%s: up to date\n", arguments.out.c_str());
  } else {
    PrintSummary(arguments.out, *result);
  }
  return kExitOk;
}

}  // namespace

void AddBuildCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<BuildArguments>();
  CLI::App* command =
      app.add_subcommand("build", "Checkpoint in, bundle out: calibrate, quantize, compile");
  compile::BuildOptions& options = arguments->options;
  command
      ->add_option(
          "--model,-m", arguments->model,
          "GGUF file, Hugging Face folder, or what hexport quantize or diagnose --fix wrote")
      ->required();
  command->add_option("--out,-o", arguments->out, "The bundle (a folder) to write")->required();
  command->add_option("--soc", options.soc, "Snapdragon to compile for, e.g. sm8650")
      ->capture_default_str();
  command->add_option("--context", options.context_length, "Context length in tokens")
      ->capture_default_str();
  command->add_option("--ar", options.prompt_ar, "Tokens of one prefill call")
      ->capture_default_str();
  AddQuantFlags(*command, arguments->quant);
  command->add_option(
      "--calibration", arguments->calibration,
      "Your data: .jsonl of {\"messages\": [...]} or {\"text\": ...}, or a text file of paragraphs "
      "(default: a few built-in conversations)");
  command
      ->add_option("--samples", options.calibration_samples,
                   "Use at most this many calibration samples (0: all)")
      ->capture_default_str();
  command->add_option("--chat-template", arguments->chat_template,
                      "Jinja file to use instead of the checkpoint's");
  AddMergeFlags(*command, arguments->merge, /*adapter_required=*/false);
  command->add_option("--merged-out", options.merge.out,
                      "With --adapter: folder of the merged model (default: <out>-merged)");
  command->add_flag(
      "--no-weight-shared", arguments->no_weight_shared,
      "Build the plain binaries for the PC only, not the weight-shared one for phones");
  command->add_flag(
      "--no-rotation", arguments->no_rotation,
      "Do not fold the rotation of the residual stream (QuaRot's R1) into the weights");
  command->add_flag("--force", options.force, "Replace an existing bundle");
  command->add_flag("--keep-work", options.keep_work, "Keep the working folder after success");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->add_flag("--quiet,-q", arguments->quiet, "No progress");
  command->footer(
      "Examples:\n"
      "  hexport build --model SmolLM2.gguf --soc sm8650 --context 512 --out out/smollm2\n"
      "  hexport build --model ./my-qwen2 --soc sm8750 --weights lpbq --calibration train.jsonl "
      "--out out/q4\n"
      "  hexport build --model ./Qwen2.5-0.5B --adapter ./saves/lora --calibration train.jsonl "
      "--out out/mine");
  command->callback([arguments, &exit_code] { exit_code = RunBuild(*arguments); });
}

}  // namespace hexport::cli
