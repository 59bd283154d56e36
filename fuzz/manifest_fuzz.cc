// Any bytes as manifest.json: refused with a Status, or accepted and then stable when written and
// read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "bundle/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto manifest = hexport::bundle::ParseManifest(text, "fuzz");
  if (!manifest.ok()) return 0;
  const std::string written = hexport::bundle::ManifestToJson(*manifest);
  const auto again = hexport::bundle::ParseManifest(written, "fuzz");
  if (!again.ok() || hexport::bundle::ManifestToJson(*again) != written) std::abort();
  return 0;
}
