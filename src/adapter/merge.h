// Merges adapters into a base model, streaming, and says what became of every tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "adapter/base_tensors.h"
#include "base/dtype.h"
#include "base/progress.h"
#include "base/status.h"

namespace hexport::adapter {

struct MergeOptions {
  // Of every floating-point tensor written; nullopt: as the base stores it (a GGUF: float16).
  std::optional<DType> dtype;
  bool allow_partial = false;                    // keys that match nothing are warnings
  uint64_t max_shard_bytes = uint64_t{5} << 30;  // only where the base has one file
};

struct TensorOutcome {
  std::string name, dtype;
  double delta_lost_share = 0;
};

struct MergeReport {
  int64_t matched = 0, adapter_tensors = 0;  // keys
  int64_t tensors_in = 0, tensors_out = 0, tensors_changed = 0;
  // Of sum |delta|, the share at elements that rounding left at the base's value.
  double delta_lost_share = 0;
  double delta_relative_error = 0;  // |stored change - delta| / |delta|, L2 over everything
  double delta_norm = 0;            // L2
  int64_t nonfinite = 0;            // NaN or Inf written
  std::vector<std::string> nonfinite_tensors;  // at most 10
  // <W, delta> / <delta, delta> over all low-rank changes and its standard deviation if W knew
  // nothing of delta; near 1: the base seems to hold this adapter already.
  double base_projection = 0, base_projection_sigma = 0;
  bool identity = false;    // no stored value differs from the base's
  std::string base_sha256;  // of the base's tensors: names, dtypes, shapes, bytes
  std::vector<std::string> adapter_sha256;
  std::vector<std::string> unmatched;  // keys
  std::vector<TensorOutcome> tensors;  // written, in order
  std::vector<std::string> warnings;
  std::vector<std::string> failures;  // checks that failed; empty: good
  double seconds = 0;
};

// Writes model*.safetensors (the base's shards, each tensor where it was), the index when there is
// more than one, and config.json with the fields that changed, into `folder` (which exists). Deltas
// are computed in float32 and rounded once. Memory: a few thousand rows at a time.
// Failed checks are in `failures`, not an error. Errors: those of reading and writing;
// kFailedPrecondition when the base's hash is not the one the adapter was trained on.
Result<MergeReport> MergeInto(const std::filesystem::path& folder, const BaseTensors& base,
                              const MatchedAdapters& adapters, const MergeOptions& options,
                              Progress& progress);

}  // namespace hexport::adapter
