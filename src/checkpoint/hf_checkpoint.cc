#include <algorithm>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "checkpoint/hf_text.h"
#include "checkpoint/mapped_checkpoint.h"
#include "checkpoint/packed_config.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_files.h"

namespace hexport::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
constexpr const char* kGenerationConfig = "generation_config.json";

// `weights` is empty or the one safetensors file to use.
Status AddWeights(const fs::path& folder, const fs::path& weights, CheckpointParts& parts) {
  HEXPORT_ASSIGN_OR_RETURN(WeightFiles opened,
                           weights.empty() ? OpenWeightFiles(folder) : OpenWeightFile(weights));
  if (!opened.index.empty()) parts.files.push_back(opened.index);
  for (WeightFile& shard : opened.files) {
    for (SafetensorsEntry& entry : shard.entries) {
      StoredTensor tensor;
      tensor.format = FindBlockFormat(entry.dtype);
      tensor.file = shard.file.get();
      tensor.offset = entry.begin;
      tensor.bytes = entry.end - entry.begin;
      tensor.info = {std::move(entry.name), std::move(entry.shape), std::move(entry.dtype)};
      parts.tensors.push_back(std::move(tensor));
    }
    parts.files.push_back(shard.file->path());
    parts.mappings.push_back(std::move(shard.file));
  }
  return OkStatus();
}

std::string FolderName(const fs::path& folder) {
  std::error_code error;
  fs::path absolute = fs::absolute(folder, error).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();
  return absolute.filename().string();
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> OpenHfFolder(const fs::path& folder, const fs::path& weights) {
  std::error_code error;
  if (!fs::exists(folder / kConfig, error) && fs::exists(folder / "adapter_config.json", error)) {
    return NotFound((folder / kConfig).string() +
                    ": this is a LoRA adapter; merge it into its base model first");
  }
  CheckpointParts parts;
  HEXPORT_ASSIGN_OR_RETURN(const std::string config, ReadTextFile(folder / kConfig));
  HEXPORT_ASSIGN_OR_RETURN(const std::optional<std::string> generation,
                           ReadIfPresent(folder / kGenerationConfig));
  const std::string where = (folder / kConfig).string();
  HEXPORT_ASSIGN_OR_RETURN(parts.config, ParseHfConfig(config, generation.value_or(""), where));
  parts.config.name = FolderName(folder);
  HEXPORT_ASSIGN_OR_RETURN(const std::optional<int64_t> eos, HfEosTokenId(folder));
  std::vector<int64_t>& ids = parts.config.eos_token_ids;
  if (eos.has_value() && std::find(ids.begin(), ids.end(), *eos) == ids.end()) ids.push_back(*eos);
  HEXPORT_RETURN_IF_ERROR(ValidateConfig(parts.config, where));
  for (const char* name : {kConfig, kGenerationConfig, "tokenizer.json", "tokenizer_config.json",
                           "chat_template.jinja"}) {
    if (fs::exists(folder / name, error)) parts.files.push_back(folder / name);
  }
  HEXPORT_RETURN_IF_ERROR(AddWeights(folder, weights, parts));
  HEXPORT_ASSIGN_OR_RETURN(const std::optional<PackedConfig> packed,
                           ParsePackedConfig(config, where));
  if (packed.has_value())
    HEXPORT_RETURN_IF_ERROR(CombinePackedLinears(*packed, parts, folder.string()));
  HEXPORT_RETURN_IF_ERROR(KeepExpectedTensors(parts, folder.string()));
  parts.text = [folder] { return HfText(folder, /*tokenizer_required=*/true); };
  return MakeCheckpoint(std::move(parts));
}

}  // namespace hexport::checkpoint
