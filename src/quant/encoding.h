// real = (code - zero_point) * scale, unsigned codes of `bits` bits (ONNX's convention).
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace hexport::quant {

struct Range {
  float min = 0.0f;
  float max = 0.0f;
};

struct Encoding {
  float scale = 1.0f;
  int32_t zero_point = 0;
  int bits = 16;
};

// Asymmetric over [min(range.min, 0), max(range.max, 0)]; symmetric puts zero_point at 2^(bits-1) and spans the larger
// side. A range narrower than 1e-8 is widened so that the scale is finite and positive.
Encoding MakeEncoding(Range range, int bits, bool symmetric);

using RangeMap = std::map<std::string, Range>;        // activation name -> range
using EncodingMap = std::map<std::string, Encoding>;  // graph input/output or activation name -> encoding

}  // namespace hexport::quant
