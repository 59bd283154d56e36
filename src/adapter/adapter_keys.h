// What the keys of an adapter's file say.
#pragma once

#include <string>
#include <string_view>

#include "adapter/adapter.h"

namespace hexport::adapter {

struct ParsedKey {
  TensorRole role = TensorRole::kUnknown;
  std::string module;        // without "base_model.model."
  std::string parameter;     // kWhole
  std::string adapter_name;  // "default" of lora_A.default.weight; empty: none in the key
  bool saved_module = false;
  bool base_copy = false;  // the untrained copy that PEFT keeps of a saved module (original_module)
};

// A key as PEFT and trainers around it write them, with or without adapter name. A name that is not
// known gives kUnknown.
ParsedKey ParseKey(std::string_view key);

}  // namespace hexport::adapter
