#include <algorithm>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "checkpoint/hf_text.h"
#include "checkpoint/mapped_checkpoint.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_index.h"

namespace hexport::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
constexpr const char* kGenerationConfig = "generation_config.json";
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// Tensors of one shard; `wanted` (may be null) keeps those that the index places in it.
Status AddShard(const fs::path& path, const std::map<std::string, std::string>* wanted,
                CheckpointParts& parts) {
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  HEXPORT_ASSIGN_OR_RETURN(std::vector<SafetensorsEntry> entries,
                           ParseSafetensorsHeader(file->bytes(), path.string()));
  for (SafetensorsEntry& entry : entries) {
    if (wanted != nullptr) {
      const auto placed = wanted->find(entry.name);
      if (placed == wanted->end() || placed->second != path.filename()) continue;
    }
    StoredTensor tensor;
    tensor.format = FindBlockFormat(entry.dtype);
    tensor.file = file.get();
    tensor.offset = entry.begin;
    tensor.bytes = entry.end - entry.begin;
    tensor.info = {std::move(entry.name), std::move(entry.shape), std::move(entry.dtype)};
    parts.tensors.push_back(std::move(tensor));
  }
  file->Release(0, file->bytes().size());
  parts.mappings.push_back(std::move(file));
  parts.files.push_back(path);
  return OkStatus();
}

Status AddShards(const fs::path& folder, CheckpointParts& parts) {
  HEXPORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(folder / kIndex));
  HEXPORT_ASSIGN_OR_RETURN(const auto index,
                           ParseSafetensorsIndex(text, (folder / kIndex).string()));
  parts.files.push_back(folder / kIndex);
  std::vector<std::string> shards;
  for (const auto& [tensor, shard] : index) shards.push_back(shard);
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  for (const std::string& shard : shards) {
    HEXPORT_RETURN_IF_ERROR(
        AddShard(folder / shard, &index, parts)
            .WithContext("shard " + shard + " of " + std::to_string(shards.size())));
  }
  for (const auto& [name, shard] : index) {
    const bool found =
        std::any_of(parts.tensors.begin(), parts.tensors.end(),
                    [&](const StoredTensor& tensor) { return tensor.info.name == name; });
    if (!found) {
      return NotFound((folder / shard).string() + ": tensor " + name +
                      ": the index places it here, got nothing");
    }
  }
  return OkStatus();
}

Status AddWeights(const fs::path& folder, const fs::path& weights, CheckpointParts& parts) {
  std::error_code error;
  if (!weights.empty()) return AddShard(weights, nullptr, parts);
  if (fs::exists(folder / kSingle, error)) return AddShard(folder / kSingle, nullptr, parts);
  if (fs::exists(folder / kIndex, error)) return AddShards(folder, parts);
  return NotFound(folder.string() + ": expected " + kSingle + " or " + kIndex +
                  ", got neither; save the model with safe_serialization");
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
  HEXPORT_RETURN_IF_ERROR(KeepExpectedTensors(parts, folder.string()));
  parts.text = [folder] { return HfText(folder); };
  return MakeCheckpoint(std::move(parts));
}

}  // namespace hexport::checkpoint
