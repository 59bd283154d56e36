#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/model_text.h"
#include "text/fingerprint.h"

namespace hexport::cli {
namespace {

using nlohmann::ordered_json;

struct TokenizeArguments {
  std::string model, text, file;
  CLI::Option* text_option = nullptr;
  bool json = false, no_special = false, fingerprint = false;
};

struct Tokenized {
  std::string text, decoded;
  std::vector<TokenPiece> pieces;
  std::vector<int32_t> ids;
};

Result<Tokenized> TokenizeText(const TokenizeArguments& arguments, const Tokenizer& tokenizer) {
  Tokenized out;
  out.text = arguments.text;
  if (!arguments.file.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(out.text, ReadTextFile(arguments.file));
  }
  HEXPORT_ASSIGN_OR_RETURN(out.pieces, tokenizer.EncodePieces(out.text, !arguments.no_special));
  for (const TokenPiece& piece : out.pieces) out.ids.push_back(piece.id);
  HEXPORT_ASSIGN_OR_RETURN(out.decoded, tokenizer.Decode(out.ids, false));
  return out;
}

void AddTokens(const Tokenized& tokenized, ordered_json& out) {
  ordered_json tokens = ordered_json::array(), offsets = ordered_json::array();
  for (const TokenPiece& piece : tokenized.pieces) {
    tokens.push_back(piece.token);
    offsets.push_back({piece.begin, piece.end});
  }
  out["text"] = tokenized.text;
  out["ids"] = tokenized.ids;
  out["tokens"] = std::move(tokens);
  out["offsets"] = std::move(offsets);
  out["decoded"] = tokenized.decoded;
}

void PrintTokens(const Tokenized& tokenized) {
  for (size_t i = 0; i < tokenized.ids.size(); ++i) {
    std::printf("%s%d", i == 0 ? "" : " ", tokenized.ids[i]);
  }
  std::printf("\n");
  for (const TokenPiece& piece : tokenized.pieces) {
    std::printf("%8d  %s\n", piece.id, ordered_json(piece.token).dump().c_str());
  }
  std::printf("%zu tokens; decoded: %s\n", tokenized.ids.size(),
              ordered_json(tokenized.decoded).dump().c_str());
}

Status Tokenize(const TokenizeArguments& arguments) {
  const bool has_text = arguments.text_option->count() > 0;
  if (has_text == !arguments.file.empty() && (has_text || !arguments.fingerprint)) {
    return InvalidArgument("tokenize: expected a text or --file, got " +
                           std::string(has_text ? "both" : "neither"));
  }
  HEXPORT_ASSIGN_OR_RETURN(const TextAssets text, OpenModelText(arguments.model));
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                           OpenModelTokenizer(arguments.model, text));
  ordered_json out = {{"vocab_size", tokenizer->vocab_size()}};
  if (has_text || !arguments.file.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(const Tokenized tokenized, TokenizeText(arguments, *tokenizer));
    AddTokens(tokenized, out);
    if (!arguments.json) PrintTokens(tokenized);
  }
  if (arguments.fingerprint) {
    HEXPORT_ASSIGN_OR_RETURN(const TokenizerFingerprint print, Fingerprint(*tokenizer));
    out["fingerprint"] = print.sha256;
    out["highest_id"] = print.highest_id;
    if (!arguments.json) {
      std::printf("fingerprint %s over %zu probes, highest id %d of %d\n", print.sha256.c_str(),
                  print.ids.size(), print.highest_id, tokenizer->vocab_size());
    }
  }
  if (arguments.json) PrintJson(out);
  return OkStatus();
}

}  // namespace

void AddTokenizeCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* command =
      app.add_subcommand("tokenize", "Show what a model's tokenizer makes of a text");
  command
      ->add_option("--model,-m", arguments->model,
                   "Hugging Face folder (an adapter's too), GGUF file or bundle")
      ->required();
  arguments->text_option = command->add_option(
      "text", arguments->text, "The text, taken as it stands: \\n is a backslash and an n");
  command->add_option("--file,-f", arguments->file, "Read the text from this file");
  command->add_flag("--no-special", arguments->no_special,
                    "Do not add what the tokenizer puts around a text (BOS, EOS)");
  command->add_flag("--fingerprint", arguments->fingerprint,
                    "Also print the hash of what 200 probe texts become");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->footer(
      "Examples:\n  hexport tokenize --model ./my-qwen2 \"Hello, world\"\n"
      "  hexport tokenize --model model.gguf --json --no-special \"<|im_start|>user\"\n"
      "  hexport tokenize --model out/bundle --fingerprint");
  command->callback([arguments, &exit_code] {
    const Status status = Tokenize(*arguments);
    exit_code = status.ok() ? kExitOk : Fail(status, arguments->json);
  });
}

}  // namespace hexport::cli
