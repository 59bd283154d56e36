#include "adapter/quantized_base.h"

#include <array>
#include <nlohmann/json.hpp>

namespace hexport::adapter {
namespace {

using nlohmann::json;

// The first name with this ending, or empty.
std::string FindEnding(const std::vector<BaseTensor>& tensors, std::string_view ending) {
  for (const BaseTensor& tensor : tensors) {
    if (tensor.name.ends_with(ending)) return tensor.name;
  }
  return {};
}

struct Mark {
  std::string_view ending, format;
};
// In this order: qzeros stand in both GPTQ and AWQ, g_idx in GPTQ alone.
constexpr std::array kMarks{
    Mark{".absmax", "bitsandbytes 4-bit"},
    Mark{".quant_map", "bitsandbytes 4-bit"},
    Mark{".quant_state.bitsandbytes__nf4", "bitsandbytes 4-bit (NF4)"},
    Mark{".quant_state.bitsandbytes__fp4", "bitsandbytes 4-bit (FP4)"},
    Mark{".SCB", "bitsandbytes 8-bit"},
    Mark{".weight_format", "bitsandbytes 8-bit"},
    Mark{".g_idx", "GPTQ"},
    Mark{".qzeros", "AWQ (or GPTQ without g_idx)"},
    Mark{".qweight", "GPTQ or AWQ"},
    Mark{".weight_packed", "compressed-tensors"},
    Mark{".weight_scale_inv", "FP8 with block scales"},
    Mark{".weight_scale", "compressed-tensors or FP8"},
    Mark{".W_q", "HQQ"},
};

bool IsFloat(std::string_view dtype) {
  return dtype == "F32" || dtype == "F16" || dtype == "BF16" || dtype == "F64";
}

}  // namespace

std::string QuantizedFormat(const std::vector<BaseTensor>& tensors, std::string_view config_json) {
  const json config = json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (config.is_object()) {
    const auto found = config.find("quantization_config");
    if (found != config.end() && found->is_object() && !found->empty()) {
      std::string method = "an unnamed method";
      if (const auto name = found->find("quant_method");
          name != found->end() && name->is_string()) {
        method = name->get<std::string>();
      }
      return method + " (quantization_config in config.json)";
    }
  }
  for (const Mark& mark : kMarks) {
    const std::string name = FindEnding(tensors, mark.ending);
    if (!name.empty()) return std::string(mark.format) + " (tensor " + name + ")";
  }
  for (const BaseTensor& tensor : tensors) {
    if (tensor.name.ends_with(".weight") && tensor.shape.size() >= 2 &&
        !IsFloat(tensor.stored_dtype)) {
      return tensor.stored_dtype + " weights of an unknown format (tensor " + tensor.name + ")";
    }
  }
  return {};
}

}  // namespace hexport::adapter
