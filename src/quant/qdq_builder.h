// Writes a graph with QuantizeLinear and DequantizeLinear at every activation, node by node.
// Private to src/quant.
#pragma once

#include <map>
#include <set>
#include <string>

#include "quant/activation_encodings.h"
#include "quant/qdq.h"

namespace hexport::quant {

struct QdqBuilderOptions {
  // Graph inputs and outputs stay float32, and the dequantized value of each activation has its
  // name; else inputs and outputs are codes, and that value is "<activation>.dq".
  bool float_edges = false;
  bool weights = true;                           // false: float weights
  bool activations = true;                       // false: none is quantized
  std::set<std::string> float_activations = {};  // by their names in the whole graph: not quantized
};

// Other value names: "<a>.float" before quantization, "<a>.codes" (or the graph output's own name)
// between. An 8 bit activation is quantized to 16 bits first ("<a>.wide"), and a reader that needs
// 16 bits gets "<a>.widened.dq". They do not depend on AR or CL, so that variants share stored
// weights.
class QdqBuilder {
 public:
  // All references must outlive the builder.
  QdqBuilder(const decoder::DecoderGraph& decoder, const RangeMap& ranges, const WeightStore& store,
             const QuantConfig& config, QdqBuilderOptions options);
  Result<QdqGraph> Build() &&;

 private:
  enum class Width { kWide, kNarrow };
  Status AddInput(const graph::ValueInfo& input);
  Status AddQuantizedInput(graph::ValueInfo& info);
  Status AddNode(const graph::Node& node);
  Status AddOutput(graph::ValueInfo output);
  // From the node's float output to the value that readers use.
  Status AddQuantize(const std::string& activation, const std::string& value, bool narrow_linear);
  Status AddFloat16(const std::string& activation, const std::string& value);
  // Q and DQ in `width`; `codes` and `output` name their values ("" output: no DQ).
  Status AddStep(const std::string& activation, Width width, const std::string& value,
                 const std::string& codes, const std::string& output);
  void AddCast(const std::string& value, const std::string& output, DType dtype);
  Result<std::string> EncodingName(const std::string& activation, Width width);
  // The float (or integer) value that stands for a value of the source graph.
  Result<std::string> Usable(const std::string& name);
  // The same for a linear of 8 bit activations or not, and for a node that computes in float16.
  Result<std::string> UsableBy(const graph::Node& node, const std::string& name);
  Result<std::string> UsableInFloat16(const std::string& name);
  Result<std::string> AddWeight(const graph::Initializer& initializer);
  Status AddConstant(const graph::Initializer& initializer);
  bool StaysFloat(const std::string& activation) const;
  std::string FinalName(const std::string& activation) const {
    return options_.float_edges ? activation : activation + ".dq";
  }

  const decoder::DecoderGraph& decoder_;
  const graph::Graph& source_;
  const WeightStore& store_;
  QdqBuilderOptions options_;
  ActivationEncodings encodings_;
  std::map<std::string, const graph::Initializer*> initializers_;
  std::set<std::string> linears_, outputs_, named_encodings_;
  std::map<std::string, std::string> usable_, widened_, float16_;  // source value -> new value
  QdqGraph out_;
};

}  // namespace hexport::quant
