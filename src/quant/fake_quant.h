// The float graph with the errors of quantization: floats in and out, for measuring and for methods
// that need the outputs of a quantized layer.
#pragma once

#include <set>
#include <string>

#include "base/status.h"
#include "decoder/decoder.h"
#include "graph/graph.h"
#include "quant/encoding.h"
#include "quant/qdq.h"
#include "quant/quant_config.h"
#include "quant/weights.h"

namespace hexport::quant {

struct FakeQuantOptions {
  bool weights = true;      // false: the float graph's own, norms and biases too
  bool activations = true;  // false: none is quantized
  // Activations that are not quantized, by their names in the whole graph ("layers.3.mlp.gated").
  std::set<std::string> float_activations = {};
};

// `graph` may be static or dynamic, whole or a range of layers. Inputs, outputs and names are those
// of `graph`; each activation's name holds its dequantized value, so that any can be made an output
// to look at. (A float input's dequantized value is "<input>.dq".) Encodings are those of BuildQdq
// for the whole graph; ranges go by the whole graph's names. Weights are float32 initializers
// dequantized from `store`, norm weights and biases 16 bit ones. `graph` and `store` must outlive
// the result. Run it with SessionOptions::exact_qdq, else ONNX Runtime fuses nodes and computes
// with integers. Errors: BuildQdq's.
Result<QdqGraph> BuildFakeQuant(const decoder::DecoderGraph& graph, const RangeMap& ranges,
                                const WeightStore& store, const QuantConfig& config,
                                const FakeQuantOptions& options = {});

}  // namespace hexport::quant
