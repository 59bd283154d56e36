// `hexport quantize`: a checkpoint in, a folder of codes, scales and ranges out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "compile/report.h"
#include "quant/import_codes.h"
#include "quant/quant_config.h"
#include "quant/quantized_model.h"

namespace hexport::compile {

struct QuantizeOptions {
  std::filesystem::path model;  // GGUF file or Hugging Face folder
  std::filesystem::path out;    // must not exist unless `force`
  quant::QuantConfig config;
  // Average bits of the decoder's weights, scales included, to spend: linears that lose most become
  // int8 (quant/bit_budget.h). 0: off. Needs LPBQ or int4 as the config's weights.
  double auto_bits = 0.0;
  // An AIMET encodings file that decides every encoding and the formats of weights; calibration
  // data is then only kept for `hexport diagnose`. Empty: none.
  std::filesystem::path encodings;
  std::filesystem::path calibration;  // empty: the built-in conversations
  int64_t samples = 0;                // 0: all
  int64_t sample_tokens = 512;        // longer samples are cut
  bool rotate_residual = true;        // see quant/residual_rotation.h
  bool force = false;
};

struct QuantizeResult {
  quant::QuantizedFacts facts;
  BuildReport report;
  std::vector<std::string> warnings;
  // Of the encodings file, where there is one: its encodings, and those in effect.
  int64_t encodings_in = 0, encodings_used = 0;
  // Of method import, where linears have it.
  std::optional<quant::ImportCounts> imported;
};

// Stages: import (of that method), channels (where the config asks for folds), weights, ranges; or
// encodings alone. Finished
// layers stay in "<parent of out>/.<name>.hexport-work" until the folder stands, so that an
// interrupted run goes on where it was. Errors: those of reading, of calibration data and of
// writing; kFailedPrecondition when `out` exists and !force; ImportEncodings' and WriteOnGrids'.
Result<QuantizeResult> QuantizeCheckpoint(const QuantizeOptions& options, Progress& progress);

}  // namespace hexport::compile
