#include "quant/qdq.h"

#include <set>
#include <string>

#include "quant/qdq_builder.h"

namespace hexport::quant {

Result<QdqGraph> BuildQdq(const decoder::DecoderGraph& graph, const RangeMap& ranges,
                          const WeightStore& store, const QdqOptions& options) {
  return QdqBuilder(graph, ranges, store, options.config, {}).Build();
}

Status CheckRanges(const decoder::DecoderGraph& graph, const RangeMap& ranges) {
  std::set<std::string> names;
  std::string without_range, without_activation;
  size_t missing = 0, unused = 0;
  for (const decoder::Activation& activation : graph.activations) {
    names.insert(activation.name);
    if (ranges.contains(activation.name)) continue;
    if (missing++ == 0) without_range = activation.name;
  }
  for (const auto& [name, range] : ranges) {
    const bool step_input =
        name.ends_with("attention_mask") || name.find("position_ids_") != std::string::npos;
    // Given encodings of constants stand among the ranges.
    const bool constant = graph.graph.FindInitializer(name) != nullptr;
    if (step_input || constant || names.contains(name)) continue;
    if (unused++ == 0) without_activation = name;
  }
  if (missing + unused == 0) return OkStatus();
  return InvalidArgument("ranges: expected one for each of " + std::to_string(names.size()) +
                         " activations, got " + std::to_string(missing) + " activations without" +
                         (missing > 0 ? " (the first is " + without_range + ")" : "") + " and " +
                         std::to_string(unused) + " ranges of no activation" +
                         (unused > 0 ? " (the first is " + without_activation + ")" : "") +
                         "; calibrate this graph again");
}

}  // namespace hexport::quant
