// `hexport encodings`: AIMET encodings files of quantized models, written and checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "quant/encodings_check.h"
#include "quant/encodings_file.h"

namespace hexport::compile {

struct ExportEncodingsOptions {
  std::filesystem::path quantized;  // what `hexport quantize` wrote
  std::filesystem::path source;     // its float model, when that has moved; else empty
  std::filesystem::path out;        // must not exist unless `force`
  quant::EncodingsSchema schema = quant::EncodingsSchema::k100;
  // When not empty: the float graph that the names belong to, as ONNX, its weights in
  // "<onnx>.data". Rotated and folded as the quantized weights are. Shapes of `ar` new tokens and a
  // context of `cl`.
  std::filesystem::path onnx;
  int64_t ar = 128, cl = 1024;
  bool force = false;
};

struct ExportEncodingsResult {
  int64_t activations = 0, params = 0;
};

// Errors: those of reading and writing; kFailedPrecondition when a file exists and !force;
// kInvalidArgument when the schema cannot hold the weights' format.
Result<ExportEncodingsResult> ExportEncodingsFile(const ExportEncodingsOptions& options,
                                                  Progress& progress);

struct CheckEncodingsOptions {
  std::filesystem::path file;
  // One of them: what `hexport quantize` wrote, or a checkpoint.
  std::filesystem::path quantized, model;
  std::filesystem::path source;  // ExportEncodingsOptions'
};

struct CheckEncodingsResult {
  quant::EncodingsSchema schema = quant::EncodingsSchema::k100;
  int64_t activations = 0, params = 0;  // in the file
  std::vector<quant::EncodingFinding> findings;
  std::vector<std::string> warnings;  // of reading the file
};

// Errors: those of reading, ParseEncodingsFile's. Findings are no errors of this.
Result<CheckEncodingsResult> CheckEncodingsFile(const CheckEncodingsOptions& options);

}  // namespace hexport::compile
