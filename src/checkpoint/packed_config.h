// quantization_config of config.json: how a GPTQ or AWQ checkpoint packs its linears.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/json_fields.h"

namespace hexport::checkpoint {

enum class PackedLayout { kGptq, kAwq };

struct PackedConfig {
  PackedLayout layout = PackedLayout::kGptq;
  int bits = 4;                  // 4 or 8; AWQ: 4
  int64_t group_size = 128;      // input features that share a scale; -1: all
  bool desc_act = false;         // GPTQ: features were ordered, so that only g_idx knows the groups
  bool zeros_minus_one = false;  // GPTQ's first format stores zero points minus one
  int codes_per_word() const { return 32 / bits; }
};

// nullopt without a quantization_config. `fields` is the whole config.json. Errors: kUnimplemented
// naming the field (another quant_method, bits, AWQ version, checkpoint_format, pack_dtype, or
// settings that differ between modules), kInvalidArgument (a type, a group size).
Result<std::optional<PackedConfig>> ParsePackedConfig(const JsonFields& fields);
// The same from the text of config.json. Errors: kDataLoss (no JSON object), as above.
Result<std::optional<PackedConfig>> ParsePackedConfig(std::string_view config_json,
                                                      const std::string& where);

}  // namespace hexport::checkpoint
