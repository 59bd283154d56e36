// What `hexport eval` is pointed at, opened: where its logits, its reference's and its texts come
// from.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "evaluate/eval.h"
#include "evaluate/logit_source.h"

namespace hexport::evaluate {

struct Target {
  std::unique_ptr<LogitSource> engine;
  std::unique_ptr<LogitSource> reference;  // null: the engine is its own reference
  TextAssets text;
  double bits_per_weight = 0;
  int64_t longest_context = 0;  // 0: any
};

// Errors: Evaluate's.
Result<Target> OpenTarget(const EvalOptions& options, Progress& progress);

}  // namespace hexport::evaluate
