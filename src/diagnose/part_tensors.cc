#include "diagnose/part_tensors.h"

#include <span>

#include "quant/activation_groups.h"

namespace hexport::diagnose {
namespace {

using decoder::DecoderGraph;
using graph::Node;

class Links {
 public:
  explicit Links(const quant::PartRunner& part) : part_(part) {
    for (const decoder::LinearWeight& linear : part.decoder().linears) weights_.insert(linear.name);
    for (const decoder::Activation& activation : part.decoder().activations)
      activations_.insert(activation.value.name);
    for (const Node& node : part.decoder().graph.nodes) {
      for (const std::string& output : node.outputs) producers_[output] = &node;
    }
  }

  bool IsShown(const Node& node, const std::string& output) const {
    return !quant::MovesData(node.op_type) && activations_.contains(output);
  }

  // The activations or weights whose values `name` holds.
  std::set<std::string> SourcesOf(const std::string& name) const {
    if (weights_.contains(name)) return {name};
    if (!activations_.contains(name)) return {};
    const auto producer = producers_.find(name);
    if (producer == producers_.end() || !quant::MovesData(producer->second->op_type))
      return {part_.FullName(name)};
    std::set<std::string> sources;
    for (const std::string& input : quant::MovedInputs(*producer->second))
      sources.merge(SourcesOf(input));
    return sources;
  }

 private:
  const quant::PartRunner& part_;
  std::set<std::string> weights_, activations_;
  std::map<std::string, const Node*> producers_;
};

bool IsElementwise(const std::string& op_type) {
  static const std::set<std::string> kElementwise = {"Add", "Mul",  "Sub",     "Div", "Sigmoid",
                                                     "Neg", "Gelu", "Tanh",    "Erf", "Relu",
                                                     "Pow", "Cast", "Identity"};
  return kElementwise.contains(op_type);
}

// An RMSNormalization's weight, [channels], times each channel: an error there grows by it.
Status MultiplyByGain(const graph::Graph& graph, const std::string& name,
                      std::vector<double>& squares) {
  const graph::Initializer* gain = graph.FindInitializer(name);
  if (gain == nullptr || gain->dtype != DType::kFloat32) return OkStatus();
  std::vector<float> values(static_cast<size_t>(NumElements(gain->shape)));
  if (values.size() != squares.size()) return OkStatus();
  HEXPORT_RETURN_IF_ERROR(gain->source(std::as_writable_bytes(std::span(values))));
  for (size_t c = 0; c < values.size(); ++c)
    squares[c] *= static_cast<double>(values[c]) * static_cast<double>(values[c]);
  return OkStatus();
}

}  // namespace

std::vector<PartTensor> TensorsOf(const quant::PartRunner& part) {
  const Links links(part);
  std::vector<PartTensor> out;
  std::map<std::string, std::vector<std::string>> readers;
  for (const Node& node : part.decoder().graph.nodes) {
    if (quant::MovesData(node.op_type)) continue;
    std::set<std::string> inputs;
    for (const std::string& input : node.inputs) inputs.merge(links.SourcesOf(input));
    const std::string reader =
        links.IsShown(node, node.name) ? part.FullName(node.name) : node.name;
    for (const std::string& input : inputs) readers[input].push_back(reader);
    for (const std::string& output : node.outputs) {
      if (!links.IsShown(node, output)) continue;
      out.push_back({part.FullName(output), node.op_type, {inputs.begin(), inputs.end()}, {}});
    }
  }
  for (PartTensor& tensor : out) tensor.readers = readers[tensor.name];
  return out;
}

Result<std::map<std::string, std::vector<double>>> ChannelWeights(
    const DecoderGraph& decoder, const std::map<std::string, std::vector<double>>& row_squares) {
  std::map<std::string, int64_t> columns;
  for (const decoder::Activation& activation : decoder.activations) {
    if (!activation.value.shape.empty())
      columns[activation.value.name] = activation.value.shape.back();
  }
  std::map<std::string, std::vector<double>> weights;
  const auto add = [&](const std::string& name, const std::vector<double>& more) {
    const auto width = columns.find(name);
    if (width == columns.end() || width->second != static_cast<int64_t>(more.size())) return;
    std::vector<double>& sum = weights[name];
    sum.resize(more.size());
    for (size_t c = 0; c < more.size(); ++c) sum[c] += more[c];
  };
  for (auto node = decoder.graph.nodes.rbegin(); node != decoder.graph.nodes.rend(); ++node) {
    if (node->op_type == "MatMul") {
      if (const auto rows = row_squares.find(node->inputs[1]); rows != row_squares.end())
        add(node->inputs[0], rows->second);
      continue;
    }
    const bool norm = node->op_type == "RMSNormalization";
    if (!norm && !IsElementwise(node->op_type)) continue;
    const auto output = weights.find(node->outputs[0]);
    if (output == weights.end()) continue;
    std::vector<double> carried = output->second;
    if (norm) HEXPORT_RETURN_IF_ERROR(MultiplyByGain(decoder.graph, node->inputs[1], carried));
    for (const std::string& input : node->inputs) add(input, carried);
  }
  return weights;
}

}  // namespace hexport::diagnose
