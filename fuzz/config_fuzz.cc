// config.json and generation_config.json from a stranger, separated by a zero byte.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "checkpoint/model_config.h"
#include "checkpoint/tensor_layout.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t zero = text.find('\0');
  const std::string generation = zero == std::string::npos ? "" : text.substr(zero + 1);
  const auto config = hexport::ParseHfConfig(text.substr(0, zero), generation, "fuzz");
  if (!config.ok()) return 0;
  // What is accepted must have tensors whose sizes can be counted.
  for (const auto& tensor : hexport::checkpoint::ExpectedTensors(*config)) {
    if (hexport::NumElements(tensor.shape) <= 0) std::abort();
  }
  return 0;
}
