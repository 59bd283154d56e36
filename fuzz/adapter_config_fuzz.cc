// Any bytes as adapter_config.json: refused with a Status, or accepted, and then PEFT's matching
// rules end on every module name.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "adapter/adapter_config.h"
#include "fuzz/json_mutator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hexport::adapter;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto config = ParseAdapterConfig(text, "fuzz");
  if (!config.ok()) return 0;
  for (const std::string_view module :
       {"model.layers.0.self_attn.q_proj", "model.layers.11.mlp.down_proj", "lm_head",
        "model.embed_tokens", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.b"}) {
    (void)IsTarget(*config, module, module != "model.embed_tokens", module == "lm_head").ok();
    const auto rank = RankOf(*config, module);
    if (!rank.ok()) continue;
    if (*rank <= 0) std::abort();
    const auto scale = ScaleOf(*config, module, *rank);
    if (scale.ok() && !std::isfinite(*scale)) std::abort();
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return hexport::fuzz::MutateJson(data, size, max_size, seed);
}
