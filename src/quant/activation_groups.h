// Which activations must share one encoding.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "decoder/decoder.h"

namespace hexport::quant {

// Reshape, Transpose, Split and Concat: their outputs hold their inputs' values, and the NPU runs
// them on codes.
bool MovesData(std::string_view op_type);
// The inputs of such a node that hold data: all of a Concat, the first of the others.
std::vector<std::string> MovedInputs(const graph::Node& node);

class ActivationGroups {
 public:
  struct Group {
    std::vector<std::string> members;
    bool cache = false;        // 8 bit symmetric: past_* inputs and what an Identity writes
    bool probability = false;  // output of Softmax or Sigmoid: [0, 1]
    bool embedding = false;    // looked up in the table: the table's own encoding
  };

  explicit ActivationGroups(const decoder::DecoderGraph& decoder);
  // The group's name: its first activation in graph order.
  const std::string& Root(const std::string& activation) const;
  const Group& group(const std::string& root) const { return groups_.at(root); }
  // Whether a node reads the activation.
  bool IsConsumed(const std::string& activation) const { return consumed_.contains(activation); }

 private:
  void Join(const std::string& a, const std::string& b);
  std::map<std::string, std::string> parent_;
  std::map<std::string, size_t> order_;
  std::map<std::string, Group> groups_;
  std::set<std::string> consumed_;
};

}  // namespace hexport::quant
