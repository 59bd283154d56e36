#include "checkpoint/config_fields.h"

#include <algorithm>
#include <array>
#include <span>

namespace hexport::checkpoint {
namespace {

using nlohmann::json;
using Names = std::span<const std::string_view>;

constexpr std::array<std::string_view, 25> kReadAlways = {"model_type",
                                                          "hidden_size",
                                                          "intermediate_size",
                                                          "num_hidden_layers",
                                                          "num_attention_heads",
                                                          "num_key_value_heads",
                                                          "head_dim",
                                                          "vocab_size",
                                                          "max_position_embeddings",
                                                          "rms_norm_eps",
                                                          "hidden_act",
                                                          "rope_theta",
                                                          "rope_scaling",
                                                          "rope_parameters",
                                                          "partial_rotary_factor",
                                                          "original_max_position_embeddings",
                                                          "tie_word_embeddings",
                                                          "layer_types",
                                                          "is_causal",
                                                          "quantization_config",
                                                          "bos_token_id",
                                                          "eos_token_id",
                                                          "attention_bias",
                                                          "mlp_bias",
                                                          "use_bidirectional_attention"};

// Read for one architecture beside those.
struct ReadBy {
  std::string_view architecture, field;
};
constexpr std::array<ReadBy, 18> kReadBy = {{
    {"mistral", "sliding_window"},
    {"phi3", "sliding_window"},
    {"qwen2", "sliding_window"},
    {"qwen2", "use_sliding_window"},
    {"qwen2", "max_window_layers"},
    {"qwen3", "sliding_window"},
    {"qwen3", "use_sliding_window"},
    {"qwen3", "max_window_layers"},
    {"smollm3", "sliding_window"},
    {"smollm3", "use_sliding_window"},
    {"smollm3", "no_rope_layers"},
    {"smollm3", "no_rope_layer_interval"},
    {"gemma3_text", "sliding_window"},
    {"gemma3_text", "sliding_window_pattern"},
    {"gemma3_text", "rope_local_base_freq"},
    {"gemma3_text", "query_pre_attn_scalar"},
    {"gemma3_text", "hidden_activation"},
    {"gemma3_text", "_sliding_window_pattern"},  // transformers' own copy, which it does not read
}};

// Part of the name of a harmless field: dropout is off outside training.
constexpr std::array<std::string_view, 3> kHarmlessParts = {"dropout", "pdrop", "implementation"};
// Harmless whatever the value: they choose what is returned or how it is computed, not what.
constexpr std::array<std::string_view, 9> kHarmless = {
    "output_attentions",  "output_hidden_states", "num_logits_to_keep",
    "logits_to_keep",     "pad_token_id",         "initializer_range",
    "repetition_penalty", "length_penalty",       "unsloth_version"};
// Harmless at this value alone. Phi-4-mini carries the first two; SmolLM3's files Qwen's leftover.
struct HarmlessAt {
  std::string_view architecture, field;
  int64_t value;
};
constexpr std::array<HarmlessAt, 2> kHarmlessAt = {
    {{"phi3", "full_attn_mod", 1}, {"phi3", "interpolate_factor", 1}}};
constexpr std::array<ReadBy, 1> kHarmlessFor = {{{"smollm3", "max_window_layers"}}};

// What a name that has to do with the maths contains.
constexpr std::array<std::string_view, 31> kMaths = {
    "rope",    "rotary",    "position",   "alibi",  "yarn",    "cap",    "window",
    "sliding", "attn",      "attention",  "scale",  "scaling", "scalar", "multiplier",
    "mup",     "norm",      "bias",       "expert", "moe",     "router", "activation",
    "act_fn",  "sparse",    "parallel",   "mask",   "causal",  "logit",  "residual",
    "qkv",     "per_layer", "interpolate"};

bool Contains(Names names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool HasPart(Names parts, std::string_view name) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return name.find(part) != name.npos; });
}

bool IsRead(std::string_view architecture, std::string_view name) {
  if (Contains(kReadAlways, name)) return true;
  return std::any_of(kReadBy.begin(), kReadBy.end(), [&](const ReadBy& read) {
    return read.architecture == architecture && read.field == name;
  });
}

bool IsHarmless(std::string_view architecture, std::string_view name, const json& value) {
  if (Contains(kHarmless, name) || HasPart(kHarmlessParts, name)) return true;
  for (const ReadBy& harmless : kHarmlessFor) {
    if (harmless.architecture == architecture && harmless.field == name) return true;
  }
  return std::any_of(kHarmlessAt.begin(), kHarmlessAt.end(), [&](const HarmlessAt& at) {
    return at.architecture == architecture && at.field == name && value == json(at.value);
  });
}

bool SaysOff(const json& value) {
  return value.is_null() || value == json(false) || (value.is_structured() && value.empty());
}

}  // namespace

Result<std::vector<std::string>> CheckConfigFields(const JsonFields& fields,
                                                   std::string_view architecture) {
  static constexpr std::array<std::string_view, 12> kOfTheFile = {
      "architectures", "torch_dtype", "dtype",          "transformers_version",
      "use_cache",     "auto_map",    "_name_or_path",  "name_or_path",
      "id2label",      "label2id",    "pretraining_tp", "_attn_implementation_autoset"};
  std::vector<std::string> unknown;
  for (const auto& item : fields.object().items()) {
    const std::string& name = item.key();
    const json& value = item.value();
    if (IsRead(architecture, name) || IsHarmless(architecture, name, value)) continue;
    if (Contains(kOfTheFile, name) || SaysOff(value)) continue;
    if (HasPart(kMaths, name)) {
      return Unimplemented(fields.where() + ": " + name + ": expected no such field for " +
                           std::string(architecture) + ", got " + Excerpt(value) +
                           "; hexport does not know what it changes; if transformers ignores it, "
                           "take it out");
    }
    unknown.push_back(name);
  }
  return unknown;
}

}  // namespace hexport::checkpoint
