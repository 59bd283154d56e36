// real = (code - zero_point) * scale, unsigned codes of `bits` bits (ONNX's convention).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

namespace hexport::quant {

struct Encoding {
  float scale = 1.0f;
  int32_t zero_point = 0;
  int bits = 16;
};

struct Range {
  float min = 0.0f;
  float max = 0.0f;
  // The encoding itself where it was given and not calibrated; min and max are then its ends.
  std::optional<Encoding> exact = std::nullopt;
};
// The real numbers of the first and the last code.
Range EndsOf(const Encoding& encoding);

inline constexpr double kLargestFloat16 = 65504.0;

// Whether a range that reaches `largest` leaves too few codes to values of the usual magnitude
// `median`: over 1e6 times it. Never when `median` is 0.
bool IsAbsurd(double largest, double median);

// Asymmetric over [min(range.min, 0), max(range.max, 0)]; symmetric puts zero_point at 2^(bits-1)
// and spans the larger side. A range narrower than 1e-8 is widened so that the scale is finite and
// positive.
Encoding MakeEncoding(Range range, int bits, bool symmetric);

// ONNX's QuantizeLinear: round to nearest, ties to even, saturated to [0, 2^bits). Sizes must be
// equal; bits <= 16.
void QuantizeValues(std::span<const float> values, const Encoding& encoding,
                    std::span<uint16_t> codes);

using RangeMap = std::map<std::string, Range>;  // activation name -> range
using EncodingMap =
    std::map<std::string, Encoding>;  // graph input/output or activation name -> encoding

}  // namespace hexport::quant
