#include "cli/model_text.h"

#include <string>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "bundle/manifest.h"

namespace hexport::cli {

Result<TextAssets> OpenModelText(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path / "manifest.json", error)) return OpenText(path);
  HEXPORT_ASSIGN_OR_RETURN(const bundle::Manifest manifest,
                           bundle::OpenBundle(path, /*hash=*/false));
  TextAssets text;
  text.bos_token = manifest.model.bos_token;
  text.eos_token = manifest.model.eos_token;
  HEXPORT_ASSIGN_OR_RETURN(text.tokenizer_json, ReadTextFile(path / manifest.tokenizer));
  if (!manifest.chat_template.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(text.chat_template, ReadTextFile(path / manifest.chat_template));
    text.chat_templates["default"] = text.chat_template;
    text.template_places["default"] = (path / manifest.chat_template).string();
  }
  return text;
}

Result<std::unique_ptr<Tokenizer>> OpenModelTokenizer(const std::filesystem::path& path,
                                                      const TextAssets& text) {
  if (text.tokenizer_json.empty()) {
    return NotFound(path.string() + ": expected a tokenizer, got none");
  }
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromJson(text.tokenizer_json);
  if (!tokenizer.ok()) return tokenizer.status().WithContext(path.string());
  return tokenizer;
}

}  // namespace hexport::cli
