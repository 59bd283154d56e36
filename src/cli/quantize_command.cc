#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/quant_flags.h"
#include "compile/quantize.h"

namespace hexport::cli {
namespace {

struct QuantizeArguments {
  compile::QuantizeOptions options;
  std::string model, out, calibration, encodings;
  QuantFlags quant;
  bool json = false, quiet = false, no_rotation = false;
};

void PrintSummary(const std::string& out, const compile::QuantizeResult& result) {
  std::printf("%s: %.3f bits a decoder weight, %.0f s\n", out.c_str(),
              quant::BitsPerWeight(result.facts.losses), result.report.seconds);
  if (result.imported.has_value()) {
    std::printf(
        "imported: %ld linears code for code, %ld with rounded scales; %ld quantized anew\n",
        static_cast<long>(result.imported->held), static_cast<long>(result.imported->rounded),
        static_cast<long>(result.imported->requantized));
  }
  std::printf("%-40s %9s %10s\n", "stage", "seconds", "peak MiB");
  for (const auto& stage : result.report.stages)
    std::printf("%-40s %9.1f %10.0f\n", stage.name.c_str(), stage.seconds, stage.peak_rss_mb);
  std::printf("Next: hexport eval %s --text FILE --engine qdq\n", out.c_str());
}

// An encodings file says it all; only --config may add what it cannot (float16 norms).
Status CheckEncodingsAlone(const QuantizeArguments& arguments) {
  if (arguments.encodings.empty()) return OkStatus();
  if (arguments.options.auto_bits != 0.0)
    return InvalidArgument("--auto: the encodings file decides that; leave one out");
  return RefuseQuantFlags(arguments.quant, "the encodings file");
}

int RunQuantize(QuantizeArguments& arguments) {
  compile::QuantizeOptions& options = arguments.options;
  const Status alone = CheckEncodingsAlone(arguments);
  if (!alone.ok()) return Fail(alone, arguments.json);
  const Result<quant::QuantConfig> config = ConfigFrom(arguments.quant);
  if (!config.ok()) return Fail(config.status(), arguments.json);
  options.config = *config;
  options.model = arguments.model;
  options.out = arguments.out;
  options.calibration = arguments.calibration;
  options.encodings = arguments.encodings;
  options.rotate_residual = !arguments.no_rotation;
  ConsoleProgress progress(arguments.quiet);
  const Result<compile::QuantizeResult> result = compile::QuantizeCheckpoint(options, progress);
  progress.Clear();
  if (!result.ok()) return Fail(result.status(), arguments.json);
  for (const std::string& warning : result->warnings)
    std::fprintf(stderr, "hexport: warning: %s\n", warning.c_str());
  if (!arguments.json) {
    PrintSummary(arguments.out, *result);
    return kExitOk;
  }
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  double peak = 0.0;
  for (const auto& stage : result->report.stages) {
    stages.push_back(
        {{"name", stage.name}, {"seconds", stage.seconds}, {"peak_rss_mb", stage.peak_rss_mb}});
    peak = std::max(peak, stage.peak_rss_mb);
  }
  nlohmann::ordered_json encodings = nullptr;
  if (!arguments.encodings.empty())
    encodings = {{"in", result->encodings_in}, {"used", result->encodings_used}};
  nlohmann::ordered_json imported = nullptr;
  if (result->imported.has_value()) {
    imported = {{"held", result->imported->held},
                {"rounded", result->imported->rounded},
                {"requantized", result->imported->requantized}};
  }
  PrintJson({{"out", arguments.out},
             {"encodings", encodings},
             {"import", imported},
             {"bits_per_weight", quant::BitsPerWeight(result->facts.losses)},
             {"seconds", result->report.seconds},
             {"peak_rss_mb", peak},
             {"stages", stages},
             {"warnings", result->warnings}});
  return kExitOk;
}

}  // namespace

void AddQuantizeCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<QuantizeArguments>();
  CLI::App* command = app.add_subcommand(
      "quantize", "Checkpoint in, quantized weights and activation ranges out; no compiler");
  compile::QuantizeOptions& options = arguments->options;
  command->add_option("--model,-m", arguments->model, "GGUF file or Hugging Face folder")
      ->required();
  command->add_option("--out,-o", arguments->out, "The folder to write")->required();
  AddQuantFlags(*command, arguments->quant);
  command->add_option(
      "--auto", options.auto_bits,
      "Average bits of the decoder's weights, scales included: what they allow over "
      "--weights goes to the linears that lose most, as int8");
  command->add_option("--encodings", arguments->encodings,
                      "AIMET encodings file that decides all encodings and formats: "
                      "hexport encodings check says whether it fits");
  command->add_option(
      "--calibration", arguments->calibration,
      "Your data: .jsonl of {\"messages\": [...]} or {\"text\": ...}, or a text file of paragraphs "
      "(default: a few built-in conversations)");
  command->add_option("--samples", options.samples, "Use at most this many samples (0: all)")
      ->capture_default_str();
  command->add_option("--sample-tokens", options.sample_tokens, "Longer samples are cut to this")
      ->capture_default_str();
  command->add_flag("--no-rotation", arguments->no_rotation,
                    "Do not fold the rotation of the residual stream (QuaRot's R1) in");
  command->add_flag("--force", options.force, "Replace an existing folder");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->add_flag("--quiet,-q", arguments->quiet, "No progress");
  command->footer(
      "An interrupted run goes on after the layers that are done.\n"
      "Examples:\n"
      "  hexport quantize --model SmolLM2.gguf --weights lpbq --block 16 --calibration train.jsonl "
      "--samples 100 --out out/q4\n"
      "  hexport quantize --model ./my-qwen2 --weights lpbq --block 16 --auto 5.25 --calibration "
      "train.jsonl --out out/q5\n"
      "  hexport quantize --model ./my-gptq-model --method import --out out/mine\n"
      "  hexport quantize --model SmolLM2.gguf --encodings mine.encodings --out out/mine\n"
      "  hexport eval out/q4 --text heldout.txt --engine qdq");
  command->callback([arguments, &exit_code] { exit_code = RunQuantize(*arguments); });
}

}  // namespace hexport::cli
