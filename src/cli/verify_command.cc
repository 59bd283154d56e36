#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/console.h"
#include "compile/verify.h"

namespace hexport::cli {
namespace {

struct VerifyArguments {
  compile::VerifyOptions options;
  std::string bundle, model;
  double float_qdq = 0, qdq_emulator = 0, top1 = 0;
  CLI::Option *float_qdq_option = nullptr, *qdq_emulator_option = nullptr, *top1_option = nullptr;
  bool json = false, quiet = false, no_emulator = false;
};

nlohmann::ordered_json ToJson(const compile::VerifyResult& result) {
  nlohmann::ordered_json out = {{"samples", result.samples},
                                {"tokens", result.tokens},
                                {"cosine_float_cpu", result.cosine_float_cpu},
                                {"cosine_float_qdq", result.cosine_float_qdq},
                                {"top1_float_qdq", result.top1_float_qdq}};
  if (result.cosine_qdq_emulator) out["cosine_qdq_emulator"] = *result.cosine_qdq_emulator;
  if (result.cosine_float_emulator) out["cosine_float_emulator"] = *result.cosine_float_emulator;
  if (result.top1_float_emulator) out["top1_float_emulator"] = *result.top1_float_emulator;
  if (result.genie_answer) out["genie_answer"] = *result.genie_answer;
  out["tokenizer_fingerprint"] = result.tokenizer_fingerprint;
  out["pass"] = result.failures.empty();
  out["failures"] = result.failures;
  return out;
}

void Print(const compile::VerifyResult& result) {
  std::printf("%ld tokens of %ld calibration samples\n", static_cast<long>(result.tokens),
              static_cast<long>(result.samples));
  std::printf("  cosine float / CPU engine     %.6f\n", result.cosine_float_cpu);
  std::printf("  cosine float / QDQ graph      %.6f   top-1 %.4f\n", result.cosine_float_qdq,
              result.top1_float_qdq);
  if (result.cosine_qdq_emulator) {
    std::printf("  cosine QDQ graph / emulator   %.6f\n", *result.cosine_qdq_emulator);
    std::printf("  cosine float / emulator       %.6f   top-1 %.4f\n",
                *result.cosine_float_emulator, *result.top1_float_emulator);
  }
  if (result.genie_answer) std::printf("  Genie: %s\n", result.genie_answer->c_str());
  for (const std::string& failure : result.failures) std::printf("FAILED %s\n", failure.c_str());
  if (result.failures.empty()) std::printf("good\n");
}

int RunVerify(VerifyArguments& arguments) {
  compile::VerifyOptions& options = arguments.options;
  options.bundle = arguments.bundle;
  options.model = arguments.model;
  options.emulator = !arguments.no_emulator;
  if (arguments.float_qdq_option->count() > 0) options.min_cosine_float_qdq = arguments.float_qdq;
  if (arguments.qdq_emulator_option->count() > 0)
    options.min_cosine_qdq_emulator = arguments.qdq_emulator;
  if (arguments.top1_option->count() > 0) options.min_top1_float_emulator = arguments.top1;
  ConsoleProgress progress(arguments.quiet);
  const Result<compile::VerifyResult> result = compile::Verify(options, progress);
  progress.Clear();
  if (!result.ok()) return Fail(result.status(), arguments.json);
  if (arguments.json)
    PrintJson(ToJson(*result));
  else
    Print(*result);
  return result->failures.empty() ? kExitOk : kExitCheckFailed;
}

}  // namespace

void AddVerifyCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* command = app.add_subcommand(
      "verify",
      "Check a bundle's files, then its logits against the float model, the QDQ graph and "
      "Qualcomm's emulator");
  compile::VerifyOptions& options = arguments->options;
  command->add_option("bundle", arguments->bundle, "The bundle")->required();
  command->add_option("--model,-m", arguments->model,
                      "The checkpoint it was built from, if it has moved");
  command->add_option("--samples", options.samples, "Only the first N calibration samples (0: all)")
      ->capture_default_str();
  command
      ->add_option("--tokens", options.max_tokens,
                   "Of those samples, only the first N tokens together (0: all)")
      ->capture_default_str();
  command->add_option("--genie", options.genie_prompt, "Also ask Qualcomm's Genie this question");
  command->add_option("--max-tokens", options.genie_max_tokens, "Length of Genie's answer")
      ->capture_default_str();
  command->add_flag("--no-emulator", arguments->no_emulator, "Compare on the CPU only");
  arguments->float_qdq_option =
      command->add_option("--min-cosine-float-qdq", arguments->float_qdq,
                          "Fail below this (default .997 for int8, none for 4 bits)");
  arguments->qdq_emulator_option =
      command->add_option("--min-cosine-qdq-emulator", arguments->qdq_emulator,
                          "Fail below this (default .995 for int8, .99 for 4 bits)");
  arguments->top1_option = command->add_option(
      "--min-top1", arguments->top1, "Fail below this (default .95 for int8, none for 4 bits)");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->add_flag("--quiet,-q", arguments->quiet, "No progress");
  command->footer(
      "Examples:\n  hexport verify out/model\n"
      "  hexport verify out/model --json --genie \"What is the capital of France?\"");
  command->callback([arguments, &exit_code] { exit_code = RunVerify(*arguments); });
}

}  // namespace hexport::cli
