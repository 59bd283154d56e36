#include "quant/qdq.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "quant/activation_groups.h"
#include "quant/weight_initializers.h"

namespace hexport::quant {
namespace {

using graph::Graph;
using graph::Initializer;
using graph::Node;
using graph::ValueInfo;

DType CodeType(const Encoding& encoding) {
  return encoding.bits == 8 ? DType::kUInt8 : DType::kUInt16;
}

// Writes the QDQ graph node by node. Value names: "<a>.float" before quantization, "<a>.codes" (or
// the graph output's own name) between, "<a>.dq" after. They do not depend on AR or CL, so that
// variants share stored weights.
class QdqBuilder {
 public:
  QdqBuilder(const decoder::DecoderGraph& decoder, const RangeMap& ranges, const WeightStore& store)
      : decoder_(decoder),
        source_(decoder.graph),
        ranges_(ranges),
        store_(store),
        groups_(decoder) {
    for (const Initializer& initializer : source_.initializers)
      initializers_[initializer.name] = &initializer;
    for (const decoder::LinearWeight& linear : decoder.linears) linears_.insert(linear.name);
    for (const ValueInfo& output : source_.outputs) outputs_.insert(output.name);
  }

  Result<QdqGraph> Build() && {
    out_.graph.name = source_.name;
    for (const ValueInfo& input : source_.inputs) HEXPORT_RETURN_IF_ERROR(AddInput(input));
    for (const Node& node : source_.nodes) HEXPORT_RETURN_IF_ERROR(AddNode(node));
    for (ValueInfo output : source_.outputs) {
      HEXPORT_ASSIGN_OR_RETURN(const Encoding encoding, EncodingOf(output.name));
      output.dtype = CodeType(encoding);
      out_.io[output.name] = encoding;
      out_.graph.outputs.push_back(std::move(output));
    }
    return std::move(out_);
  }

 private:
  Status AddInput(const ValueInfo& input) {
    ValueInfo info = input;
    if (input.dtype == DType::kFloat32) {
      HEXPORT_ASSIGN_OR_RETURN(const Encoding encoding, EncodingOf(input.name));
      info.dtype = CodeType(encoding);
      out_.io[input.name] = encoding;
      AddDequantize(input.name, input.name);
    } else {
      usable_[input.name] = input.name;
    }
    out_.graph.inputs.push_back(std::move(info));
    return OkStatus();
  }

  Status AddNode(const Node& node) {
    Node copy = node;
    for (std::string& input : copy.inputs) {
      if (input.empty()) continue;
      HEXPORT_ASSIGN_OR_RETURN(input, Usable(input));
    }
    // An Identity marks a change of encoding: its input's floats are quantized anew.
    const bool identity = node.op_type == "Identity";
    if (!identity) {
      for (std::string& output : copy.outputs) output += ".float";
    }
    std::string from = copy.inputs.empty() ? "" : copy.inputs[0];
    if (!identity) out_.graph.nodes.push_back(copy);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      HEXPORT_RETURN_IF_ERROR(AddQuantize(node.outputs[i], identity ? from : copy.outputs[i]));
    }
    return OkStatus();
  }

  Status AddQuantize(const std::string& activation, const std::string& value) {
    HEXPORT_RETURN_IF_ERROR(EncodingOf(activation).status());
    const std::string& group = groups_.Root(activation);
    const std::string codes = outputs_.contains(activation) ? activation : activation + ".codes";
    Node node;
    node.op_type = "QuantizeLinear";
    node.name = activation + ".q";
    node.inputs = {value, group + ".scale", group + ".zero_point"};
    node.outputs = {codes};
    out_.graph.nodes.push_back(std::move(node));
    if (groups_.IsConsumed(activation)) AddDequantize(activation, codes);
    return OkStatus();
  }

  void AddDequantize(const std::string& activation, const std::string& codes) {
    out_.graph.nodes.push_back(DequantizeNode(codes, groups_.Root(activation), activation + ".dq"));
    usable_[activation] = activation + ".dq";
  }

  // The float (or integer) value that stands for a value of the source graph.
  Result<std::string> Usable(const std::string& name) {
    if (const auto found = usable_.find(name); found != usable_.end()) return found->second;
    const auto found = initializers_.find(name);
    if (found == initializers_.end())
      return Internal(name + ": expected an initializer or an earlier value");
    const Initializer& initializer = *found->second;
    std::string value = name + ".dq";
    if (linears_.contains(name)) {
      HEXPORT_RETURN_IF_ERROR(AddNpuWeight(store_, name, out_.graph));
    } else if (name == decoder_.embedding) {
      HEXPORT_RETURN_IF_ERROR(AddEmbedding(store_, name, out_.graph));
      out_.graph.nodes.push_back(DequantizeNode(name + ".uint16", name, value));
    } else if (initializer.dtype == DType::kFloat32) {
      HEXPORT_RETURN_IF_ERROR(AddConstant(initializer));
    } else {
      out_.graph.initializers.push_back(initializer);
      value = name;
    }
    usable_[name] = value;
    return value;
  }

  // Norm weights and biases: 16 bit per tensor.
  Status AddConstant(const Initializer& initializer) {
    const int64_t count = NumElements(initializer.shape);
    if (count < 0) return Internal(initializer.name + ": expected a static shape");
    std::vector<float> values(static_cast<size_t>(count));
    HEXPORT_RETURN_IF_ERROR(initializer.source(std::as_writable_bytes(std::span<float>(values))));
    Range range;
    for (const float value : values) {
      if (!std::isfinite(value)) {
        return DataLoss(initializer.name + ": expected finite numbers, got " +
                        std::to_string(value));
      }
      range.min = std::min(range.min, value);
      range.max = std::max(range.max, value);
    }
    const Encoding encoding = MakeEncoding(range, 16, /*symmetric=*/false);
    std::vector<uint16_t> codes(values.size());
    QuantizeValues(values, encoding, codes);
    const std::string codes_name = initializer.name + ".uint16";
    out_.graph.initializers.push_back(graph::MakeConstant<uint16_t>(
        codes_name, DType::kUInt16, initializer.shape, std::move(codes)));
    AddEncoding(initializer.name, encoding, out_.graph);
    out_.graph.nodes.push_back(
        DequantizeNode(codes_name, initializer.name, initializer.name + ".dq"));
    return OkStatus();
  }

  // Encoding of an activation's group; its scalars are added to the graph on first use.
  Result<Encoding> EncodingOf(const std::string& activation) {
    const std::string& root = groups_.Root(activation);
    auto found = encodings_.find(root);
    if (found == encodings_.end()) {
      HEXPORT_ASSIGN_OR_RETURN(const Encoding encoding, GroupEncoding(root));
      AddEncoding(root, encoding, out_.graph);
      found = encodings_.emplace(root, encoding).first;
    }
    out_.activations[activation] = found->second;
    return found->second;
  }

  Result<Encoding> GroupEncoding(const std::string& root) const {
    const ActivationGroups::Group& group = groups_.group(root);
    if (group.embedding) return store_.EmbeddingEncoding(decoder_.embedding);
    const bool cache = group.cache;
    if (group.probability) return MakeEncoding({0.0f, 1.0f}, 16, /*symmetric=*/false);
    Range range;
    for (const std::string& member : group.members) {
      const auto found = ranges_.find(member);
      if (found == ranges_.end()) {
        return InvalidArgument(
            member + ": expected a calibrated range, got none; calibrate this checkpoint again");
      }
      range.min = std::min(range.min, found->second.min);
      range.max = std::max(range.max, found->second.max);
    }
    return MakeEncoding(range, cache ? 8 : 16, cache);
  }

  const decoder::DecoderGraph& decoder_;
  const Graph& source_;
  const RangeMap& ranges_;
  const WeightStore& store_;
  ActivationGroups groups_;
  std::map<std::string, const Initializer*> initializers_;
  std::set<std::string> linears_, outputs_;
  std::map<std::string, std::string> usable_;  // source value -> value of the new graph
  std::map<std::string, Encoding> encodings_;  // by group root
  QdqGraph out_;
};

}  // namespace

Result<QdqGraph> BuildQdq(const decoder::DecoderGraph& graph, const RangeMap& ranges,
                          const WeightStore& store) {
  return QdqBuilder(graph, ranges, store).Build();
}

}  // namespace hexport::quant
