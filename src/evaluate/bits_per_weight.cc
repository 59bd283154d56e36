#include "evaluate/bits_per_weight.h"

#include <map>
#include <string>
#include <variant>

#include "checkpoint/block_format.h"
#include "decoder/decoder.h"
#include "graph/onnx_io.h"

namespace hexport::evaluate {
namespace {

int64_t IntegerAttribute(const graph::Node& node, const std::string& name) {
  const auto found = node.attributes.find(name);
  if (found == node.attributes.end()) return 0;
  const auto* value = std::get_if<int64_t>(&found->second);
  return value != nullptr ? *value : 0;
}

}  // namespace

double LinearBits(quant::WeightFormat format, int64_t in_features, int64_t out_features,
                  int64_t block_size) {
  const double in = static_cast<double>(in_features), out = static_cast<double>(out_features);
  double bits = (format == quant::WeightFormat::kInt8 ? 8.0 : 4.0) * in * out + 32.0 * out;
  if (format == quant::WeightFormat::kLpbq)
    bits += 8.0 * in / static_cast<double>(block_size) * out;
  return bits;
}

Result<double> CheckpointBitsPerWeight(const Checkpoint& checkpoint) {
  HEXPORT_ASSIGN_OR_RETURN(const decoder::DecoderGraph decoder,
                           decoder::BuildDecoder(checkpoint, {}));
  WeightBits sum;
  for (const decoder::LinearWeight& linear : decoder.linears) {
    if (linear.lm_head) continue;
    const TensorInfo* tensor = checkpoint.Find(linear.tensor);
    const checkpoint::BlockFormat* format =
        tensor == nullptr ? nullptr : checkpoint::FindBlockFormat(tensor->stored_dtype);
    if (format == nullptr) {
      return Internal(linear.tensor + ": expected a known storage format, got " +
                      (tensor == nullptr ? "no tensor" : tensor->stored_dtype));
    }
    const int64_t elements = linear.in_features * linear.out_features;
    sum.Add(elements, static_cast<double>(elements) * 8.0 * static_cast<double>(format->bytes) /
                          static_cast<double>(format->elements));
  }
  return sum.per_weight();
}

Result<double> BundleBitsPerWeight(const std::filesystem::path& bundle,
                                   const bundle::Manifest& manifest) {
  HEXPORT_ASSIGN_OR_RETURN(const graph::Graph cpu, graph::ReadOnnx(bundle / manifest.cpu_model));
  std::map<std::string, const graph::Initializer*> initializers;
  for (const graph::Initializer& initializer : cpu.initializers)
    initializers[initializer.name] = &initializer;
  WeightBits sum;
  for (const graph::Node& node : cpu.nodes) {
    if (node.inputs.size() < 2 || node.inputs[1].starts_with("lm_head.")) continue;
    if (node.op_type == "MatMulNBits") {
      const int64_t in = IntegerAttribute(node, "K"), out = IntegerAttribute(node, "N");
      // A linear that LPBQ's block does not divide is int8; MatMulNBits' own blocks say nothing of
      // per-channel codes, whose scale repeats.
      const bool eight = IntegerAttribute(node, "bits") == 8;
      const bool lpbq = manifest.weights == "lpbq" && !eight;
      const quant::WeightFormat format = eight  ? quant::WeightFormat::kInt8
                                         : lpbq ? quant::WeightFormat::kLpbq
                                                : quant::WeightFormat::kInt4;
      sum.Add(in * out, LinearBits(format, in, out, lpbq ? manifest.block_size : 1));
    } else if (node.op_type == "MatMul" && initializers.contains(node.inputs[1])) {
      const int64_t elements = NumElements(initializers[node.inputs[1]]->shape);
      sum.Add(elements, 32.0 * static_cast<double>(elements));
    }
  }
  return sum.per_weight();
}

}  // namespace hexport::evaluate
