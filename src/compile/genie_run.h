// Asks Qualcomm's Genie, on this PC's emulator, in a child process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "bundle/manifest.h"

namespace hexport::compile {

struct GenieRequest {
  std::string prompt;  // the user's words; rendered by the bundle's chat template unless `raw`
  std::string system;  // a system message; empty: none
  bool raw = false;
  int64_t max_tokens = 64;
  double temperature = 0;  // 0: greedy
  int64_t top_k = 0;
  double top_p = 1;
  uint64_t seed = 42;
};

// The prompt as the model reads it: messages rendered by the bundle's chat template with the
// assistant's header, or the text as it stands when `raw`. kFailedPrecondition when the bundle has
// no chat template.
Result<std::string> RenderPrompt(const std::filesystem::path& bundle,
                                 const bundle::Manifest& manifest, const std::string& prompt,
                                 const std::string& system, bool raw);

// Genie's whole answer; pieces of UTF-8 text go to on_text (may be empty) as they come, never half
// a character. Errors: kFailedPrecondition when the bundle has no plain binaries; the child's.
Result<std::string> AskGenie(const std::filesystem::path& bundle, const bundle::Manifest& manifest,
                             const GenieRequest& request,
                             const std::function<void(std::string_view)>& on_text);

}  // namespace hexport::compile
