#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/model_text.h"
#include "text/chat_template.h"

namespace hexport::cli {
namespace {

using nlohmann::ordered_json;

struct TemplateArguments {
  std::string model, messages, tools, name, chat_template;
  std::vector<std::string> set;
  bool no_generation_prompt = false, ids = false, json = false;
};

struct Conversation {
  ordered_json messages;
  ordered_json extra = ordered_json::object();  // further variables of the template
};

struct Rendering {
  std::string text;
  ChosenTemplate chosen;
  std::vector<int32_t> ids;
  bool has_ids = false;
  std::vector<std::string> warnings;
};

// "-" is standard input.
Result<ordered_json> ReadJson(const std::string& path) {
  std::string text;
  if (path == "-") {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    HEXPORT_ASSIGN_OR_RETURN(text, ReadTextFile(path));
  }
  try {
    return ordered_json::parse(text);
  } catch (const ordered_json::exception& error) {
    return InvalidArgument(path + ": expected JSON, got " + error.what());
  }
}

// The value of --set name=value: JSON where it is JSON, else a text.
Status AddVariable(const std::string& setting, ordered_json& extra) {
  const size_t equals = setting.find('=');
  if (equals == 0 || equals == std::string::npos) {
    return InvalidArgument("--set: expected name=value, got '" + setting + "'");
  }
  const std::string text = setting.substr(equals + 1);
  const ordered_json value = ordered_json::parse(text, nullptr, false);
  extra[setting.substr(0, equals)] = value.is_discarded() ? ordered_json(text) : value;
  return OkStatus();
}

Result<Conversation> ReadConversation(const TemplateArguments& arguments) {
  Conversation conversation;
  HEXPORT_ASSIGN_OR_RETURN(conversation.messages, ReadJson(arguments.messages));
  if (conversation.messages.is_object()) {  // {"messages": [...], "tools": [...]}
    const ordered_json whole = std::move(conversation.messages);
    if (!whole.contains("messages")) {
      return InvalidArgument(arguments.messages +
                             ": expected an array of messages or an object with messages");
    }
    conversation.messages = whole["messages"];
    if (whole.contains("tools") && !whole["tools"].is_null()) {
      conversation.extra["tools"] = whole["tools"];
    }
  }
  if (!arguments.tools.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(conversation.extra["tools"], ReadJson(arguments.tools));
  }
  if (conversation.extra.contains("tools") && !conversation.extra["tools"].is_array()) {
    return InvalidArgument(
        (arguments.tools.empty() ? arguments.messages + ": tools" : arguments.tools) +
        ": expected an array of tools");
  }
  for (const std::string& setting : arguments.set) {
    HEXPORT_RETURN_IF_ERROR(AddVariable(setting, conversation.extra));
  }
  return conversation;
}

Result<ChosenTemplate> Choose(const TemplateArguments& arguments, const TextAssets& text,
                              bool tools) {
  if (arguments.chat_template.empty()) return SelectTemplate(text, arguments.name, tools);
  ChosenTemplate chosen{"", "", arguments.chat_template};
  HEXPORT_ASSIGN_OR_RETURN(chosen.source, ReadTextFile(arguments.chat_template));
  return chosen;
}

Status EncodeRendering(const TemplateArguments& arguments, const TextAssets& text,
                       Rendering& rendering) {
  if (text.tokenizer_json.empty()) {
    rendering.warnings.push_back(arguments.model + ": has no tokenizer: no ids");
    return OkStatus();
  }
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                           OpenModelTokenizer(arguments.model, text));
  // The template writes the special tokens itself: the tokenizer adds none, so BOS comes once.
  HEXPORT_ASSIGN_OR_RETURN(rendering.ids, tokenizer->Encode(rendering.text, false));
  rendering.has_ids = true;
  const int32_t bos = text.bos_token.empty() ? -1 : tokenizer->TokenToId(text.bos_token);
  if (bos >= 0 && rendering.ids.size() > 1 && rendering.ids[0] == bos && rendering.ids[1] == bos) {
    rendering.warnings.push_back("the rendered text begins with " + text.bos_token + " twice");
  }
  return OkStatus();
}

Result<Rendering> Render(const TemplateArguments& arguments) {
  HEXPORT_ASSIGN_OR_RETURN(const TextAssets text, OpenModelText(arguments.model));
  HEXPORT_ASSIGN_OR_RETURN(const Conversation conversation, ReadConversation(arguments));
  const bool tools = conversation.extra.contains("tools") && !conversation.extra["tools"].empty();
  Rendering rendering;
  HEXPORT_ASSIGN_OR_RETURN(rendering.chosen, Choose(arguments, text, tools));
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<ChatTemplate> chat_template,
                           ChatTemplate::Create(rendering.chosen.source, text.bos_token,
                                                text.eos_token, rendering.chosen.where));
  for (const auto& [name, value] : conversation.extra.items()) {
    if (chat_template->Reads(name)) continue;
    rendering.warnings.push_back(name + ": ignored: the template never reads it");
  }
  HEXPORT_ASSIGN_OR_RETURN(rendering.text, chat_template->Render(conversation.messages.dump(),
                                                                 !arguments.no_generation_prompt,
                                                                 conversation.extra.dump()));
  HEXPORT_RETURN_IF_ERROR(EncodeRendering(arguments, text, rendering));
  return rendering;
}

void Print(const TemplateArguments& arguments, const Rendering& rendering) {
  for (const std::string& warning : rendering.warnings) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  if (arguments.json) {
    ordered_json out = {{"text", rendering.text},
                        {"ids", rendering.has_ids ? ordered_json(rendering.ids) : ordered_json()},
                        {"template", rendering.chosen.name},
                        {"template_file", rendering.chosen.where},
                        {"warnings", rendering.warnings}};
    PrintJson(out);
    return;
  }
  std::fwrite(rendering.text.data(), 1, rendering.text.size(), stdout);
  std::printf("\n");
  if (!arguments.ids) return;
  for (size_t i = 0; i < rendering.ids.size(); ++i) {
    std::printf("%s%d", i == 0 ? "" : " ", rendering.ids[i]);
  }
  std::printf("\n");
}

}  // namespace

void AddTemplateCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<TemplateArguments>();
  CLI::App* command =
      app.add_subcommand("template", "Render a conversation by a model's chat template");
  command
      ->add_option("--model,-m", arguments->model,
                   "Hugging Face folder (an adapter's too), GGUF file or bundle")
      ->required();
  command
      ->add_option("--messages", arguments->messages,
                   "JSON file: an array of messages, or an object with messages and tools (-: "
                   "standard input)")
      ->required();
  command->add_option("--tools", arguments->tools, "JSON file: an array of tools");
  command->add_flag("--no-generation-prompt", arguments->no_generation_prompt,
                    "Do not open the assistant's next turn");
  command
      ->add_option("--set", arguments->set,
                   "A variable of the template: name=value, the value JSON or else a text")
      ->allow_extra_args(false);
  command->add_option("--template", arguments->name,
                      "Which of several templates (default: tool_use with tools, else default)");
  command->add_option("--chat-template", arguments->chat_template,
                      "Jinja file to use instead of the model's");
  command->add_flag("--ids", arguments->ids, "Also print the token ids");
  command->add_flag("--json", arguments->json, "Print one JSON object, with text and ids");
  command->footer(
      "Examples:\n  hexport template --model ./my-qwen3 --messages chat.json --set "
      "enable_thinking=false\n"
      "  hexport template --model model.gguf --messages chat.json --tools tools.json --json");
  command->callback([arguments, &exit_code] {
    const Result<Rendering> rendering = Render(*arguments);
    if (!rendering.ok()) {
      exit_code = Fail(rendering.status(), arguments->json);
      return;
    }
    Print(*arguments, *rendering);
    exit_code = kExitOk;
  });
}

}  // namespace hexport::cli
