// adapter_config.json of PEFT (and of LLaMA-Factory, which uses PEFT), with PEFT's own matching
// rules.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace hexport::adapter {

// A module filter: a list of names, one regular expression, or "all-linear".
struct ModuleFilter {
  enum class Kind { kNone, kList, kRegex, kAllLinear };
  Kind kind = Kind::kNone;
  std::vector<std::string> names;  // kList: "q_proj" or "model.layers.0.self_attn.q_proj"
  std::string regex;               // kRegex: Python's re.fullmatch on the module's path
};

// How the trainer initialized A and B. What matters is whether it changed the base weights.
enum class InitKind {
  kBaseUntouched,  // true, false, gaussian, orthogonal, eva, mica: the base is the base
  kPissa,          // base minus the top singular part; rebuilt by an exact SVD
  kOlora,          // base minus Q R of its QR decomposition; rebuilt
  kBaseChanged,    // pissa_niter_*, corda, loftq, lora_ga, unknown: refused without initial A and B
};

// Field names are PEFT's. A scaling is lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora
// (arXiv:2312.03732).
struct AdapterConfig {
  std::string peft_type;  // "LORA"
  std::string base_model_name_or_path, revision, task_type;
  int64_t r = 8;
  double lora_alpha = 8.0;
  bool use_rslora = false, use_dora = false, lora_bias = false, fan_in_fan_out = false;
  bool ensure_weight_tying = false;
  std::string bias = "none";  // "none", "all", "lora_only"
  // In the order of the file: the first pattern that matches counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  ModuleFilter target_modules, exclude_modules;
  std::vector<int64_t> layers_to_transform;  // empty: all
  std::vector<std::string> layers_pattern;
  std::vector<std::string> modules_to_save;
  std::map<std::string, std::vector<int64_t>> trainable_token_indices;  // module name -> rows
  std::string init_lora_weights = "true";                               // as text
  InitKind init = InitKind::kBaseUntouched;
  std::string base_sha256;  // hexport_base_sha256: written by a trainer that knows; else empty
  std::vector<std::string> warnings;
};

// Errors: kDataLoss (broken JSON), kInvalidArgument (a mistyped or absurd field, named),
// kUnimplemented (a PEFT method other than LoRA, or a set field that changes the maths and that
// hexport does not know; named with its value).
Result<AdapterConfig> ParseAdapterConfig(std::string_view json, const std::string& where);

// PEFT's rule for rank_pattern and alpha_pattern: the first pattern p for which (.*\.)?(p)$ matches
// the module's path. nullopt when none does. Errors: kInvalidArgument (a pattern that is no regular
// expression).
Result<std::optional<size_t>> MatchPattern(const std::vector<std::string>& patterns,
                                           std::string_view module);

// PEFT's rule for target_modules with exclude_modules, layers_to_transform and layers_pattern. A
// listed name matches the whole path or its end at a dot. Errors: kInvalidArgument (bad regex).
// `linear` says whether the module is a linear layer; `output_head` whether it is lm_head
// (all-linear leaves it out).
Result<bool> IsTarget(const AdapterConfig& config, std::string_view module, bool linear,
                      bool output_head);

// Rank and scale of a module by the config; the rank in the file decides when they differ.
Result<int64_t> RankOf(const AdapterConfig& config, std::string_view module);
Result<double> ScaleOf(const AdapterConfig& config, std::string_view module, int64_t rank);

}  // namespace hexport::adapter
