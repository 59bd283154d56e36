// Chat templates as transformers renders them: minijinja with Python methods, through textkit.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace hexport {

// Thread-safe after creation.
class ChatTemplate {
 public:
  // Compiles the Jinja source with the settings of transformers. An empty token stays undefined in
  // the template, as there. `where` begins every message: the file that the source came from.
  // Errors: kInvalidArgument with "where: line:column" (syntax, unknown filter or test, include),
  // kUnimplemented for an empty source ("the checkpoint has no chat template: pass
  // --chat-template"), never a silent default.
  static Result<std::unique_ptr<ChatTemplate>> Create(std::string_view source,
                                                      std::string_view bos_token,
                                                      std::string_view eos_token,
                                                      std::string_view where = "chat template");
  ~ChatTemplate();
  // messages_json: a JSON array of {"role", "content", ...}; null or missing content becomes ""
  // and other null fields are dropped. Lists of content parts go to a template that walks them, and
  // are joined to one text for a template that takes strings only.
  // extra_json: an object of further variables (tools, enable_thinking), or empty.
  // Errors: kInvalidArgument with the template's own raise_exception text, or "line:column"; for
  // JSON of another shape, with the index of the message; for a template that does not end or makes
  // too much text (16 MiB in one piece, 512 MiB altogether).
  Result<std::string> Render(std::string_view messages_json, bool add_generation_prompt,
                             std::string_view extra_json) const;
  // Does the template look this variable up? If not, setting it has no effect. True also for a name
  // that the template only sets itself.
  bool Reads(std::string_view variable) const;
  // All such names, sorted.
  const std::vector<std::string>& variables() const { return variables_; }

 private:
  ChatTemplate() = default;
  std::string where_;
  std::vector<std::string> variables_;
  void* handle_ = nullptr;
};

}  // namespace hexport
