#include "cli/quant_flags.h"

#include <utility>

#include "base/file.h"

namespace hexport::cli {

void AddQuantFlags(CLI::App& command, QuantFlags& flags) {
  command.add_option("--config", flags.config,
                     "JSON file of formats, methods and bits by pattern; flags win over it");
  command.add_option("--weights", flags.weights,
                     "int8 or int4 (per channel), or lpbq (int4 in blocks); default int8");
  command.add_option(
      "--method", flags.method,
      "gptq (errors made up for, from the calibration data; default), seqmse (scales "
      "searched on it), awq or smoothquant (channels scaled, then rounded), rtn (round to "
      "nearest; fastest) or import (codes of a GPTQ, AWQ or GGUF checkpoint, where the NPU can "
      "hold them)");
  command.add_option("--block", flags.block,
                     "LPBQ block along input features: 16, 32 (default) or 64");
  command.add_option("--activation-bits", flags.activation_bits, "16 (default) or 8");
  command.add_option("--kv-bits", flags.kv_bits, "Bits of the KV cache: 8 (default) or 16");
  command.add_option("--ranges", flags.ranges,
                     "How activation ranges are chosen: minmax (default), moving_average, "
                     "percentile, mse or entropy");
}

Result<quant::QuantConfig> ConfigFrom(const QuantFlags& flags) {
  quant::QuantConfig config;
  if (!flags.config.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(flags.config));
    HEXPORT_ASSIGN_OR_RETURN(config, quant::ParseQuantConfig(text, flags.config));
  }
  if (!flags.method.empty()) {
    const Result<quant::Method> method = quant::ParseMethod(flags.method);
    if (!method.ok()) return method.status().WithContext("--method");
    config.method = *method;
  }
  if (!flags.weights.empty()) {
    const Result<quant::WeightFormat> format = quant::ParseWeightFormat(flags.weights);
    if (!format.ok()) return format.status().WithContext("--weights");
    config.weights.format = *format;
  }
  if (!flags.ranges.empty()) {
    const Result<quant::RangeMethod> ranges = quant::ParseRangeMethod(flags.ranges);
    if (!ranges.ok()) return ranges.status().WithContext("--ranges");
    config.ranges = *ranges;
  }
  if (flags.block != 0) {
    if (flags.block != 16 && flags.block != 32 && flags.block != 64) {
      return InvalidArgument("--block: expected 16, 32 or 64, got " + std::to_string(flags.block));
    }
    config.weights.block_size = flags.block;
  }
  for (const auto& [name, given, bits] :
       {std::tuple{"--activation-bits", flags.activation_bits, &config.activation_bits},
        std::tuple{"--kv-bits", flags.kv_bits, &config.kv_bits}}) {
    if (given == 0) continue;
    if (given != 8 && given != 16)
      return InvalidArgument(std::string(name) + ": expected 8 or 16, got " +
                             std::to_string(given));
    *bits = given;
  }
  return config;
}

Status RefuseQuantFlags(const QuantFlags& flags, const std::string& decider) {
  for (const auto& [flag, given] :
       {std::pair{"--weights", !flags.weights.empty()},
        std::pair{"--method", !flags.method.empty()}, std::pair{"--block", flags.block != 0},
        std::pair{"--ranges", !flags.ranges.empty()},
        std::pair{"--activation-bits", flags.activation_bits != 0},
        std::pair{"--kv-bits", flags.kv_bits != 0}}) {
    if (given)
      return InvalidArgument(std::string(flag) + ": " + decider + " decides that; leave one out");
  }
  return OkStatus();
}

}  // namespace hexport::cli
