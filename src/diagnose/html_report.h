// A diagnosis as one HTML page that needs nothing else: a heat map of tensors by layers, and each
// tensor's ranges and histogram.
#pragma once

#include <string>

namespace hexport::diagnose {

// `json`: DiagnosisToJson's, with every tensor.
std::string DiagnosisToHtml(const std::string& json);

}  // namespace hexport::diagnose
