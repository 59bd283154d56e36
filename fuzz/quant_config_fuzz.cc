// Any bytes as a quantization config: refused with a Status, or accepted, then stable when written
// and read again, and a plan for every name.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "fuzz/json_mutator.h"
#include "quant/quant_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hexport::quant;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto config = ParseQuantConfig(text, "fuzz");
  if (!config.ok()) return 0;
  const std::string written = QuantConfigToJson(*config);
  const auto again = ParseQuantConfig(written, "fuzz");
  if (!again.ok() || QuantConfigToJson(*again) != written) std::abort();
  hexport::decoder::DecoderGraph graph;
  for (const char* name : {"layers.0.mlp.down_proj.weight", "lm_head.weight"}) {
    graph.linears.push_back({name, name, 576, 8, 1.0, name[1] == 'm', 0, 0});
    const LinearPlan plan = PlanLinear(*config, graph.linears.back());
    if (plan.weights.block_size % 16 != 0) std::abort();
  }
  const int bits = PlanActivation(*config, "layers.0.mlp.gated").bits;
  if (bits != 8 && bits != 16) std::abort();
  (void)CheckConfig(*config, graph).ok();
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return hexport::fuzz::MutateJson(data, size, max_size, seed);
}
