// Where each merged tensor goes and as what; private to this folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "adapter/base_tensors.h"
#include "adapter/merge.h"
#include "checkpoint/safetensors.h"

namespace hexport::adapter {

struct PlannedTensor {
  const MatchedAdapters::MergedTensor* tensor = nullptr;
  std::string dtype;    // safetensors' name, as written
  bool copied = false;  // bytes as the base stores them
};

struct PlannedShard {
  std::string file;
  std::vector<PlannedTensor> tensors;
};

struct MergePlan {
  std::vector<PlannedShard> shards;
  uint64_t total_bytes = 0;
  int64_t tensors = 0;
};

// The base's shards with each tensor where it was, new tensors in the last; a base of one file is
// split when it outgrows options.max_shard_bytes. Errors: kUnimplemented (a tensor that would have
// to be changed or converted and is not float), kInvalidArgument (options.dtype).
Result<MergePlan> PlanMerge(const BaseTensors& base, const MatchedAdapters& adapters,
                            const MergeOptions& options);

// Index of the shards: model.safetensors.index.json. Only for more than one.
Status WriteIndex(const std::filesystem::path& folder, const MergePlan& plan);

// The base's config.json with what merging changed. Ids of special tokens that have no row any more
// are added to `failures`, changes worth knowing to `warnings`. Errors: kDataLoss, kInternal.
Result<std::string> MergedConfig(const BaseTensors& base, const MatchedAdapters& adapters,
                                 const MergeOptions& options, std::vector<std::string>& warnings,
                                 std::vector<std::string>& failures);

// Of hexport_merge.json beside a merged model: which adapters are in it. Errors:
// kFailedPrecondition when the base's record lists one of `adapters`; kDataLoss.
Status CheckNotMergedBefore(const BaseTensors& base, const MatchedAdapters& adapters);
Status WriteRecord(const std::filesystem::path& folder, const BaseTensors& base,
                   const MatchedAdapters& adapters, const std::string& base_sha256);

// "F32", "F16", "BF16"; empty for other types.
std::string_view SafetensorsName(DType dtype);
// The reverse; nullopt for other names.
std::optional<DType> FloatType(std::string_view name);

}  // namespace hexport::adapter
