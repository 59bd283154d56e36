// What the output projection reads, for GPTQ of it. Private to src/quant.
#pragma once

#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "quant/sample_tensors.h"

namespace hexport::quant {

struct HeadInputs {
  std::vector<float> hessian;  // [hidden_size, hidden_size] Xq^T Xq of the last norm's outputs
  std::vector<float> cross;    // the same of Xq^T (Xf - Xq); empty without float states
};

// `states`: the residual stream that leaves the last layer, [1, tokens, hidden_size] a sample;
// `float_states` likewise of the float model, or of no samples. Errors: those of building, reading
// and running; kDataLoss naming a sample whose values are NaN or Inf.
Result<HeadInputs> CollectHeadInputs(const Checkpoint& checkpoint, const SampleTensors& states,
                                     const SampleTensors& float_states);

}  // namespace hexport::quant
