// Are the logits of a merged model those of its base with the adapters applied unmerged?
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace hexport::compile {

// Differences of two models' logits over every position of every sample.
struct LogitDifference {
  double max_abs = 0, mean_abs = 0;
  double top1_agreement = 0;  // share of positions with the same most likely token
};

struct LogitCheck {
  int64_t samples = 0, tokens = 0;
  double max_abs_logit = 0;  // of base + adapters
  LogitDifference merged;    // merged model against base + adapters
  bool has_base = false;
  LogitDifference base;  // base alone against base + adapters: what the adapters do
  // Most likely next token after each sample's last token: base, base + adapters, merged.
  std::vector<int32_t> base_next, adapted_next, merged_next;
};

struct LogitCheckOptions {
  std::vector<std::vector<int32_t>> samples;  // token ids, none empty
  std::filesystem::path scratch;              // folder for the logits of the first model
};

// Runs base + adapters, then `merged`, then `base` (may be null: its figures stay out), one decoder
// layer in float32 at a time; logits stream through a file in `scratch`. Errors: those of reading
// and running; kInvalidArgument for ids outside the vocabulary.
Result<LogitCheck> CompareLogits(const Checkpoint& merged, const adapter::MatchedAdapters& adapters,
                                 const Checkpoint* base, const LogitCheckOptions& options,
                                 Progress& progress);

struct GreedyOptions {
  std::vector<std::vector<int32_t>> prompts;  // token ids, none empty
  int64_t max_tokens = 16;                    // of each answer
};

// Greedy answers of the three models to each prompt, without the token that ended them.
struct GreedyAnswers {
  std::vector<std::vector<int32_t>> base, adapted, merged;  // base is empty when it was null
};

// Each token is one walk over the model, a layer at a time: slow, but in the memory of a layer.
// Errors: CompareLogits'.
Result<GreedyAnswers> CompareAnswers(const Checkpoint& merged,
                                     const adapter::MatchedAdapters& adapters,
                                     const Checkpoint* base, const GreedyOptions& options,
                                     Progress& progress);

}  // namespace hexport::compile
