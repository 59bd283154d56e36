#include <vector>

#include "base/attention_mask.h"
#include "base/rope.h"
#include "decoder/decoder.h"

namespace hexport::decoder {

std::optional<std::vector<float>> StepInput(const StepInputs& step, std::string_view input) {
  const ModelConfig& config = step.config;
  if (input == "attention_mask" || input == "sliding_attention_mask") {
    const int64_t window = input == "attention_mask" ? 0 : config.sliding_window;
    return AttentionMask(step.ar, step.cl, step.past, step.count, step.mask_floor, window);
  }
  const bool local = input.starts_with("local_");
  const std::string_view table = local ? input.substr(6) : input;
  if (table != "position_ids_cos" && table != "position_ids_sin") return std::nullopt;
  const RopeParameters& rope = local ? config.local_rope.value_or(config.rope) : config.rope;
  std::vector<float> cos, sin;
  RopeTable(InverseFrequencies(rope, step.context_length), rope.scaling.attention_factor, step.past,
            step.ar, cos, sin);
  return table == "position_ids_cos" ? std::move(cos) : std::move(sin);
}

}  // namespace hexport::decoder
