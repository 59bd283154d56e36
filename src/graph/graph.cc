#include "graph/graph.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

namespace hexport::graph {
namespace {

template <typename T>
const T* FindByName(const std::vector<T>& items, const std::string& name) {
  const auto found =
      std::find_if(items.begin(), items.end(), [&](const T& item) { return item.name == name; });
  return found == items.end() ? nullptr : &*found;
}

// Values known so far; refuses a second one of the same name.
class Names {
 public:
  Status Add(const std::string& name, const std::string& what) {
    if (name.empty()) return Internal("graph: " + what + " has an empty name; name it");
    if (!names_.insert(name).second) {
      return Internal("graph: " + what + ": expected a name of its own, got \"" + name +
                      "\" a second time");
    }
    return OkStatus();
  }
  bool Has(const std::string& name) const { return names_.contains(name); }

 private:
  std::unordered_set<std::string> names_;
};

Status CheckDimensions(const ValueInfo& value, const std::string& what) {
  if (!value.symbols.empty() && value.symbols.size() != value.shape.size()) {
    return Internal("graph: " + what + " \"" + value.name +
                    "\": expected one symbol a dimension, got " +
                    std::to_string(value.symbols.size()) + " for " + ShapeString(value.shape));
  }
  return OkStatus();
}

}  // namespace

const Initializer* Graph::FindInitializer(const std::string& wanted) const {
  return FindByName(initializers, wanted);
}
const ValueInfo* Graph::FindInput(const std::string& wanted) const {
  return FindByName(inputs, wanted);
}
const ValueInfo* Graph::FindOutput(const std::string& wanted) const {
  return FindByName(outputs, wanted);
}

Initializer MakeConstantBytes(std::string name, DType dtype, Shape shape,
                              std::vector<std::byte> bytes) {
  auto held = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  Initializer initializer{std::move(name), dtype, std::move(shape), {}};
  initializer.source = [held, label = initializer.name](std::span<std::byte> out) {
    if (out.size() != held->size()) {
      return Internal("constant " + label + ": expected " + std::to_string(out.size()) +
                      " bytes, got " + std::to_string(held->size()));
    }
    if (!out.empty()) std::memcpy(out.data(), held->data(), out.size());
    return OkStatus();
  };
  return initializer;
}

Status CheckGraph(const Graph& graph) {
  Names values, nodes;
  for (const ValueInfo& input : graph.inputs) {
    HEXPORT_RETURN_IF_ERROR(values.Add(input.name, "an input"));
    HEXPORT_RETURN_IF_ERROR(CheckDimensions(input, "input"));
  }
  for (const Initializer& initializer : graph.initializers) {
    HEXPORT_RETURN_IF_ERROR(values.Add(initializer.name, "an initializer"));
    if (NumBytes(initializer.dtype, initializer.shape) < 0) {
      return Internal("graph: initializer \"" + initializer.name +
                      "\": expected a static shape, got " + ShapeString(initializer.shape));
    }
  }
  for (const Node& node : graph.nodes) {
    const std::string label = "node \"" + node.name + "\" (" + node.op_type + ")";
    if (!node.name.empty()) HEXPORT_RETURN_IF_ERROR(nodes.Add(node.name, label));
    for (const std::string& input : node.inputs) {
      if (!input.empty() && !values.Has(input)) {
        return Internal(
            "graph: " + label + ": expected input \"" + input +
            "\" to be a graph input, an initializer or an earlier node's output, got none of them");
      }
    }
    for (const std::string& output : node.outputs) {
      if (!output.empty()) HEXPORT_RETURN_IF_ERROR(values.Add(output, label));
    }
  }
  Names outputs;
  for (const ValueInfo& output : graph.outputs) {
    HEXPORT_RETURN_IF_ERROR(outputs.Add(output.name, "an output"));
    HEXPORT_RETURN_IF_ERROR(CheckDimensions(output, "output"));
    if (!values.Has(output.name)) {
      return Internal("graph: output \"" + output.name +
                      "\": expected a node that makes it, got none");
    }
  }
  return OkStatus();
}

}  // namespace hexport::graph
