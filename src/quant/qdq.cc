#include "quant/qdq.h"

#include "quant/qdq_builder.h"

namespace hexport::quant {

Result<QdqGraph> BuildQdq(const decoder::DecoderGraph& graph, const RangeMap& ranges,
                          const WeightStore& store, const QdqOptions& options) {
  return QdqBuilder(graph, ranges, store, options.config, {}).Build();
}

}  // namespace hexport::quant
