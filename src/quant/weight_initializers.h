// Stored weights as graph initializers: the NPU's DequantizeLinear patterns and the CPU's
// MatMulNBits tensors. The sources read from the store when a file is written; the store must
// outlive the graph. Private to src/quant.
#pragma once

#include <string>

#include "base/status.h"
#include "graph/graph.h"
#include "quant/qdq.h"
#include "quant/weights.h"

namespace hexport::quant {

// Adds the initializers and DequantizeLinear nodes of linear `name`; the float weight is the value
// "<name>.dq".
//   int8 / int4: DQ(codes, channel scales, axis 1)
//   LPBQ:        DQ(int4 codes, DQ(integer block scales, channel scales, axis 1), axis 0,
//                block_size), the pattern that the QNN provider fuses into one FullyConnected.
// Errors: those of WeightStore::Describe.
Status AddNpuWeight(const WeightStore& store, const std::string& name, graph::Graph& graph);

// Replaces `matmul` (inputs x, `name`) by com.microsoft:MatMulNBits with the same codes and scales,
// computing as `options` say. Channels of int8 / int4 repeat their scale in every block;
// in_features that no block divides are padded with zero codes.
Status AddCpuLinear(const WeightStore& store, const std::string& name, const graph::Node& matmul,
                    const CpuOptions& options, graph::Graph& graph);

// The embedding's codes, "<name>.uint16", and its scale and zero point, "<name>.scale" and
// "<name>.zero_point".
Status AddEmbedding(const WeightStore& store, const std::string& name, graph::Graph& graph);

// Scalars "<name>.scale" (float32) and "<name>.zero_point" (uint8 or uint16 by encoding.bits).
void AddEncoding(const std::string& name, const Encoding& encoding, graph::Graph& graph);

// DequantizeLinear(codes, <encoding>.scale, <encoding>.zero_point) -> output.
graph::Node DequantizeNode(const std::string& codes, const std::string& encoding,
                           const std::string& output);

}  // namespace hexport::quant
