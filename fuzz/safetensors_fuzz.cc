// A safetensors file from a stranger: every accepted tensor must lie in the file.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto entries = hexport::ParseSafetensorsHeader(file, "fuzz");
  if (!entries.ok()) return 0;
  for (const hexport::SafetensorsEntry& entry : *entries) {
    if (entry.begin > entry.end || entry.end > size) std::abort();
  }
  return 0;
}
