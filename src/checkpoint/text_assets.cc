// Choosing among a checkpoint's chat templates.
#include <string>

#include "checkpoint/checkpoint.h"

namespace hexport {

Result<ChosenTemplate> SelectTemplate(const TextAssets& text, std::string_view name, bool tools) {
  const auto& templates = text.chat_templates;
  if (templates.empty()) {
    return Unimplemented(
        "chat template: the checkpoint has no chat template: pass --chat-template");
  }
  std::string wanted(name);
  if (name.empty()) wanted = tools && templates.contains("tool_use") ? "tool_use" : "default";
  const auto found = templates.find(wanted);
  if (found == templates.end()) {
    std::string names;
    for (const auto& [known, source] : templates) names += (names.empty() ? "" : ", ") + known;
    return NotFound("chat template: expected one of " + names + ", got '" + wanted + "'");
  }
  const auto place = text.template_places.find(wanted);
  return ChosenTemplate{wanted, found->second,
                        place == text.template_places.end() ? "chat template" : place->second};
}

}  // namespace hexport
