// hexport's graph: ONNX's nodes and names in plain structs, weights as sources that are asked for
// their bytes only when a file is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace hexport::graph {

using AttributeValue =
    std::variant<int64_t, float, std::string, std::vector<int64_t>, std::vector<float>>;

struct Node {
  std::string op_type;
  std::string domain;               // "" is ai.onnx; "com.microsoft"
  std::string name;                 // unique; by convention the first output's name
  std::vector<std::string> inputs;  // "" is an absent optional input
  std::vector<std::string> outputs;
  std::map<std::string, AttributeValue> attributes;
};

// A graph input or output. Dimensions: >= 0, or kDynamicDim with a symbol in `symbols` at the same
// index.
struct ValueInfo {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::vector<std::string> symbols;  // empty, or one entry a dimension ("" for static ones)
};

// Fills `out` (exactly NumBytes(dtype, shape) bytes, little-endian, row-major; int4 packed low
// nibble first).
using DataSource = std::function<Status(std::span<std::byte> out)>;

struct Initializer {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
  DataSource source;
};

struct Graph {
  std::string name;
  std::vector<ValueInfo> inputs, outputs;
  std::vector<Node> nodes;  // topologically sorted
  std::vector<Initializer> initializers;
  int64_t opset = 23;  // version of ai.onnx that the nodes mean; read and written

  const Initializer* FindInitializer(const std::string& name) const;  // linear; nullptr if absent
  const ValueInfo* FindInput(const std::string& name) const;
  const ValueInfo* FindOutput(const std::string& name) const;
};

// A small constant whose bytes the initializer owns.
template <typename T>
Initializer MakeConstant(std::string name, DType dtype, Shape shape, std::vector<T> values);

// Every node input is a graph input, an initializer or an earlier node's output; names of values
// and of nodes unique (a node may have no name); shapes of initializers static; graph outputs made.
// kInternal naming the node or value otherwise.
Status CheckGraph(const Graph& graph);

// ---- implementation of the template
Initializer MakeConstantBytes(std::string name, DType dtype, Shape shape,
                              std::vector<std::byte> bytes);
template <typename T>
Initializer MakeConstant(std::string name, DType dtype, Shape shape, std::vector<T> values) {
  auto raw = std::as_bytes(std::span<const T>(values));
  return MakeConstantBytes(std::move(name), dtype, std::move(shape), {raw.begin(), raw.end()});
}

}  // namespace hexport::graph
