// A text as token windows to evaluate on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace hexport::evaluate {

using TokenIds = std::vector<int32_t>;

// The text cut into windows of `context` tokens that do not overlap, at most `max_tokens` in all.
// Any text file is one text from its first byte to its last; in a .jsonl file, lines as in
// compile/calibration_data.h, each line is a text. A window of one token is dropped: the first
// token of a window is context and never predicted.
// Errors: kInvalidArgument (context or max_tokens below 2, not UTF-8, no window at all, a broken
// line: file and line), kNotFound, kUnimplemented (messages without a chat template).
Result<std::vector<TokenIds>> LoadWindows(const std::filesystem::path& path, const TextAssets& text,
                                          int64_t context, int64_t max_tokens);

// The cutting alone.
std::vector<TokenIds> CutWindows(const std::vector<TokenIds>& texts, int64_t context,
                                 int64_t max_tokens);

}  // namespace hexport::evaluate
