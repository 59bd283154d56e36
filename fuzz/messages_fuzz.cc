// Any bytes as the messages of a chat: refused with a Status, or rendered, by a template of strings
// and by one that walks over content parts.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "text/chat_template.h"

namespace {

std::unique_ptr<hexport::ChatTemplate> Make(std::string_view source) {
  auto created = hexport::ChatTemplate::Create(source, "<s>", "</s>");
  if (!created.ok()) std::abort();
  return *std::move(created);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto strings = Make(
      "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}"
      "{% for call in m.tool_calls %}{{ call | tojson(indent=2) }}{% endfor %}\n{% endfor %}");
  static const auto parts = Make(
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
      "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}");
  const std::string_view messages(reinterpret_cast<const char*>(data), size);
  for (const auto* chat_template : {strings.get(), parts.get()}) {
    const auto text = chat_template->Render(messages, true, "");
    if (!text.ok() && text.status().code() != hexport::StatusCode::kInvalidArgument) std::abort();
  }
  return 0;
}
