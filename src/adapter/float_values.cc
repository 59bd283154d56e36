#include "adapter/float_values.h"

#include <cstring>

namespace hexport::adapter {

Status WidenValues(const checkpoint::BlockFormat& format, std::span<const std::byte> bytes,
                   std::span<float> out) {
  if (format.name == "F32" && bytes.size() == out.size_bytes()) {
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return OkStatus();
  }
  if (format.name == "BF16" && bytes.size() == out.size() * sizeof(uint16_t)) {
    for (size_t i = 0; i < out.size(); ++i) {
      uint16_t value;
      std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
      out[i] = FromBFloat16(value);
    }
    return OkStatus();
  }
  return checkpoint::Widen(format, bytes, out);
}

}  // namespace hexport::adapter
