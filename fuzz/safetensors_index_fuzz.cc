// Any bytes as model.safetensors.index.json: refused with a Status, or every shard is a plain file
// name, so that nothing outside the folder is opened.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "checkpoint/safetensors_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto shards = hexport::ParseSafetensorsIndex(text, "fuzz");
  if (!shards.ok()) return 0;
  const std::filesystem::path folder = "/folder";
  for (const auto& [tensor, shard] : *shards) {
    const std::filesystem::path path = (folder / shard).lexically_normal();
    if (path.parent_path() != folder || path.filename() != shard) std::abort();
    if (shard.find('\0') != std::string::npos) std::abort();
  }
  return 0;
}
