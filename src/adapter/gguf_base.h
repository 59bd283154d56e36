// A GGUF file as the base of a merge.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "adapter/base_tensors.h"
#include "checkpoint/model_config.h"

namespace hexport::adapter {

// Errors: as BaseTensors::Open.
Result<std::unique_ptr<BaseTensors>> OpenGgufBase(const std::filesystem::path& path,
                                                  const BaseOptions& options);

// config.json of a model that came without one. Errors: kUnimplemented (an architecture whose
// config.json hexport does not write).
Result<std::string> HfConfigJson(const ModelConfig& config, const std::string& where);

}  // namespace hexport::adapter
