// The options of quantization that `quantize` and `build` share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/status.h"
#include "quant/quant_config.h"

namespace hexport::cli {

struct QuantFlags {
  std::string config;                   // --config
  std::string method, weights, ranges;  // "" when not given
  int block = 0, activation_bits = 0, kv_bits = 0;
};

void AddQuantFlags(CLI::App& command, QuantFlags& flags);
// The file of --config (defaults without), then what the flags say. Errors: those of the file, or
// kInvalidArgument naming the flag.
Result<quant::QuantConfig> ConfigFrom(const QuantFlags& flags);

// kInvalidArgument naming a flag beside --config that was given, where `decider` decides it all.
Status RefuseQuantFlags(const QuantFlags& flags, const std::string& decider);

}  // namespace hexport::cli
