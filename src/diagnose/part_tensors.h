// The activations of a part of the decoder: who makes them, who reads them, which of their channels
// matter.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "quant/part_runner.h"

namespace hexport::diagnose {

struct PartTensor {
  std::string name;     // in the whole graph
  std::string op_type;  // of the node that makes it
  // What that node reads: activations by name in the whole graph, seen through ops that move data,
  // and weights of linears ("layers.0.mlp.up_proj.weight").
  std::vector<std::string> inputs;
  std::vector<std::string> readers;  // nodes of this part
};

// One for each activation that the part shows, in graph order.
std::vector<PartTensor> TensorsOf(const quant::PartRunner& part);

// By an activation's name in the part: how much an error in each channel of its last dimension
// matters to the linears that read it. A linear's input counts by the squares of its weight's rows
// (`row_squares`: [in_features] by the linear's name); before that it is carried through norms and
// elementwise nodes of the same width. Absent where no such reader is known. Errors: those of
// reading a norm's weight.
Result<std::map<std::string, std::vector<double>>> ChannelWeights(
    const decoder::DecoderGraph& decoder,
    const std::map<std::string, std::vector<double>>& row_squares);

}  // namespace hexport::diagnose
