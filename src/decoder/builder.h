// Makes the nodes of a decoder graph. Private to src/decoder.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "decoder/decoder.h"

namespace hexport::decoder {

// A dimension with the symbol it has when dynamic.
struct Dim {
  Dim(int64_t dim_size, std::string dim_symbol = "")  // NOLINT(google-explicit-constructor)
      : size(dim_size), symbol(std::move(dim_symbol)) {}
  int64_t size;
  std::string symbol;
};
using Dims = std::vector<Dim>;

// Appends nodes, weights and activations to a DecoderGraph. The first failure is kept; later calls
// go on building a graph that Finish() then refuses.
class Builder {
 public:
  explicit Builder(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), config_(checkpoint.config()) {}

  void Input(const std::string& name, DType dtype, const Dims& dims,
             const std::string& full_name = "");
  void Output(const std::string& name);  // an activation made before
  // Adds a node with one output of this name and shape; returns the name.
  std::string Emit(const std::string& op_type, std::vector<std::string> inputs,
                   const std::string& output, const Dims& dims,
                   std::map<std::string, graph::AttributeValue> attributes = {},
                   const std::string& full_name = "");
  // Split along the last axis into parts of these sizes; `dims` is the input's shape.
  void SplitLast(const std::string& input, const std::vector<std::string>& parts,
                 const std::vector<int64_t>& sizes, Dims dims);
  // Reshape with the constant "shape.<shape_name>", made once. `dims` is the result; `target` its
  // ONNX form.
  std::string Reshape(const std::string& input, const std::string& output, const Dims& dims,
                      const std::string& shape_name, const std::vector<int64_t>& target);
  // A vector (norm weight or bias) of the checkpoint as initializer `name`: (value + offset) *
  // scale.
  std::string Vector(const std::string& name, const std::string& tensor, int64_t size, double scale,
                     double offset);
  std::string Norm(const std::string& input, const std::string& output, const std::string& tensor,
                   const Dims& dims, double scale = 1.0);
  // x [1,AR,in] -> [1,AR,out]: MatMul, and Add when `bias`. The result's name is `output` or the
  // bias Add's. `tensor_rows`: of the whole checkpoint tensor, where it holds more than this
  // linear.
  std::string Linear(const std::string& input, const std::string& output,
                     const LinearWeight& weight, bool bias, const Dim& rows,
                     int64_t tensor_rows = 0);
  void Embedding(const std::string& output, const Dim& rows, const std::string& full_name);
  // x [1,AR,hidden_size] times the embedding, transposed, without a second copy of its bytes.
  void TiedHead(const std::string& input, const std::string& output, const Dim& rows);
  // The graph, checked, or the first failure. Nothing may be called after it.
  Result<DecoderGraph> Finish(std::string name);

  const ModelConfig& config() const { return config_; }

 private:
  void Expect(const std::string& tensor, const Shape& shape);
  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  DecoderGraph result_;
  Status status_;
};

}  // namespace hexport::decoder
