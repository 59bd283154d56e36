// Recognizes checkpoints whose weights are quantized, which cannot take a LoRA delta.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "adapter/base_tensors.h"

namespace hexport::adapter {

// Names the quantization format that config.json's quantization_config or the tensors show
// ("bitsandbytes 4-bit", "GPTQ", "AWQ", "compressed-tensors", "FP8 with block scales", ...) and
// what shows it; empty for plain floats.
std::string QuantizedFormat(const std::vector<BaseTensor>& tensors, std::string_view config_json);

}  // namespace hexport::adapter
