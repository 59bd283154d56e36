// A diagnosis as one JSON object.
#pragma once

#include <string>

#include "diagnose/diagnose.h"

namespace hexport::diagnose {

// {"target", "samples", "tokens", "threshold", "logits": {"cosine", "top1"}, "flagged",
//  "findings": [{"tensor", "layer" (null outside layers), "kind", "cosine", "sqnr_db", "readers",
//                "reason", "fix"}],
//  "tensors": [{"tensor", "layer", "own": {"cosine", "sqnr_db"}, "inherited": {..}, "min", "max",
//               "bits", "encoding_min", "encoding_max", "float16", "peak_channel", "peak",
//               "median_peak", "histogram"}],
//  "fixed", "repairs": [{"tensor", "remedies", "cosine_before", "cosine_after"}],
//  "after": {"logits", "flagged", "findings", "tensors"}}
// `tensors` only with `every_tensor`; the last three only where something was repaired.
std::string DiagnosisToJson(const DiagnoseOptions& options, const Diagnosis& diagnosis,
                            bool every_tensor);

}  // namespace hexport::diagnose
