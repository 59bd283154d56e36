// The part of a checkpoint that does not depend on its container: named tensors in mapped files.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "checkpoint/block_format.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/packed_linear.h"

namespace hexport::checkpoint {

// Where a tensor's values are and how they are stored.
struct StoredTensor {
  TensorInfo info;
  const BlockFormat* format = nullptr;
  const MappedFile* file = nullptr;  // owned by the checkpoint
  uint64_t offset = 0, bytes = 0;    // in `file`
  // Not 0: rows are those of this many heads with RoPE pairs side by side (llama in GGUF); reading
  // puts the first halves of the pairs before the second halves again, as Hugging Face stores them.
  int64_t interleaved_heads = 0;
  std::optional<PackedLinear> packed;  // then there is no format, file or range of bytes
};

// Everything a checkpoint holds after Open.
struct CheckpointParts {
  ModelConfig config;
  std::vector<std::unique_ptr<MappedFile>> mappings;
  std::vector<StoredTensor> tensors;
  std::vector<std::filesystem::path> files;
  std::function<Result<TextAssets>()> text;  // may use `mappings`
};

// Keeps of `parts.tensors` those that the config's decoder reads and checks that all are there,
// with the right shape and a supported type. `where` names the checkpoint. Errors: kNotFound (names
// the tensor), kDataLoss (shape), kUnimplemented (type).
Status KeepExpectedTensors(CheckpointParts& parts, const std::string& where);

// Puts one tensor "<linear>.weight" in the place of the packed ones of each linear that the
// config's decoder reads. `where` names the checkpoint. Errors: PackedLinear::Create's; kDataLoss
// (packed and plain at once).
Status CombinePackedLinears(const PackedConfig& packed, CheckpointParts& parts,
                            const std::string& where);

// `parts` must have passed KeepExpectedTensors. Characters of config.name other than letters,
// digits, '.',
// '_' and '-' become '-'.
std::unique_ptr<Checkpoint> MakeCheckpoint(CheckpointParts parts);

// A .gguf file. Errors: Checkpoint::Open's.
Result<std::unique_ptr<Checkpoint>> OpenGguf(const std::filesystem::path& path);

// A folder with config.json. `weights` is empty or the one safetensors file to use. Errors:
// Checkpoint::Open's.
Result<std::unique_ptr<Checkpoint>> OpenHfFolder(const std::filesystem::path& folder,
                                                 const std::filesystem::path& weights);

}  // namespace hexport::checkpoint
