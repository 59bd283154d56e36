// A GPTQ or AWQ linear from a stranger: a quantization_config, a zero byte, and a safetensors file
// whose tensors are "qweight", "qzeros", "scales" and "g_idx". Sizes are taken from the scales and
// the codes, as an honest config.json would have them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/packed_config.h"
#include "checkpoint/packed_linear.h"
#include "checkpoint/safetensors.h"

namespace {

using namespace hexport;
using namespace hexport::checkpoint;

std::optional<PackedPart> Find(const std::vector<SafetensorsEntry>& entries,
                               std::span<const std::byte> file, const char* name) {
  for (const SafetensorsEntry& entry : entries) {
    if (entry.name == name)
      return PackedPart{entry.dtype, entry.shape,
                        file.subspan(entry.begin, entry.end - entry.begin), nullptr};
  }
  return std::nullopt;
}

// [out, in] as the layout's own shapes imply it; nullopt when they are of no use.
std::optional<Shape> ShapeOf(const PackedConfig& config, const PackedParts& parts) {
  if (!parts.qweight.has_value() || parts.qweight->shape.size() != 2) return std::nullopt;
  const Shape& words = parts.qweight->shape;
  const int64_t limit = int64_t{1} << 16, codes = config.codes_per_word();
  if (words[0] < 1 || words[1] < 1 || words[0] > limit || words[1] > limit ||
      words[0] * words[1] > limit)
    return std::nullopt;
  if (config.layout == PackedLayout::kGptq) return Shape{words[1], words[0] * codes};
  return Shape{words[1] * codes, words[0]};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t zero = text.find('\0');
  if (zero == std::string::npos) return 0;
  const auto config =
      ParsePackedConfig(R"({"quantization_config":)" + text.substr(0, zero) + "}", "fuzz");
  if (!config.ok() || !config->has_value()) return 0;
  const auto file = std::as_bytes(std::span(data, size)).subspan(zero + 1);
  const auto entries = ParseSafetensorsHeader(file, "fuzz");
  if (!entries.ok()) return 0;
  const PackedParts parts = {Find(*entries, file, "qweight"), Find(*entries, file, "qzeros"),
                             Find(*entries, file, "scales"), Find(*entries, file, "g_idx")};
  const std::optional<Shape> shape = ShapeOf(**config, parts);
  if (!shape.has_value()) return 0;
  const auto linear = PackedLinear::Create(**config, "fuzz", *shape, parts);
  if (!linear.ok()) return 0;
  std::vector<float> values(static_cast<size_t>(NumElements(*shape)));
  linear->ReadRows(0, values);
  const PackedWeight weight = linear->Unpack();
  if (weight.codes.size() != values.size()) std::abort();
  for (const int32_t group : weight.group_of) {
    if (static_cast<size_t>(group) >= weight.scales.size()) std::abort();
  }
  return 0;
}
