// Codes of an already quantized checkpoint (GPTQ, AWQ, GGUF), taken over code for code where int8,
// int4 or LPBQ can hold them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/packed_weight.h"
#include "decoder/decoder.h"
#include "quant/quant_config.h"
#include "quant/weights.h"

namespace hexport::quant {

// What the import costs a linear: |W - Q| / |W| (Frobenius) by its scales alone, since the codes
// are the checkpoint's. Past this a linear is quantized anew, which at 4 bits costs about .1.
inline constexpr double kMostScaleError = 0.05;
// Below this scales are held too: half precision's own rounding.
inline constexpr double kExactScaleError = 1e-3;

struct TakenCodes {
  QuantizedWeight weight;
  double scale_error = 0.0;
};

// Columns [first, first + columns) of `packed`, each scale times `scale` (positive). One scale a
// channel: int4 or int8. Several: LPBQ, in the largest of the blocks 64, 32 and 16 that lie within
// one group each, with the integers and channel scale nearest to the groups' scales. A negative
// scale turns its codes' signs. Errors: kUnimplemented saying what the target cannot hold (zero
// points or offsets that move codes out of -8..7 or -128..127, groups that blocks cannot follow, 8
// bits in groups, scales apart by more than kMostScaleError); kDataLoss (NaN or Inf in a scale).
Result<TakenCodes> TakeCodes(const PackedWeight& packed, int64_t first, int64_t columns,
                             double scale);
// A linear's. Errors: as TakeCodes; kUnimplemented naming the stored dtype where it has no codes.
Result<TakenCodes> TakeLinear(const Checkpoint& checkpoint, const decoder::LinearWeight& linear);

// Whether `config` names the method `import` for all linears or in a rule.
bool UsesImport(const QuantConfig& config);

struct ImportCounts {
  int64_t held = 0, rounded = 0;  // scales exact; scales rounded to LPBQ's integers
  int64_t requantized = 0;
};

struct ImportPlan {
  // The config given, with a rule for each linear that it wants imported: the format that holds its
  // codes, or method gptq (lm_head: rtn) and the format it would have had. Its `weights` are what
  // the first imported linear is held in.
  QuantConfig config;
  ImportCounts counts;
  std::vector<std::string> warnings;  // one for each reason
};
// Decides for every linear of `graph`, which is `checkpoint`'s. Reads all packed weights, one at a
// time. Errors: those of reading; kInvalidArgument (no such linear is stored as codes; `config`
// asks for channel folds, which change the weights that the codes are of).
Result<ImportPlan> PlanImport(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
                              const QuantConfig& config);

}  // namespace hexport::quant
