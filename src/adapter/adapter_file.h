// The parts of an opened adapter; private to this folder.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "base/mapped_file.h"

namespace hexport::adapter {

struct AdapterParts {
  AdapterConfig config;
  std::filesystem::path path;
  std::string config_text;  // bytes of adapter_config.json; empty for a GGUF
  std::unique_ptr<MappedFile> file;
  std::vector<AdapterTensor> tensors;
  std::vector<std::string> warnings;
  bool gguf = false;
};

// Checks pairs, shapes and ranks, and makes the adapter. Errors: kInvalidArgument, kUnimplemented.
Result<std::unique_ptr<Adapter>> MakeAdapter(AdapterParts parts);

// A folder with adapter_config.json. Errors: Adapter::Open's.
Result<AdapterParts> ReadPeftFolder(const std::filesystem::path& folder);

// A GGUF with general.type "adapter" and adapter.type "lora". Errors: Adapter::Open's.
Result<AdapterParts> ReadGgufAdapter(const std::filesystem::path& path);

}  // namespace hexport::adapter
