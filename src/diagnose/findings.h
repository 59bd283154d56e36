// Which tensors are at fault, why, and what would be the cheapest repair.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "diagnose/measure.h"

namespace hexport::diagnose {

// kOwn: all before it in its layer is good, and it is not. kInherited: what came before is at
// fault.
enum class Kind { kOwn, kInherited };
std::string_view KindName(Kind kind);  // "own", "inherited"

enum class Cause {
  kFloat16Overflow,  // beyond 65504 where it is computed in float16
  kSaturation,       // values beyond its encoding's ends
  kWideRange,        // an encoding far wider than its values
  kOutlierChannel,   // one channel takes the codes that the others need
  kFewBits,          // the encoding fits, and its steps are too coarse
  kDeadScale,        // output features of a weight that became zero
  kWeight,           // a weight's codes
  kNarrowLinear,     // the output of a linear that multiplies 8 bit inputs is 8 bit too
  kOperator,         // none of these: the operator itself
  kEarlier,          // inherited
};

// From cheap to dear.
enum class Remedy {
  kNone,
  kIntegers,     // 16 bit integers in place of float16
  kCalibrate,    // its range chosen anew from the calibration samples
  kSixteenBits,  // 16 bits in place of 8
  kRound,        // the weight rounded to nearest anew, in its format
  kInt8Weight,   // the weight as int8
};

struct Finding {
  std::string tensor;
  int64_t layer = -1;  // TensorReport's
  Kind kind = Kind::kOwn;
  double cosine = 0.0, sqnr_db = 0.0;  // of `kind`
  std::vector<std::string> readers;    // nodes that read it
  Cause cause = Cause::kOperator;
  std::string reason;
  std::string source;  // of inherited ones: the first guilty tensor before it; "": none
  Remedy remedy = Remedy::kNone;
  std::string fix;  // the remedy in words
};

// Own faults first, the worst first; then inherited ones in graph order. Tensors are looked at from
// the last to the first. `threshold`: Agreement::IsBelow, in (0, 1).
std::vector<Finding> FindGuilty(const Measurement& measurement, double threshold);

// What to do to `tensor`, as a user would do it.
std::string RemedyInWords(Remedy remedy, const std::string& tensor);

// The next dearer remedy of the same cause, or kNone.
Remedy NextRemedy(Cause cause, Remedy tried);

}  // namespace hexport::diagnose
