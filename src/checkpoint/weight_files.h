// The safetensors files of a Hugging Face folder: which ones count, and what each holds.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace hexport::checkpoint {

struct WeightFile {
  std::unique_ptr<MappedFile> file;
  std::vector<SafetensorsEntry> entries;  // those that count, in the file's order
};

struct WeightFiles {
  std::vector<WeightFile> files;  // sorted by name
  std::filesystem::path index;    // empty: there is none
  std::vector<std::string> warnings;
};

// With an index (model.safetensors.index.json), the files and tensors that it names, and no other;
// without one, model.safetensors; without that, every model*.safetensors (then every .safetensors
// that is no adapter's). Every header is checked against its file.
// Errors: kNotFound (no weights; a shard that is named by the index, or by the "-00002-of-00003" of
// its neighbours, is absent; a tensor is not in the shard where the index places it), kDataLoss
// (broken or truncated file with byte counts; a tensor that two files hold), kInvalidArgument (an
// index with paths).
Result<WeightFiles> OpenWeightFiles(const std::filesystem::path& folder);

// The same for one file, whatever stands beside it.
Result<WeightFiles> OpenWeightFile(const std::filesystem::path& path);

}  // namespace hexport::checkpoint
