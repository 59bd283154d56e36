#include "text/chat_template.h"

#include "text/textkit_adapter.h"

namespace hexport {

using text_internal::OwnedString;
using text_internal::StatusFromTextkit;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(std::string_view source,
                                                           std::string_view bos_token,
                                                           std::string_view eos_token) {
  if (source.empty()) {
    return Unimplemented(
        "chat template: the checkpoint has no chat template: pass --chat-template");
  }
  std::unique_ptr<ChatTemplate> created(new ChatTemplate());
  textkit_template* handle = nullptr;
  OwnedString error;
  const int32_t code =
      textkit_template_new(source.data(), source.size(), bos_token.data(), bos_token.size(),
                           eos_token.data(), eos_token.size(), &handle, error.out());
  HEXPORT_RETURN_IF_ERROR(StatusFromTextkit(code, "chat template", error));
  created->handle_ = handle;
  return created;
}

ChatTemplate::~ChatTemplate() { textkit_template_free(static_cast<textkit_template*>(handle_)); }

Result<std::string> ChatTemplate::Render(std::string_view messages_json, bool add_generation_prompt,
                                         std::string_view extra_json) const {
  OwnedString text, error;
  const int32_t code = textkit_template_render(
      static_cast<const textkit_template*>(handle_), messages_json.data(), messages_json.size(),
      add_generation_prompt ? 1 : 0, extra_json.data(), extra_json.size(), text.out(), error.out());
  HEXPORT_RETURN_IF_ERROR(StatusFromTextkit(code, "chat template", error));
  return text.Text();
}

}  // namespace hexport
