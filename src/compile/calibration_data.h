// The user's calibration data as token ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace hexport::compile {

struct CalibrationData {
  std::string source;                         // path, or "built in"
  std::vector<std::vector<int32_t>> samples;  // each at most max_tokens long, none empty
  int64_t truncated = 0;                      // samples that were cut
};

// path: .jsonl with one conversation per line ({"messages": [...]} or a bare array of messages;
// also {"text": "..."}) rendered by the checkpoint's chat template, or a text file whose paragraphs
// (blank lines between) are samples. An empty path takes hexport's own short conversations. At most
// max_samples samples (0: all). Errors: kNotFound, kInvalidArgument with file and line (broken
// JSON, no messages, no sample at all), kUnimplemented when messages need a chat template and there
// is none.
Result<CalibrationData> LoadCalibration(const std::filesystem::path& path, const TextAssets& text,
                                        int64_t max_samples, int64_t max_tokens);

// hexport's own conversations as JSON Lines of messages.
std::string_view BuiltInCalibration();

}  // namespace hexport::compile
