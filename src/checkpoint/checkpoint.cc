#include "checkpoint/checkpoint.h"

#include <system_error>

#include "base/mapped_file.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/hf_text.h"
#include "checkpoint/mapped_checkpoint.h"

namespace hexport {

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return NotFound(path.string() +
                    ": expected a .gguf file or a folder with config.json, got nothing");
  }
  if (error) return ErrnoStatus(error.value(), path.string());
  if (std::filesystem::is_directory(status)) return checkpoint::OpenHfFolder(path, {});
  if (path.extension() == ".gguf") return checkpoint::OpenGguf(path);
  if (path.extension() == ".safetensors") {
    const std::filesystem::path folder = path.parent_path();
    return checkpoint::OpenHfFolder(folder.empty() ? "." : folder, path);
  }
  return InvalidArgument(path.string() +
                         ": expected a .gguf or .safetensors file or a folder with "
                         "config.json, got another file");
}

Result<TextAssets> OpenText(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    HEXPORT_ASSIGN_OR_RETURN(TextAssets text,
                             checkpoint::HfText(path, /*tokenizer_required=*/false));
    if (text.tokenizer_json.empty() && text.chat_template.empty()) {
      return NotFound(path.string() +
                      ": expected tokenizer.json or a chat template, got neither; pass the folder "
                      "that holds the tokenizer");
    }
    return text;
  }
  if (!std::filesystem::exists(path, error))
    return NotFound(path.string() + ": expected a folder or a .gguf file, got nothing");
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  HEXPORT_ASSIGN_OR_RETURN(const checkpoint::GgufContents contents,
                           checkpoint::ParseGguf(file->bytes(), path.string()));
  return checkpoint::GgufText(contents, path.string());
}

}  // namespace hexport
