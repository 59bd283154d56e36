#include "evaluate/bits_per_weight.h"

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "decoder/decoder.h"
#include "graph/onnx_io.h"

namespace hexport::evaluate {
namespace {

// What of `name` is the linear's own name, when it ends in `ending`; empty: it does not.
std::string_view LinearName(std::string_view name, std::string_view ending) {
  if (!name.ends_with(ending)) return {};
  name.remove_suffix(ending.size());
  return name;
}

}  // namespace

Result<double> CheckpointBitsPerWeight(const Checkpoint& checkpoint) {
  HEXPORT_ASSIGN_OR_RETURN(const decoder::DecoderGraph decoder,
                           decoder::BuildDecoder(checkpoint, {}));
  WeightBits sum;
  for (const decoder::LinearWeight& linear : decoder.linears) {
    if (linear.lm_head) continue;
    const TensorInfo* tensor = checkpoint.Find(linear.tensor);
    if (tensor == nullptr || tensor->stored_bytes == 0)
      return Internal(linear.tensor + ": expected a stored tensor, got none");
    const int64_t elements = linear.in_features * linear.out_features;
    sum.Add(elements, static_cast<double>(elements) * 8.0 *
                          static_cast<double>(tensor->stored_bytes) /
                          static_cast<double>(NumElements(tensor->shape)));
  }
  return sum.per_weight();
}

Result<double> BundleBitsPerWeight(const std::filesystem::path& bundle,
                                   const bundle::Manifest& manifest) {
  if (manifest.graphs.empty()) return 32.0;
  const std::filesystem::path path = bundle / manifest.graphs.back().qdq_model;
  HEXPORT_ASSIGN_OR_RETURN(const graph::Graph qdq, graph::ReadOnnx(path));
  std::map<std::string, double, std::less<>> scales;  // bits of a linear's scales
  for (const graph::Initializer& initializer : qdq.initializers) {
    const auto elements = static_cast<double>(NumElements(initializer.shape));
    if (const auto linear = LinearName(initializer.name, ".block_scales"); !linear.empty())
      scales[std::string(linear)] += 8.0 * elements;
    else if (const auto channels = LinearName(initializer.name, ".scales"); !channels.empty())
      scales[std::string(channels)] += 32.0 * elements;
  }
  WeightBits sum;
  for (const graph::Initializer& initializer : qdq.initializers) {
    const std::string_view eight = LinearName(initializer.name, ".int8");
    const std::string_view linear = eight.empty() ? LinearName(initializer.name, ".int4") : eight;
    if (linear.empty() || linear.starts_with("lm_head")) continue;
    const int64_t elements = NumElements(initializer.shape);
    const auto found = scales.find(linear);
    sum.Add(elements, static_cast<double>(elements) * (eight.empty() ? 4.0 : 8.0) +
                          (found == scales.end() ? 0.0 : found->second));
  }
  return sum.per_weight() > 0 ? sum.per_weight() : 32.0;
}

}  // namespace hexport::evaluate
