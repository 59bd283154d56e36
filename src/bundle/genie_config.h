// Genie's dialog config and backend extension file. Fields: docs/genie.md; unknown keys are refused
// by Genie.
#pragma once

#include <string>
#include <vector>

#include "bundle/manifest.h"

namespace hexport::bundle {

struct GenieOptions {
  std::vector<std::string> binaries;  // ctx-bins, as Genie shall open them
  std::string tokenizer_path;
  std::string extensions_path;
  int64_t max_tokens = 512;
  double temperature = 0.0;  // 0: greedy (top-k 1)
  int64_t top_k = 40;
  double top_p = 0.95;
  int64_t seed = 42;
  bool emulator = false;  // true: use-mmap false, poll false, as the PC needs
};

// Why Genie cannot run this bundle; OK when it can. kUnimplemented: an input that Genie does not
// fill (a second mask or a second RoPE), RoPE over a part of the head, a scaling other than linear
// and llama3; kInvalidArgument: rope_theta is not an integer (Genie's field is one).
Status CheckGenie(const Manifest& manifest);

// rope scaling of the model goes into positional-encoding. Errors: CheckGenie's, kInvalidArgument
// (no binaries).
Result<std::string> GenieConfigJson(const Manifest& manifest, const GenieOptions& options);
// The backend extension file; the emulator takes "devices" alone.
std::string BackendConfigJson(int soc_model, int htp_arch, bool emulator);

}  // namespace hexport::bundle
