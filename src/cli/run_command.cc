#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "bundle/manifest.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "compile/genie_run.h"
#include "compile/worker.h"
#include "runtime/session.h"
#include "text/tokenizer.h"

namespace hexport::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct RunArguments {
  std::string bundle, engine = "cpu", prompt, system;
  int64_t max_tokens = 256, top_k = 0;
  double temperature = 0, top_p = 1;
  uint64_t seed = 42;
  bool raw = false, json = false, quiet = false, no_check = false;
};

struct Answer {
  std::string text, finish_reason;
  std::vector<int32_t> token_ids;
  std::vector<float> margins;  // best minus second-best logit; empty for Genie
  size_t prompt_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  json check;  // emulator against the QDQ graph; null when not done
};

// Everything one answer needs besides the engine.
struct Conversation {
  const RunArguments& arguments;
  bundle::Manifest manifest;
  std::unique_ptr<Tokenizer> tokenizer;
  std::string rendered;
  std::vector<int32_t> prompt;
  ConsoleProgress& progress;

  void Show(const std::string& piece) const {
    if (arguments.json || piece.empty()) return;
    progress.Clear();
    std::fputs(piece.c_str(), stdout);
    std::fflush(stdout);
  }
};

runtime::GenerateOptions GenerateOptionsOf(const RunArguments& arguments) {
  runtime::GenerateOptions options;
  options.max_tokens = arguments.max_tokens;
  options.sampling = {arguments.temperature, arguments.top_k, arguments.top_p, arguments.seed};
  return options;
}

// Collects tokens and shows their text as it completes.
class AnswerStream {
 public:
  AnswerStream(const Conversation& conversation, Answer& answer)
      : conversation_(conversation), answer_(answer), detokenizer_(*conversation.tokenizer, true) {}

  bool Push(int32_t id, float margin) {
    answer_.token_ids.push_back(id);
    answer_.margins.push_back(margin);
    const Result<std::string> piece = detokenizer_.Push(id);
    if (!piece.ok()) {
      status_ = piece.status();
      return false;
    }
    Emit(*piece);
    return true;
  }
  Status Finish() {
    if (!status_.ok()) return status_;
    HEXPORT_ASSIGN_OR_RETURN(std::string rest, detokenizer_.Finish());
    Emit(rest);
    return OkStatus();
  }

 private:
  void Emit(const std::string& piece) {
    answer_.text += piece;
    conversation_.Show(piece);
  }
  const Conversation& conversation_;
  Answer& answer_;
  StreamingDetokenizer detokenizer_;
  Status status_;
};

Status RunInProcess(const Conversation& conversation, runtime::EngineKind kind, Answer& answer) {
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Session> session,
                           runtime::Session::Create(conversation.arguments.bundle, kind));
  AnswerStream stream(conversation, answer);
  HEXPORT_ASSIGN_OR_RETURN(
      runtime::GenerateResult result,
      session->Generate(conversation.prompt, GenerateOptionsOf(conversation.arguments),
                        [&](const runtime::GeneratedToken& token) {
                          return stream.Push(token.id, token.margin);
                        }));
  answer.finish_reason = result.finish_reason;
  answer.prefill_seconds = result.prefill_seconds;
  answer.decode_seconds = result.decode_seconds;
  return stream.Finish();
}

Status RunEmulator(const Conversation& conversation, Answer& answer) {
  const RunArguments& arguments = conversation.arguments;
  AnswerStream stream(conversation, answer);
  conversation.progress.Update("emulator: loading", 0, 0);
  const json request = {{"bundle", arguments.bundle},
                        {"engine", "emulator"},
                        {"prompt", conversation.prompt},
                        {"max_tokens", arguments.max_tokens},
                        {"temperature", arguments.temperature},
                        {"top_k", arguments.top_k},
                        {"top_p", arguments.top_p},
                        {"seed", arguments.seed}};
  HEXPORT_ASSIGN_OR_RETURN(
      json result, compile::CallWorker(
                       "generate", request, "emulator",
                       [&](const json& event) {
                         if (event.contains("loaded")) {
                           conversation.progress.Update("emulator: reading the prompt", 0, 0);
                         } else if (event.contains("id")) {
                           stream.Push(event["id"].get<int32_t>(), event["margin"].get<float>());
                         }
                       },
                       nullptr));
  answer.finish_reason = result.value("finish_reason", "");
  answer.prefill_seconds = result.value("prefill_seconds", 0.0);
  answer.decode_seconds = result.value("decode_seconds", 0.0);
  return stream.Finish();
}

// Greedy tokens of the emulator against the same graph on the CPU; where they part, the logit
// margin there says whether it was a near tie.
Status CheckAgainstQdq(const Conversation& conversation, Answer& answer) {
  conversation.progress.Update("checking against the QDQ graph on the CPU", 0, 0);
  HEXPORT_ASSIGN_OR_RETURN(
      std::unique_ptr<runtime::Session> session,
      runtime::Session::Create(conversation.arguments.bundle, runtime::EngineKind::kQdq));
  HEXPORT_ASSIGN_OR_RETURN(
      runtime::GenerateResult qdq,
      session->Generate(conversation.prompt, GenerateOptionsOf(conversation.arguments), {}));
  size_t same = 0;
  while (same < qdq.tokens.size() && same < answer.token_ids.size() &&
         qdq.tokens[same].id == answer.token_ids[same]) {
    ++same;
  }
  const bool equal = same == qdq.tokens.size() && same == answer.token_ids.size();
  answer.check = {{"equal", equal}, {"equal_tokens", same}};
  if (equal) return OkStatus();
  json difference = {{"index", same}};
  if (same < answer.token_ids.size()) {
    difference["emulator_token"] = answer.token_ids[same];
    difference["emulator_margin"] = answer.margins[same];
  }
  if (same < qdq.tokens.size()) {
    difference["qdq_token"] = qdq.tokens[same].id;
    difference["qdq_margin"] = qdq.tokens[same].margin;
  }
  answer.check["first_difference"] = difference;
  return OkStatus();
}

Status RunGenie(const Conversation& conversation, Answer& answer) {
  const RunArguments& arguments = conversation.arguments;
  conversation.progress.Update("Genie", 0, 0);
  compile::GenieRequest request;
  request.prompt = arguments.prompt;
  request.system = arguments.system;
  request.raw = arguments.raw;
  request.max_tokens = arguments.max_tokens;
  request.temperature = arguments.temperature;
  request.top_k = arguments.top_k;
  request.top_p = arguments.top_p;
  request.seed = arguments.seed;
  HEXPORT_ASSIGN_OR_RETURN(answer.text, compile::AskGenie(arguments.bundle, conversation.manifest,
                                                          request, [&](std::string_view piece) {
                                                            conversation.Show(std::string(piece));
                                                          }));
  // Genie tells text only: the ids are those of its text.
  HEXPORT_ASSIGN_OR_RETURN(answer.token_ids, conversation.tokenizer->Encode(answer.text, false));
  answer.finish_reason =
      static_cast<int64_t>(answer.token_ids.size()) >= arguments.max_tokens ? "length" : "stop";
  return OkStatus();
}

void PrintAnswer(const Conversation& conversation, const Answer& answer) {
  const RunArguments& arguments = conversation.arguments;
  if (!arguments.json) {
    std::printf("\n");
    if (!answer.check.is_null() && !arguments.quiet) {
      if (answer.check["equal"].get<bool>()) {
        std::fprintf(stderr, "check: all %zu tokens equal those of the QDQ graph on the CPU\n",
                     answer.token_ids.size());
      } else {
        std::fprintf(stderr, "check: parts from the QDQ graph on the CPU: %s\n",
                     answer.check["first_difference"].dump().c_str());
      }
    }
    return;
  }
  nlohmann::ordered_json out = {{"text", answer.text},
                                {"token_ids", answer.token_ids},
                                {"finish_reason", answer.finish_reason},
                                {"prompt_tokens", answer.prompt_tokens},
                                {"generated_tokens", answer.token_ids.size()},
                                {"engine", arguments.engine}};
  if (arguments.engine != "genie") {
    out["pc_seconds"] = {{"prefill", answer.prefill_seconds}, {"decode", answer.decode_seconds}};
  }
  if (!answer.check.is_null()) out["qdq_check"] = answer.check;
  PrintJson(out);
}

Status Prepare(Conversation& conversation) {
  const RunArguments& arguments = conversation.arguments;
  if (arguments.max_tokens < 1) return InvalidArgument("--max-tokens: expected at least 1");
  if (!(arguments.temperature >= 0)) return InvalidArgument("--temperature: expected 0 or more");
  if (!(arguments.top_p > 0 && arguments.top_p <= 1))
    return InvalidArgument("--top-p: expected a number in (0, 1]");
  if (arguments.top_k < 0) return InvalidArgument("--top-k: expected 0 or more");
  HEXPORT_ASSIGN_OR_RETURN(conversation.manifest,
                           bundle::OpenBundle(arguments.bundle, /*hash=*/false));
  HEXPORT_ASSIGN_OR_RETURN(
      std::string tokenizer_json,
      ReadTextFile(fs::path(arguments.bundle) / conversation.manifest.tokenizer));
  HEXPORT_ASSIGN_OR_RETURN(conversation.tokenizer, Tokenizer::FromJson(tokenizer_json));
  HEXPORT_ASSIGN_OR_RETURN(
      conversation.rendered,
      compile::RenderPrompt(arguments.bundle, conversation.manifest, arguments.prompt,
                            arguments.system, arguments.raw));
  HEXPORT_ASSIGN_OR_RETURN(conversation.prompt,
                           conversation.tokenizer->Encode(conversation.rendered, arguments.raw));
  const size_t room = static_cast<size_t>(conversation.manifest.context_length);
  if (conversation.prompt.empty())
    return InvalidArgument("--prompt: expected at least one token, got none");
  if (conversation.prompt.size() >= room) {
    return InvalidArgument("--prompt: expected fewer tokens than the bundle's context of " +
                           std::to_string(room) + ", got " +
                           std::to_string(conversation.prompt.size()));
  }
  return OkStatus();
}

Status Answering(Conversation& conversation, Answer& answer) {
  const RunArguments& arguments = conversation.arguments;
  HEXPORT_RETURN_IF_ERROR(Prepare(conversation));
  answer.prompt_tokens = conversation.prompt.size();
  if (arguments.engine == "genie") return RunGenie(conversation, answer);
  Result<runtime::EngineKind> parsed = runtime::ParseEngineKind(arguments.engine);
  if (!parsed.ok()) {
    return InvalidArgument("--engine: expected cpu, qdq, emulator or genie, got '" +
                           arguments.engine + "'");
  }
  const runtime::EngineKind kind = *parsed;
  if (kind != runtime::EngineKind::kEmulator) return RunInProcess(conversation, kind, answer);
  HEXPORT_RETURN_IF_ERROR(RunEmulator(conversation, answer));
  if (arguments.no_check || arguments.temperature > 0) return OkStatus();
  return CheckAgainstQdq(conversation, answer);
}

int RunRun(const RunArguments& arguments) {
  ConsoleProgress progress(arguments.quiet);
  Conversation conversation{arguments, {}, nullptr, {}, {}, progress};
  Answer answer;
  const Status status = Answering(conversation, answer);
  progress.Clear();
  if (!status.ok()) return Fail(status, arguments.json);
  PrintAnswer(conversation, answer);
  return kExitOk;
}

}  // namespace

void AddRunCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* command = app.add_subcommand("run", "Ask a bundle a question");
  command->add_option("bundle", arguments->bundle, "The bundle")->required();
  command
      ->add_option(
          "--engine,-e", arguments->engine,
          "cpu (int4/int8 weights, float activations), qdq (the NPU's graph on the CPU), emulator "
          "(Qualcomm's HTP emulator) or genie (Qualcomm's Genie on the emulator)")
      ->capture_default_str();
  command->add_option("--prompt,-p", arguments->prompt, "The question")->required();
  command->add_option("--system", arguments->system, "A system message");
  command->add_flag("--raw", arguments->raw,
                    "Send the prompt as it stands, without the chat template");
  command->add_option("--max-tokens,-n", arguments->max_tokens, "Stop after this many tokens")
      ->capture_default_str();
  command
      ->add_option("--temperature,-t", arguments->temperature, "0: the most likely token each time")
      ->capture_default_str();
  command->add_option("--top-k", arguments->top_k, "Choose among the k most likely (0: off)")
      ->capture_default_str();
  command
      ->add_option("--top-p", arguments->top_p,
                   "Choose among the most likely that sum to p (1: off)")
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "Seed of the sampler")->capture_default_str();
  command->add_flag("--no-check", arguments->no_check,
                    "Do not compare the emulator's greedy tokens with the QDQ graph on the CPU");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->add_flag("--quiet,-q", arguments->quiet, "No progress");
  command->footer(
      "Examples:\n  hexport run out/model --prompt \"What is the capital of France?\"\n"
      "  hexport run out/model --engine emulator --prompt \"Hello\" --max-tokens 8 --json");
  command->callback([arguments, &exit_code] { exit_code = RunRun(*arguments); });
}

}  // namespace hexport::cli
