#include "quant/encoding.h"

#include <algorithm>
#include <cmath>

namespace hexport::quant {

bool IsAbsurd(double largest, double median) { return median > 0.0 && largest > 1e6 * median; }

Range EndsOf(const Encoding& encoding) {
  const auto last = static_cast<float>((1 << encoding.bits) - 1);
  const auto zero_point = static_cast<float>(encoding.zero_point);
  return {-zero_point * encoding.scale, (last - zero_point) * encoding.scale};
}

Encoding MakeEncoding(Range range, int bits, bool symmetric) {
  constexpr double kNarrow = 1e-8, kWidened = 1e-4;
  const double low = std::min(static_cast<double>(range.min), 0.0);
  double high = std::max(static_cast<double>(range.max), 0.0);
  if (high - low < kNarrow) high = low + kWidened;
  Encoding encoding;
  encoding.bits = bits;
  if (symmetric) {
    encoding.zero_point = 1 << (bits - 1);
    encoding.scale = static_cast<float>(std::max(-low, high) / (encoding.zero_point - 1));
    return encoding;
  }
  const double scale = (high - low) / ((1 << bits) - 1);
  encoding.scale = static_cast<float>(scale);
  encoding.zero_point = static_cast<int32_t>(std::nearbyint(-low / scale));
  return encoding;
}

void QuantizeValues(std::span<const float> values, const Encoding& encoding,
                    std::span<uint16_t> codes) {
  const float top = static_cast<float>((1 << encoding.bits) - 1);
  const float zero = static_cast<float>(encoding.zero_point);
  for (size_t i = 0; i < values.size(); ++i) {
    const float code = std::nearbyint(values[i] / encoding.scale) + zero;
    codes[i] = static_cast<uint16_t>(std::clamp(code, 0.0f, top));
  }
}

}  // namespace hexport::quant
