// Repairs of a quantized model, each measured again.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "diagnose/findings.h"
#include "diagnose/measure.h"
#include "quant/quantized_model.h"

namespace hexport::diagnose {

struct Repair {
  std::string tensor;
  std::vector<Remedy> remedies;  // in the order they were tried; the last one stands
  double cosine_before = 0.0, cosine_after = 0.0;  // with float inputs to its layer
};

struct FixResult {
  std::vector<Repair> repairs;  // in the order they were begun
  Measurement after;
  std::vector<Finding> findings;  // that are left
};

struct FixOptions {
  std::filesystem::path folder;  // what is repaired, for messages; stays as it is
  std::filesystem::path facts;   // the folder of its quant.json
  std::filesystem::path out;     // must not exist
  double threshold = 0.9;        // FindGuilty's
  double target = 0.99;          // Agreement::IsBelow that a repaired tensor must not be
};

// Applies the cheapest remedy of every tensor that is at fault itself, measures again with the same
// samples, goes to the next dearer remedy where that is not enough, and to faults that come to
// light, until none is left or nothing helps. `out` is a folder as `hexport quantize` writes.
// Errors: Measure's and Calibrate's, those of writing; kFailedPrecondition when `out` exists, or
// when no fault has a remedy (nothing is written then).
Result<FixResult> Fix(const quant::QuantizedModel& model, const FixOptions& options,
                      const Measurement& before, const std::vector<quant::TokenIds>& samples,
                      Progress& progress);

}  // namespace hexport::diagnose
