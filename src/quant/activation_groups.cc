#include "quant/activation_groups.h"

#include <utility>

namespace hexport::quant {

bool MovesData(std::string_view op_type) {
  return op_type == "Reshape" || op_type == "Transpose" || op_type == "Split" ||
         op_type == "Concat";
}

std::vector<std::string> MovedInputs(const graph::Node& node) {
  if (node.op_type == "Concat") return node.inputs;
  return {node.inputs.front()};
}

ActivationGroups::ActivationGroups(const decoder::DecoderGraph& decoder) {
  const graph::Graph& graph = decoder.graph;
  const auto add = [this](const std::string& name) {
    order_.emplace(name, order_.size());
    parent_.emplace(name, name);
  };
  for (const graph::ValueInfo& input : graph.inputs) {
    if (input.dtype == DType::kFloat32) add(input.name);
  }
  for (const graph::Node& node : graph.nodes) {
    for (const std::string& output : node.outputs) add(output);
    for (const std::string& input : node.inputs) consumed_.insert(input);
    if (!MovesData(node.op_type)) continue;
    for (const std::string& input : MovedInputs(node)) {
      for (const std::string& output : node.outputs) Join(input, output);
    }
  }
  for (const auto& [name, unused] : order_) groups_[Root(name)].members.push_back(name);
  for (const graph::ValueInfo& input : graph.inputs) {
    if (input.name.starts_with("past_")) groups_[Root(input.name)].cache = true;
  }
  for (const graph::Node& node : graph.nodes) {
    Group& group = groups_[Root(node.outputs[0])];
    if (node.op_type == "Identity") group.cache = true;
    if (node.op_type == "Softmax" || node.op_type == "Sigmoid") group.probability = true;
    if (node.op_type == "Gather" && node.inputs[0] == decoder.embedding) group.embedding = true;
  }
}

const std::string& ActivationGroups::Root(const std::string& activation) const {
  const std::string* name = &activation;
  for (auto found = parent_.find(*name); found != parent_.end() && found->second != *name;
       found = parent_.find(*name)) {
    name = &found->second;
  }
  return *name;
}

void ActivationGroups::Join(const std::string& a, const std::string& b) {
  std::string first = Root(a), second = Root(b);
  if (first == second || !parent_.contains(first) || !parent_.contains(second)) return;
  if (order_[second] < order_[first]) std::swap(first, second);
  parent_[second] = first;
}

}  // namespace hexport::quant
