// A linear's stored codes against the float weight they stand for.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"
#include "diagnose/agreement.h"
#include "quant/weights.h"

namespace hexport::diagnose {

struct WeightCheck {
  Agreement agreement;
  // Output features whose scale or codes give zeros where the float weight has none.
  std::vector<int64_t> dead;
  std::vector<double>
      row_squares;  // [in_features]: sums over outputs of the float weight's squares
};

// Reads the float weight in pieces. Errors: those of reading.
Result<WeightCheck> CheckWeight(const Checkpoint& checkpoint, const decoder::LinearWeight& linear,
                                const quant::WeightStore& store);

}  // namespace hexport::diagnose
