#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/console.h"
#include "evaluate/eval.h"

namespace hexport::cli {
namespace {

using nlohmann::ordered_json;

struct EvalArguments {
  evaluate::EvalOptions options;
  std::string target, text, tasks, reference, engine;
  bool json = false, quiet = false;
};

ordered_json ScoresToJson(const evaluate::TaskScores& scores) {
  return {{"acc", scores.acc}, {"acc_norm", scores.acc_norm}};
}

ordered_json ToJson(const evaluate::EvalResult& result) {
  ordered_json out = {{"engine", result.engine},
                      {"context", result.context},
                      {"bits_per_weight", result.bits_per_weight}};
  if (result.text) {
    const evaluate::TextResult& text = *result.text;
    out["tokens"] = text.tokens;
    out["perplexity"] = text.perplexity;
    out["perplexity_float"] = text.perplexity_float;
    out["perplexity_ratio"] = text.perplexity / text.perplexity_float;
    out["top1_vs_float"] = text.top1_vs_float;
    out["kl_vs_float"] = text.kl_vs_float;
    out["cosine_vs_float"] = text.cosine_vs_float;
  }
  if (result.tasks) {
    out["tasks"] = ScoresToJson(result.tasks->engine);
    out["tasks"]["questions"] = result.tasks->engine.questions;
    out["tasks"]["float"] = ScoresToJson(result.tasks->reference);
  }
  return out;
}

void Print(const evaluate::EvalResult& result) {
  std::printf("engine %s, %.3f bits per weight of the decoder's linears\n", result.engine.c_str(),
              result.bits_per_weight);
  if (result.text) {
    const evaluate::TextResult& text = *result.text;
    std::printf("  tokens                      %ld, in windows of %ld\n",
                static_cast<long>(text.tokens), static_cast<long>(result.context));
    std::printf("  perplexity                  %.4f   float %.4f   ratio %.4f\n", text.perplexity,
                text.perplexity_float, text.perplexity / text.perplexity_float);
    std::printf("  top-1 agreement with float  %.4f\n", text.top1_vs_float);
    std::printf("  KL(float || engine)         %.5f nats a token\n", text.kl_vs_float);
    std::printf("  cosine with float's logits  %.6f\n", text.cosine_vs_float);
  }
  if (result.tasks) {
    const auto& [engine, reference] = *result.tasks;
    std::printf("  questions                   %ld\n", static_cast<long>(engine.questions));
    std::printf("  acc                         %.4f   float %.4f\n", engine.acc, reference.acc);
    std::printf("  acc_norm                    %.4f   float %.4f\n", engine.acc_norm,
                reference.acc_norm);
  }
}

int RunEval(EvalArguments& arguments) {
  evaluate::EvalOptions& options = arguments.options;
  const Result<evaluate::EvalEngine> engine = evaluate::ParseEvalEngine(arguments.engine);
  if (!engine.ok()) return Fail(engine.status(), arguments.json);
  options.engine = *engine;
  options.target = arguments.target;
  options.text = arguments.text;
  options.tasks = arguments.tasks;
  options.reference = arguments.reference;
  ConsoleProgress progress(arguments.quiet);
  const Result<evaluate::EvalResult> result = evaluate::Evaluate(options, progress);
  progress.Clear();
  if (!result.ok()) return Fail(result.status(), arguments.json);
  if (arguments.json)
    PrintJson(ToJson(*result));
  else
    Print(*result);
  return kExitOk;
}

}  // namespace

void AddEvalCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<EvalArguments>();
  CLI::App* command = app.add_subcommand(
      "eval",
      "Measure a model on any text: perplexity, and how far it is from the float model; and on "
      "multiple-choice questions");
  evaluate::EvalOptions& options = arguments->options;
  command->add_option("target", arguments->target, "A bundle, or a checkpoint (GGUF or folder)")
      ->required();
  command->add_option("--text,-t", arguments->text,
                      "A text file, taken whole, or .jsonl of {\"text\"} or {\"messages\"}");
  command->add_option("--tasks", arguments->tasks,
                      ".jsonl of {\"question\", \"choices\": [...], \"answer\": index}");
  command
      ->add_option("--engine,-e", arguments->engine,
                   "float; of a bundle also cpu, qdq or emulator (slow)")
      ->default_val("float");
  command->add_option("--reference", arguments->reference,
                      "The float model to compare with, if not the bundle's own source");
  command->add_option("--max-tokens", options.max_tokens,
                      "Tokens of the text (default 8192; emulator: 256)");
  command->add_option("--context", options.context,
                      "Tokens of a window (default 512, or the bundle's context if shorter)");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->add_flag("--quiet,-q", arguments->quiet, "No progress");
  command->footer(
      "The text is cut into windows that do not overlap; the first token of each is context only.\n"
      "Examples:\n"
      "  hexport eval model.gguf --text heldout.txt\n"
      "  hexport eval out/model --engine qdq --text heldout.txt --json\n"
      "  hexport eval smaller.gguf --reference model.gguf --text heldout.txt\n"
      "  hexport eval out/model --engine cpu --tasks questions.jsonl");
  command->callback([arguments, &exit_code] { exit_code = RunEval(*arguments); });
}

}  // namespace hexport::cli
