// Float decoder graph + ranges + quantized weights -> the graphs that run.
#pragma once

#include "base/status.h"
#include "decoder/decoder.h"
#include "graph/graph.h"
#include "quant/encoding.h"
#include "quant/weights.h"

namespace hexport::quant {

struct QdqGraph {
  graph::Graph graph;
  EncodingMap io;           // every quantized graph input and output
  EncodingMap activations;  // every activation, for reports and diagnosis
};

// Static-shape float graph -> QDQ graph for the NPU: activations u16, caches u8 symmetric
// (zero_point 128), softmax and sigmoid fixed to [0,1], data-moving ops share one encoding,
// RMSNormalization native, weights in the patterns that the QNN provider fuses. `store` must
// outlive the graph. Errors: kInvalidArgument naming an activation without a range, kNotFound
// naming a weight that the store lacks.
Result<QdqGraph> BuildQdq(const decoder::DecoderGraph& graph, const RangeMap& ranges,
                          const WeightStore& store);

// Float graph -> CPU graph: every linear becomes com.microsoft:MatMulNBits (4 or 8 bits) with
// exactly the store's codes and scales; activations and caches stay float32. `store` must outlive
// the graph.
Result<graph::Graph> BuildCpu(const decoder::DecoderGraph& graph, const WeightStore& store);

}  // namespace hexport::quant
