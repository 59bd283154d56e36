// The steps behind MergeModel(); private to this folder.
#pragma once

#include <chrono>
#include <filesystem>

#include "adapter/adapter.h"
#include "base/progress.h"
#include "base/status.h"
#include "compile/merge.h"

namespace hexport::compile {

// File in a merged folder that says what it was made of.
inline constexpr const char* kMergeRecord = "hexport_merge.json";

double SecondsSince(std::chrono::steady_clock::time_point start);

// Compares the logits of the merged model in `folder` with base + adapters unmerged and asks the
// user's prompts; fills result.logits and what follows from it. Errors: those of reading and
// running.
Status CheckMergedLogits(const MergeModelOptions& options, const std::filesystem::path& folder,
                         const adapter::MatchedAdapters& matched, MergeModelResult& result,
                         Progress& progress);

// Writes the record into `folder`. Errors: those of writing.
Status WriteMergeRecord(const MergeModelOptions& options, const MergeModelResult& result,
                        const std::filesystem::path& folder);

}  // namespace hexport::compile
