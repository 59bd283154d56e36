#include "text/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/textkit_adapter.h"

namespace hexport {

using text_internal::OwnedString;
using text_internal::StatusFromTextkit;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(std::string_view source,
                                                           std::string_view bos_token,
                                                           std::string_view eos_token,
                                                           std::string_view where) {
  if (source.empty()) {
    return Unimplemented(std::string(where) +
                         ": the checkpoint has no chat template: pass --chat-template");
  }
  std::unique_ptr<ChatTemplate> created(new ChatTemplate());
  textkit_template* handle = nullptr;
  OwnedString error;
  const int32_t code =
      textkit_template_new(source.data(), source.size(), bos_token.data(), bos_token.size(),
                           eos_token.data(), eos_token.size(), &handle, error.out());
  HEXPORT_RETURN_IF_ERROR(StatusFromTextkit(code, where, error));
  created->handle_ = handle;
  created->where_ = where;
  OwnedString names, names_error;
  HEXPORT_RETURN_IF_ERROR(StatusFromTextkit(
      textkit_template_variables(handle, names.out(), names_error.out()), where, names_error));
  const nlohmann::json listed = nlohmann::json::parse(names.Text(), nullptr, false);
  if (!listed.is_array()) return Internal(std::string(where) + ": variables: expected an array");
  created->variables_ = listed.get<std::vector<std::string>>();
  return created;
}

ChatTemplate::~ChatTemplate() { textkit_template_free(static_cast<textkit_template*>(handle_)); }

Result<std::string> ChatTemplate::Render(std::string_view messages_json, bool add_generation_prompt,
                                         std::string_view extra_json) const {
  OwnedString text, error;
  const int32_t code = textkit_template_render(
      static_cast<const textkit_template*>(handle_), messages_json.data(), messages_json.size(),
      add_generation_prompt ? 1 : 0, extra_json.data(), extra_json.size(), text.out(), error.out());
  HEXPORT_RETURN_IF_ERROR(StatusFromTextkit(code, where_, error));
  return text.Text();
}

bool ChatTemplate::Reads(std::string_view variable) const {
  return std::binary_search(variables_.begin(), variables_.end(), variable);
}

}  // namespace hexport
