#include "compile/merge_text.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "text/chat_template.h"
#include "text/fingerprint.h"
#include "text/tokenizer.h"

namespace hexport::compile {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json",    "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "tokenizer.model",       "vocab.json",
    "merges.txt",        "chat_template.jinja",   "preprocessor_config.json"};
constexpr const char* kTrainingSample = "hexport_training_sample.json";

// What one side (base or adapter) brings.
struct Side {
  fs::path path;
  bool folder = false, has_tokenizer = false;
  TextAssets text;
  bool has_template() const { return !text.chat_template.empty(); }
};

Result<Side> ReadSide(const fs::path& path) {
  Side side;
  side.path = path;
  std::error_code error;
  side.folder = fs::is_directory(path, error);
  Result<TextAssets> text = OpenText(path);
  if (text.ok()) {
    side.text = *std::move(text);
    side.has_tokenizer = !side.text.tokenizer_json.empty();
  } else if (text.status().code() != StatusCode::kNotFound) {
    return text.status();
  }
  return side;
}

// Conversations of the kinds templates treat differently.
const std::vector<std::string>& ProbeConversations() {
  static const std::vector<std::string> kProbes = {
      R"([{"role":"user","content":"Hello"}])",
      R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hello"}])",
      R"([{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello!"},)"
      R"({"role":"user","content":"  Two\nlines  "}])",
      R"([{"role":"user","content":"1+1?"},{"role":"assistant","content":"2"}])",
  };
  return kProbes;
}

// Ids of a probe, or the template's error.
struct Rendered {
  std::optional<std::vector<int32_t>> ids;
  std::string error;
};

Rendered Render(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                const std::string& messages, bool generation_prompt) {
  Rendered out;
  const Result<std::string> text = chat_template.Render(messages, generation_prompt, "");
  if (!text.ok()) {
    out.error = text.status().message();
    return out;
  }
  Result<std::vector<int32_t>> ids = tokenizer.Encode(*text, false);
  if (ids.ok())
    out.ids = *std::move(ids);
  else
    out.error = ids.status().message();
  return out;
}

// "token 5: adapter 151644 "<|im_start|>", base ..."
std::string TokenAt(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, size_t index) {
  if (index >= ids.size()) return "the end";
  const Result<std::string> token = tokenizer.IdToToken(ids[index]);
  return json(token.ok() ? *token : "?").dump(-1, ' ', false, json::error_handler_t::replace) +
         " (" + std::to_string(ids[index]) + ")";
}

// The first probe that the two templates render differently, in words; empty: none.
Result<std::string> CompareTemplates(const Side& base, const Side& adapter,
                                     const Tokenizer& tokenizer) {
  if (base.text.chat_template == adapter.text.chat_template &&
      base.text.bos_token == adapter.text.bos_token &&
      base.text.eos_token == adapter.text.eos_token) {
    return std::string();
  }
  const auto create = [](const Side& side) {
    return ChatTemplate::Create(side.text.chat_template, side.text.bos_token, side.text.eos_token);
  };
  HEXPORT_ASSIGN_OR_RETURN(const auto of_base, create(base));
  HEXPORT_ASSIGN_OR_RETURN(const auto of_adapter, create(adapter));
  for (const std::string& messages : ProbeConversations()) {
    const bool prompt = !messages.ends_with("\"2\"}]");
    const Rendered a = Render(*of_adapter, tokenizer, messages, prompt);
    const Rendered b = Render(*of_base, tokenizer, messages, prompt);
    if (!a.ids.has_value() && !b.ids.has_value()) continue;
    if (!a.ids.has_value()) return messages + ": only the adapter's refuses it: " + a.error;
    if (!b.ids.has_value()) return messages + ": only the base's refuses it: " + b.error;
    const std::optional<size_t> at = FirstDifference(*a.ids, *b.ids);
    if (!at.has_value()) continue;
    return messages + ": first differing token " + std::to_string(*at) + ": adapter " +
           TokenAt(tokenizer, *a.ids, *at) + ", base " + TokenAt(tokenizer, *b.ids, *at);
  }
  return std::string();
}

Status ChooseTokenizer(const Side& base, const Side& adapter, TextSource wanted,
                       TextChoice& choice) {
  if (wanted == TextSource::kAdapter && !adapter.has_tokenizer)
    return InvalidArgument("--tokenizer adapter: no adapter folder has a tokenizer");
  if (wanted == TextSource::kBase && !base.has_tokenizer)
    return InvalidArgument("--tokenizer base: the base has no tokenizer");
  const bool from_adapter =
      adapter.has_tokenizer && (wanted != TextSource::kBase || !base.has_tokenizer);
  const Side& side = from_adapter ? adapter : base;
  if (!side.has_tokenizer) {
    choice.warnings.push_back(
        "neither base nor adapter has a tokenizer; the merged folder has none");
    return OkStatus();
  }
  choice.tokenizer_from = from_adapter ? "adapter" : "base";
  choice.text = side.text;
  if (!base.has_tokenizer || !adapter.has_tokenizer) return OkStatus();
  HEXPORT_ASSIGN_OR_RETURN(const auto a, Tokenizer::FromJson(adapter.text.tokenizer_json));
  HEXPORT_ASSIGN_OR_RETURN(const auto b, Tokenizer::FromJson(base.text.tokenizer_json));
  HEXPORT_ASSIGN_OR_RETURN(const auto differing, CompareTokenizers(*a, *b));
  choice.differing_probes = static_cast<int64_t>(differing.size());
  if (!differing.empty()) {
    choice.warnings.push_back("the adapter's tokenizer differs from the base's in " +
                              std::to_string(differing.size()) + " probe strings, the first " +
                              json(differing[0].text).dump() + "; the " + choice.tokenizer_from +
                              "'s is kept (--tokenizer)");
  }
  return OkStatus();
}

Status ChooseTemplate(const Side& base, const Side& adapter, TextSource wanted, bool any_template,
                      TextChoice& choice) {
  if (wanted == TextSource::kAdapter && !adapter.has_template())
    return InvalidArgument("--template adapter: no adapter folder has a chat template");
  if (wanted == TextSource::kBase && !base.has_template())
    return InvalidArgument("--template base: the base has no chat template");
  const Side* side = adapter.has_template() ? &adapter : &base;
  if (adapter.has_template() && base.has_template()) {
    if (!choice.text.tokenizer_json.empty()) {
      HEXPORT_ASSIGN_OR_RETURN(const auto tokenizer,
                               Tokenizer::FromJson(choice.text.tokenizer_json));
      HEXPORT_ASSIGN_OR_RETURN(choice.first_difference,
                               CompareTemplates(base, adapter, *tokenizer));
    } else if (base.text.chat_template != adapter.text.chat_template) {
      choice.first_difference = "no tokenizer to compare them with";
    }
    if (!choice.first_difference.empty() && wanted == TextSource::kUnset && !any_template) {
      return FailedPrecondition(
          "the chat template beside the adapter differs from the base's: " +
          choice.first_difference +
          "; choose with --template adapter (what it was trained with) or --template base");
    }
    if (wanted == TextSource::kBase) side = &base;
  }
  if (!side->has_template()) {
    choice.warnings.push_back("neither base nor adapter has a chat template");
    return OkStatus();
  }
  choice.template_from = side == &adapter ? "adapter" : "base";
  choice.text.chat_template = side->text.chat_template;
  choice.text.chat_templates = side->text.chat_templates;
  return OkStatus();
}

// Renders the sample that a trainer left (hexport_training_sample.json: messages and input_ids).
Status CheckTrainingSample(const fs::path& adapter, TextChoice& choice) {
  const fs::path path = adapter / kTrainingSample;
  Result<std::string> contents = ReadTextFile(path);
  if (contents.status().code() == StatusCode::kNotFound) return OkStatus();
  HEXPORT_RETURN_IF_ERROR(contents.status());
  const json sample = json::parse(*contents, nullptr, false);
  if (!sample.is_object() || !sample.contains("messages") || !sample.contains("input_ids"))
    return DataLoss(path.string() + ": expected an object with messages and input_ids");
  std::vector<int32_t> expected;
  for (const json& id : sample["input_ids"]) {
    if (!id.is_number_integer()) return DataLoss(path.string() + ": input_ids: expected integers");
    expected.push_back(id.get<int32_t>());
  }
  HEXPORT_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::FromJson(choice.text.tokenizer_json));
  HEXPORT_ASSIGN_OR_RETURN(const auto chat_template,
                           ChatTemplate::Create(choice.text.chat_template, choice.text.bos_token,
                                                choice.text.eos_token));
  const Rendered ours = Render(*chat_template, *tokenizer, sample["messages"].dump(), false);
  if (!ours.ids.has_value()) {
    choice.failures.push_back(path.string() + ": the chat template refuses it: " + ours.error);
    return OkStatus();
  }
  const std::optional<size_t> at = FirstDifference(expected, *ours.ids);
  if (at.has_value()) {
    choice.failures.push_back(path.string() + ": first differing token " + std::to_string(*at) +
                              ": training had " + TokenAt(*tokenizer, expected, *at) +
                              ", this template gives " + TokenAt(*tokenizer, *ours.ids, *at));
  }
  return OkStatus();
}

void ListFiles(const Side& side, TextChoice& choice) {
  std::error_code error;
  for (const char* name : kTokenizerFiles) {
    if (side.folder && fs::is_regular_file(side.path / name, error))
      choice.files.push_back(side.path / name);
  }
}

// A tokenizer_config.json for a tokenizer that came out of a GGUF.
std::string TokenizerConfig(const TextAssets& text) {
  nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                   {"add_bos_token", text.add_bos_token}};
  if (!text.bos_token.empty()) config["bos_token"] = text.bos_token;
  if (!text.eos_token.empty()) config["eos_token"] = text.eos_token;
  return config.dump(2) + "\n";
}

}  // namespace

Result<TextChoice> ChooseText(const fs::path& base, const std::vector<fs::path>& adapters,
                              TextSource tokenizer, TextSource chat_template, bool any_template,
                              int64_t vocab_rows) {
  TextChoice choice;
  HEXPORT_ASSIGN_OR_RETURN(const Side base_side, ReadSide(base));
  Side adapter_side;
  for (const fs::path& path : adapters) {
    std::error_code error;
    if (!fs::is_directory(path, error)) continue;
    HEXPORT_ASSIGN_OR_RETURN(Side side, ReadSide(path));
    if (side.has_tokenizer || side.has_template()) {
      adapter_side = std::move(side);
      break;
    }
  }
  HEXPORT_RETURN_IF_ERROR(ChooseTokenizer(base_side, adapter_side, tokenizer, choice));
  HEXPORT_RETURN_IF_ERROR(
      ChooseTemplate(base_side, adapter_side, chat_template, any_template, choice));
  ListFiles(choice.tokenizer_from == "adapter" ? adapter_side : base_side, choice);
  if (!choice.text.tokenizer_json.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(const auto opened, Tokenizer::FromJson(choice.text.tokenizer_json));
    HEXPORT_RETURN_IF_ERROR(CheckIdsWithin(*opened, vocab_rows)
                                .WithContext("the " + choice.tokenizer_from + "'s tokenizer"));
    for (const fs::path& path : adapters)
      HEXPORT_RETURN_IF_ERROR(CheckTrainingSample(path, choice));
  }
  return choice;
}

Status WriteText(const TextChoice& choice, const fs::path& folder) {
  bool copied = false;
  for (const fs::path& file : choice.files) {
    if (file.filename() == "chat_template.jinja") continue;  // written below
    HEXPORT_ASSIGN_OR_RETURN(const std::string contents, ReadTextFile(file));
    HEXPORT_RETURN_IF_ERROR(WriteFileAtomically(folder / file.filename(), contents));
    copied = true;
  }
  if (!copied && !choice.text.tokenizer_json.empty()) {
    HEXPORT_RETURN_IF_ERROR(
        WriteFileAtomically(folder / "tokenizer.json", choice.text.tokenizer_json));
    HEXPORT_RETURN_IF_ERROR(
        WriteFileAtomically(folder / "tokenizer_config.json", TokenizerConfig(choice.text)));
  }
  // chat_template.jinja counts before tokenizer_config.json's, so the choice holds whatever that
  // says.
  if (choice.text.chat_template.empty()) return OkStatus();
  return WriteFileAtomically(folder / "chat_template.jinja", choice.text.chat_template);
}

}  // namespace hexport::compile
