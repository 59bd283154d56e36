// `hexport diagnose`: where a quantized model loses its accuracy, why, and what repairs it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "diagnose/findings.h"
#include "diagnose/fix.h"
#include "diagnose/measure.h"

namespace hexport::diagnose {

struct DiagnoseOptions {
  std::filesystem::path target;       // a bundle, or what `hexport quantize` writes
  std::filesystem::path calibration;  // texts to measure with; empty: the target's own samples
  int64_t samples = 8;                // the first ones; 0: all
  int64_t sample_tokens = 256;        // longer samples are cut
  double threshold = 0.9;             // a tensor below is a finding
  bool fix = false;
  std::filesystem::path out;  // of the repaired model; empty: "<target>-fixed"
};

struct Diagnosis {
  Measurement measurement;
  std::vector<Finding> findings;
  std::filesystem::path fixed;   // empty: no repair was asked for, or none was needed
  std::optional<FixResult> fix;  // what it did
};

// A repaired model is a folder as `hexport quantize` writes, of a bundle too. Errors:
// kInvalidArgument (an option, another target), kNotFound and kFailedPrecondition
// when the float model is gone or has other contents, those of reading and running, Fix's.
Result<Diagnosis> Diagnose(const DiagnoseOptions& options, Progress& progress);

}  // namespace hexport::diagnose
