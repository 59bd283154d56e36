#include "quant/encodings_export.h"

#include <set>
#include <utility>
#include <vector>

#include "quant/qdq.h"

namespace hexport::quant {
namespace {

constexpr int kFloat16Bits = 16, kLpbqChannelBits = 8;

}  // namespace

TensorEncoding ToTensorEncoding(const std::string& name, const Encoding& encoding) {
  TensorEncoding out;
  out.name = name;
  out.bits = encoding.bits;
  out.symmetric = encoding.zero_point == 1 << (encoding.bits - 1);
  out.scales = {encoding.scale};
  out.offsets = {-encoding.zero_point};
  return out;
}

Encoding ToEncoding(const TensorEncoding& encoding) {
  return {encoding.scales[0], -encoding.offsets[0], encoding.bits};
}

Result<TensorEncoding> LinearEncoding(const WeightStore& store, const std::string& name) {
  HEXPORT_ASSIGN_OR_RETURN(QuantizedWeight weight, store.ReadScales(name));
  TensorEncoding out;
  out.name = name;
  out.symmetric = true;
  out.type = EncodingType::kPerChannel;
  out.bits = weight.format == WeightFormat::kInt4   ? 4
             : weight.format == WeightFormat::kLpbq ? kLpbqChannelBits
                                                    : 8;
  out.scales = std::move(weight.channel_scales);
  out.offsets.assign(out.scales.size(), -(1 << (out.bits - 1)));
  if (weight.format != WeightFormat::kLpbq) return out;
  out.type = EncodingType::kLpbq;
  out.compressed_bits = 4;
  out.block_size = weight.block_size;
  const size_t channels = out.scales.size(), blocks = weight.block_scales.size() / channels;
  out.block_scales.resize(weight.block_scales.size());
  for (size_t b = 0; b < blocks; ++b) {
    for (size_t n = 0; n < channels; ++n)
      out.block_scales[n * blocks + b] = weight.block_scales[b * channels + n];
  }
  return out;
}

Result<EncodingsFile> ExportEncodings(const EncodedModel& model, EncodingsSchema schema) {
  HEXPORT_ASSIGN_OR_RETURN(const QdqGraph qdq,
                           BuildQdq(model.graph, model.ranges, model.store, {model.config}));
  EncodingsFile out;
  out.schema = schema;
  for (const decoder::Activation& activation : model.graph.activations) {
    const std::string& name = activation.value.name;
    const auto found = qdq.activations.find(name);
    if (found != qdq.activations.end()) {
      out.activations.push_back(ToTensorEncoding(name, found->second));
    } else {
      out.activations.push_back({name, EncodingType::kPerTensor, true, kFloat16Bits});
    }
  }
  std::set<std::string> linears;
  for (const decoder::LinearWeight& linear : model.graph.linears) linears.insert(linear.name);
  for (const graph::Initializer& initializer : model.graph.graph.initializers) {
    const std::string& name = initializer.name;
    if (initializer.dtype != DType::kFloat32) continue;
    if (name == model.graph.embedding) {
      HEXPORT_ASSIGN_OR_RETURN(const Encoding table, model.store.EmbeddingEncoding(name));
      out.params.push_back(ToTensorEncoding(name, table));
    } else if (linears.contains(name)) {
      HEXPORT_ASSIGN_OR_RETURN(TensorEncoding encoding, LinearEncoding(model.store, name));
      out.params.push_back(std::move(encoding));
    } else if (const auto found = qdq.constants.find(name); found != qdq.constants.end()) {
      out.params.push_back(ToTensorEncoding(name, found->second));
    } else {
      return Internal(name + ": expected an encoding of the QDQ graph");
    }
  }
  return out;
}

}  // namespace hexport::quant
