#include "decoder/low_rank.h"

#include <algorithm>
#include <string>
#include <utility>

namespace hexport::decoder {
namespace {

using graph::Graph;
using graph::Node;

Node MakeNode(const std::string& op_type, std::vector<std::string> inputs,
              const std::string& output) {
  return {op_type, "", output, std::move(inputs), {output}, {}};
}

// [rows, columns] -> [columns, rows], times `scale`.
std::vector<float> Transposed(const std::vector<float>& values, int64_t rows, int64_t columns,
                              double scale) {
  std::vector<float> out(values.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      out[static_cast<size_t>(column * rows + row)] = static_cast<float>(
          static_cast<double>(values[static_cast<size_t>(row * columns + column)]) * scale);
    }
  }
  return out;
}

Status CheckSizes(const LinearWeight& linear, const LowRankBranch& branch) {
  const auto mismatch = [&](const std::string& what, int64_t expected, size_t got) {
    return InvalidArgument(linear.tensor + ": low-rank branch: " + what + ": expected " +
                           std::to_string(expected) + " values, got " + std::to_string(got));
  };
  for (const LowRankBranch::Term& term : branch.terms) {
    const int64_t left = linear.out_features * term.rank, right = term.rank * linear.in_features;
    if (term.rank < 1 || static_cast<int64_t>(term.left.size()) != left)
      return mismatch("left", left, term.left.size());
    if (static_cast<int64_t>(term.right.size()) != right)
      return mismatch("right", right, term.right.size());
  }
  if (!branch.base_gain.empty() &&
      static_cast<int64_t>(branch.base_gain.size()) != linear.out_features) {
    return mismatch("base_gain", linear.out_features, branch.base_gain.size());
  }
  return OkStatus();
}

}  // namespace

Status AddLowRankBranch(DecoderGraph& decoder, size_t index, const LowRankBranch& branch) {
  if (index >= decoder.linears.size())
    return InvalidArgument("low-rank branch: no linear " + std::to_string(index));
  const LinearWeight& linear = decoder.linears[index];
  HEXPORT_RETURN_IF_ERROR(CheckSizes(linear, branch));
  Graph& graph = decoder.graph;
  const auto product = std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return node.op_type == "MatMul" && node.inputs.size() == 2 && node.inputs[1] == linear.name;
  });
  if (product == graph.nodes.end())
    return Internal("low-rank branch: no MatMul reads " + linear.name);

  const std::string output = product->outputs[0], input = product->inputs[0];
  std::vector<Node> added;
  std::string sum = output + ".base";
  product->outputs[0] = product->name = sum;
  if (!branch.base_gain.empty()) {
    const std::string gain = output + ".base_gain";
    graph.initializers.push_back(
        graph::MakeConstant<float>(gain, DType::kFloat32, {linear.out_features}, branch.base_gain));
    added.push_back(MakeNode("Mul", {sum, gain}, output + ".base_scaled"));
    sum = added.back().outputs[0];
  }
  for (size_t t = 0; t < branch.terms.size(); ++t) {
    const LowRankBranch::Term& term = branch.terms[t];
    const std::string prefix = output + ".lora" + std::to_string(t);
    graph.initializers.push_back(graph::MakeConstant<float>(
        prefix + ".right", DType::kFloat32, {linear.in_features, term.rank},
        Transposed(term.right, term.rank, linear.in_features, 1.0)));
    graph.initializers.push_back(graph::MakeConstant<float>(
        prefix + ".left", DType::kFloat32, {term.rank, linear.out_features},
        Transposed(term.left, linear.out_features, term.rank, linear.scale)));
    added.push_back(MakeNode("MatMul", {input, prefix + ".right"}, prefix + "_low"));
    added.push_back(MakeNode("MatMul", {prefix + "_low", prefix + ".left"}, prefix));
    added.push_back(MakeNode("Add", {sum, prefix}, prefix + "_sum"));
    sum = added.back().outputs[0];
  }
  added.push_back(MakeNode("Identity", {sum}, output));
  graph.nodes.insert(product + 1, added.begin(), added.end());
  return graph::CheckGraph(graph);
}

}  // namespace hexport::decoder
