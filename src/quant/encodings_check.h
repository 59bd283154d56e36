// An encodings file against the graph it is for: what QAIRT's converter would leave out in silence,
// or fill in from a calibration of its own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "decoder/decoder.h"
#include "quant/encodings_file.h"

namespace hexport::quant {

enum class EncodingFault {
  kMissing,                 // a tensor of the model without an encoding
  kWeightAmongActivations,  // read by nobody there
  kActivationAmongParams,   // likewise
  kUnknownName,             // no tensor of the model
  kAbsurd,                  // a range that leaves nothing of the usual values
  kConflict,                // tensors that hold the same codes, with different encodings
  kUnfit,                   // channels or blocks that are not the tensor's; a kind it cannot have
};
// "missing", "weight_among_activations", "activation_among_params", "unknown_name", "absurd",
// "conflict", "unfit".
std::string_view EncodingFaultName(EncodingFault fault);

struct EncodingFinding {
  EncodingFault fault = EncodingFault::kMissing;
  bool error = true;  // false: a warning
  std::string tensor;
  std::string message;  // begins with the tensor
};

// Findings in the order of the file's lists, then what is missing. `graph`: the whole decoder.
//
// Tensors that Reshape, Transpose, Split and Concat move into one another hold the same codes (a
// layer's cache in and out too): an encoding of one is an encoding of all, and two different ones
// of the same bits conflict. Missing linears, norm weights, embedding and activations are errors,
// missing biases warnings. A range is absurd when it is over 1e6 times the median of the file's
// activations (an error), or beyond float16 (a warning). A misspelt name and the tensor it is near
// are one finding.
std::vector<EncodingFinding> CheckEncodings(const EncodingsFile& file,
                                            const decoder::DecoderGraph& graph);

int64_t CountErrors(const std::vector<EncodingFinding>& findings);
// kInvalidArgument with the errors among the findings, the first few in full; OK without any.
Status FindingsStatus(const std::vector<EncodingFinding>& findings);

}  // namespace hexport::quant
