#include "quant/fake_quant.h"

#include <utility>

#include "quant/qdq_builder.h"

namespace hexport::quant {

Result<QdqGraph> BuildFakeQuant(const decoder::DecoderGraph& graph, const RangeMap& ranges,
                                const WeightStore& store, const QuantConfig& config,
                                const FakeQuantOptions& options) {
  QdqBuilderOptions builder;
  builder.float_edges = true;
  builder.weights = options.weights;
  builder.activations = options.activations;
  builder.float_activations = options.float_activations;
  return QdqBuilder(graph, ranges, store, config, std::move(builder)).Build();
}

}  // namespace hexport::quant
