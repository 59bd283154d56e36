// Does the bundle say what the model says? Float, CPU, QDQ and emulator logits over the calibration
// text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/status.h"

namespace hexport::compile {

struct VerifyOptions {
  std::filesystem::path bundle;
  std::filesystem::path
      model;            // the float reference; empty: the checkpoint the bundle was built from
  int64_t samples = 0;  // first N calibration samples; 0: all
  // The samples end where they have this many tokens together: the emulator takes seconds a token
  // of a large model. 0: no end.
  int64_t max_tokens = 512;
  bool emulator = true;      // false: float, CPU and QDQ only
  std::string genie_prompt;  // empty: Genie is not asked
  int64_t genie_max_tokens = 16;
  // Thresholds; unset ones take the defaults of the bundle's weight format (see DefaultThresholds).
  std::optional<double> min_cosine_float_qdq, min_cosine_qdq_emulator, min_top1_float_emulator;
};

struct VerifyResult {
  int64_t samples = 0, tokens = 0;
  // Cosine of all logits taken as one vector; top-1: share of positions with the same best token.
  double cosine_float_cpu = 0, cosine_float_qdq = 0, top1_float_qdq = 0;
  std::optional<double> cosine_qdq_emulator, cosine_float_emulator, top1_float_emulator;
  std::optional<std::string> genie_answer;
  std::string tokenizer_fingerprint;  // text/fingerprint.h
  double emulator_seconds = 0;        // of this PC; not a phone's
  std::vector<std::string> failures;  // one line per figure below its threshold; empty: good
};

// Checks the SHA-256 of every file, then compares. The emulator and Genie run in child processes.
// Errors: OpenBundle's; kNotFound / kFailedPrecondition when the float checkpoint is gone or has
// other contents.
Result<VerifyResult> Verify(const VerifyOptions& options, Progress& progress);

}  // namespace hexport::compile
