// Scales chosen by what a linear's output loses, block after block.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "quant/weights.h"

namespace hexport::quant {

// Round to nearest with scales that minimize |X W - X Q|^2, given hessian = X^T X [in, in]: of each
// output channel for int8 and int4 (20 clipping ratios of its largest weight from 1 down to 0.4);
// for LPBQ of each block in turn, with the errors of the blocks before it taken into account (its
// integer scale, from 6 below the one that clips nothing to 1 above). The idea of Qualcomm's
// Sequential MSE (AIMET's documentation of SeqMSE), on second moments instead of samples. weights:
// [in_features, out_features]. Errors: QuantizeRtn's; kInvalidArgument for a hessian's size.
Result<QuantizedWeight> QuantizeSeqMse(std::span<const float> weights, int64_t in_features,
                                       int64_t out_features, std::span<const float> hessian,
                                       const WeightOptions& options);

}  // namespace hexport::quant
