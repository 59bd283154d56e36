#include "checkpoint/checkpoint.h"

#include <system_error>

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

}  // namespace hexport
