// The float graph with the store's weights, for ONNX Runtime's CPU.
#include <set>
#include <string>

#include "quant/qdq.h"
#include "quant/weight_initializers.h"

namespace hexport::quant {

Result<graph::Graph> BuildCpu(const decoder::DecoderGraph& decoder, const WeightStore& store,
                              const CpuOptions& options) {
  const graph::Graph& source = decoder.graph;
  std::set<std::string> linears;
  for (const decoder::LinearWeight& linear : decoder.linears) linears.insert(linear.name);
  graph::Graph out;
  out.name = source.name;
  out.inputs = source.inputs;
  out.outputs = source.outputs;
  if (!decoder.embedding.empty())
    HEXPORT_RETURN_IF_ERROR(AddEmbedding(store, decoder.embedding, out));
  for (const graph::Initializer& initializer : source.initializers) {
    if (initializer.name == decoder.embedding || linears.contains(initializer.name)) continue;
    out.initializers.push_back(initializer);
  }
  for (const graph::Node& node : source.nodes) {
    if (node.op_type == "MatMul" && linears.contains(node.inputs[1])) {
      HEXPORT_RETURN_IF_ERROR(AddCpuLinear(store, node.inputs[1], node, options, out));
    } else if (node.op_type == "Gather" && node.inputs[0] == decoder.embedding) {
      // Rows are looked up as codes, so that the table stays 16 bit in memory.
      graph::Node gather = node;
      gather.name = node.outputs[0] + ".gather";
      gather.inputs[0] = decoder.embedding + ".uint16";
      gather.outputs[0] = node.outputs[0] + ".uint16";
      graph::Node dequantize =
          DequantizeNode(gather.outputs[0], decoder.embedding, node.outputs[0]);
      dequantize.name = node.name;
      out.nodes.push_back(std::move(gather));
      out.nodes.push_back(std::move(dequantize));
    } else {
      out.nodes.push_back(node);
    }
  }
  return out;
}

}  // namespace hexport::quant
