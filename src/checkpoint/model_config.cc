#include "checkpoint/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>

#include "checkpoint/config_fields.h"
#include "checkpoint/json_fields.h"
#include "checkpoint/packed_config.h"
#include "checkpoint/rope_config.h"

namespace hexport {
namespace {

using checkpoint::Excerpt;
using checkpoint::JsonFields;
using checkpoint::ParseJsonObject;
using checkpoint::RopeDefaults;
using nlohmann::json;

// Far above any model that fits a phone; they stop a broken file from asking for terabytes.
constexpr int64_t kMaxHiddenSize = 1 << 16;
constexpr int64_t kMaxIntermediateSize = 1 << 20;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxVocabSize = 1 << 22;
constexpr int64_t kMaxPositions = 1 << 28;
constexpr int64_t kDerive = INT64_MIN;  // head_dim is not given

Status Unsupported(const JsonFields& fields, std::string_view name, std::string_view expected) {
  const json* value = fields.Find(name);
  return Unimplemented(fields.where() + ": " + std::string(name) + ": expected " +
                       std::string(expected) + ", got " +
                       (value == nullptr ? "nothing" : Excerpt(*value)));
}

// What transformers' config classes have for fields that are absent, and what is fixed in code.
struct Architecture {
  std::string_view name;
  int64_t num_key_value_heads = 0;  // 0: num_attention_heads
  int64_t head_dim = 0;             // 0: hidden_size / num_attention_heads
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  RopeDefaults rope = {};
  enum class Window { kNever, kAllLayers, kSwitched, kByLayerType } window = Window::kNever;
  std::optional<int64_t> sliding_window = std::nullopt;  // when the field is absent
};

constexpr std::array<Architecture, 7> kArchitectures = {{
    {.name = "llama"},
    {.name = "mistral",
     .num_key_value_heads = 8,
     .window = Architecture::Window::kAllLayers,
     .sliding_window = 4096},
    {.name = "qwen2",
     .num_key_value_heads = 32,
     .window = Architecture::Window::kSwitched,
     .sliding_window = 4096},
    {.name = "qwen3",
     .num_key_value_heads = 32,
     .head_dim = 128,
     .window = Architecture::Window::kSwitched,
     .sliding_window = 4096},
    {.name = "phi3",
     .rms_norm_eps = 1e-5,
     .rope = {.partial_rotary = true, .original_max_position_embeddings = 4096},
     .window = Architecture::Window::kAllLayers},
    {.name = "smollm3",
     .num_key_value_heads = 4,
     .tie_word_embeddings = true,
     .rope = {.rope_theta = 2000000.0},
     .window = Architecture::Window::kSwitched},
    {.name = "gemma3_text",
     .num_key_value_heads = 4,
     .head_dim = 256,
     .tie_word_embeddings = true,
     .rope = {.rope_theta = 1000000.0, .rope_local_base_freq = 10000.0},
     .window = Architecture::Window::kByLayerType,
     .sliding_window = 4096},
}};
constexpr std::string_view kArchitectureNames =
    "llama, mistral, qwen2, qwen3, phi3, smollm3 or gemma3_text";

Result<const Architecture*> FindArchitecture(const JsonFields& fields) {
  HEXPORT_ASSIGN_OR_RETURN(const std::string name, fields.String("model_type", ""));
  if (name.empty()) return fields.Mismatch("model_type", kArchitectureNames);
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return &architecture;
  }
  return Unsupported(
      fields, "model_type",
      std::string(kArchitectureNames) +
          (name == "gemma3" ? " (of a Gemma 3 with images, save the text part alone)" : ""));
}

// What transformers would compute differently from any decoder that hexport builds.
Status RefuseOtherMaths(const JsonFields& fields) {
  HEXPORT_RETURN_IF_ERROR(checkpoint::ParsePackedConfig(fields).status());
  HEXPORT_ASSIGN_OR_RETURN(const bool causal, fields.Bool("is_causal", true));
  if (!causal) return Unsupported(fields, "is_causal", "true");
  HEXPORT_ASSIGN_OR_RETURN(const bool both_ways, fields.Bool("use_bidirectional_attention", false));
  if (both_ways) return Unsupported(fields, "use_bidirectional_attention", "false");
  return OkStatus();
}

// The defaults of an absent field; a null num_key_value_heads or head_dim is derived.
Result<int64_t> IntOrDerived(const JsonFields& fields, std::string_view name, int64_t when_absent,
                             int64_t derived) {
  const bool absent = !fields.Contains(name);
  return fields.Int(name, absent && when_absent != 0 ? when_absent : derived);
}

Status ParseSizes(const JsonFields& fields, const Architecture& architecture, ModelConfig& config) {
  HEXPORT_ASSIGN_OR_RETURN(config.hidden_size, fields.Int("hidden_size"));
  HEXPORT_ASSIGN_OR_RETURN(config.intermediate_size, fields.Int("intermediate_size"));
  HEXPORT_ASSIGN_OR_RETURN(config.num_hidden_layers, fields.Int("num_hidden_layers"));
  HEXPORT_ASSIGN_OR_RETURN(config.num_attention_heads, fields.Int("num_attention_heads"));
  HEXPORT_ASSIGN_OR_RETURN(
      config.num_key_value_heads,
      IntOrDerived(fields, "num_key_value_heads", architecture.num_key_value_heads,
                   config.num_attention_heads));
  HEXPORT_ASSIGN_OR_RETURN(config.vocab_size, fields.Int("vocab_size"));
  HEXPORT_ASSIGN_OR_RETURN(config.max_position_embeddings, fields.Int("max_position_embeddings"));
  HEXPORT_ASSIGN_OR_RETURN(config.rms_norm_eps,
                           fields.Number("rms_norm_eps", architecture.rms_norm_eps));
  const int64_t heads = config.num_attention_heads;
  HEXPORT_ASSIGN_OR_RETURN(config.head_dim,
                           IntOrDerived(fields, "head_dim", architecture.head_dim, kDerive));
  if (config.head_dim == kDerive && heads > 0) {
    if (config.hidden_size % heads != 0) {
      return fields.Mismatch("hidden_size",
                             "a multiple of num_attention_heads " + std::to_string(heads));
    }
    config.head_dim = config.hidden_size / heads;
  }
  if (config.num_hidden_layers < 1 || config.num_hidden_layers > kMaxLayers) {
    return fields.Mismatch("num_hidden_layers", "1 to " + std::to_string(kMaxLayers));
  }
  return OkStatus();
}

Result<HiddenAct> ParseActivation(const JsonFields& fields, std::string_view name,
                                  std::string_view otherwise) {
  HEXPORT_ASSIGN_OR_RETURN(const std::string activation, fields.String(name, otherwise));
  if (activation == "silu" || activation == "swish") return HiddenAct::kSilu;
  if (activation == "gelu_pytorch_tanh" || activation == "gelu_new") return HiddenAct::kGeluTanh;
  return Unsupported(fields, name, "silu or gelu_pytorch_tanh");
}

// What Gemma 3's code has fixed.
Status ParseGemma(const JsonFields& fields, ModelConfig& config) {
  config.qk_norm = config.branch_norms = true;
  config.norm_offset = 1.0;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  HEXPORT_ASSIGN_OR_RETURN(config.query_pre_attn_scalar,
                           fields.Number("query_pre_attn_scalar", 256.0));
  HEXPORT_ASSIGN_OR_RETURN(config.hidden_act,
                           ParseActivation(fields, "hidden_activation", "gelu_pytorch_tanh"));
  if (fields.Find("hidden_act") == nullptr) return OkStatus();
  HEXPORT_ASSIGN_OR_RETURN(const HiddenAct other, ParseActivation(fields, "hidden_act", ""));
  if (other != config.hidden_act)
    return Unsupported(fields, "hidden_act", "what hidden_activation says, which counts");
  return OkStatus();
}

Status ParseParts(const JsonFields& fields, const Architecture& architecture, ModelConfig& config) {
  HEXPORT_ASSIGN_OR_RETURN(config.tie_word_embeddings,
                           fields.Bool("tie_word_embeddings", architecture.tie_word_embeddings));
  HEXPORT_ASSIGN_OR_RETURN(const bool attention_bias, fields.Bool("attention_bias", false));
  HEXPORT_ASSIGN_OR_RETURN(const bool mlp_bias, fields.Bool("mlp_bias", false));
  const std::string& name = config.architecture;
  if (name == "qwen2") {
    config.attention_bias = true;  // fixed in its code; no field of config.json changes it
  } else if (name == "mistral" || name == "phi3") {
    if (attention_bias) return Unsupported(fields, "attention_bias", "false");
  } else {
    config.attention_bias = config.attention_output_bias = attention_bias;
  }
  if (name == "llama" || name == "smollm3") {
    config.mlp_bias = mlp_bias;
  } else if (mlp_bias) {
    return Unsupported(fields, "mlp_bias", "false");
  }
  if (name == "gemma3_text") return ParseGemma(fields, config);
  config.qk_norm = name == "qwen3";
  config.fused_projections = name == "phi3";
  HEXPORT_ASSIGN_OR_RETURN(config.hidden_act, ParseActivation(fields, "hidden_act", "silu"));
  return OkStatus();
}

// layer_types, where true is "sliding_attention"; nullopt when absent.
Result<std::optional<std::vector<bool>>> ParseLayerTypes(const JsonFields& fields, int64_t layers) {
  const json* types = fields.Find("layer_types");
  if (types == nullptr) return std::optional<std::vector<bool>>();
  if (!types->is_array()) return fields.Mismatch("layer_types", "a list");
  std::vector<bool> sliding;
  for (const json& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      return Unimplemented(
          fields.where() +
          ": layer_types: expected \"full_attention\" or \"sliding_attention\", got " +
          Excerpt(type));
    }
    sliding.push_back(type == "sliding_attention");
  }
  if (static_cast<int64_t>(sliding.size()) != layers)
    return fields.Mismatch("layer_types", "a list of " + std::to_string(layers));
  return std::optional(std::move(sliding));
}

// SmolLM3: 1 stands for a layer with RoPE, in spite of the field's name.
Status ParseNoRopeLayers(const JsonFields& fields, ModelConfig& config) {
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  HEXPORT_ASSIGN_OR_RETURN(const int64_t interval, fields.Int("no_rope_layer_interval", 4));
  if (interval < 1) return fields.Mismatch("no_rope_layer_interval", "at least 1");
  const json* list = fields.Find("no_rope_layers");
  const bool fits = list == nullptr || (list->is_array() && list->size() >= layers);
  if (!fits) return fields.Mismatch("no_rope_layers", "a list of " + std::to_string(layers));
  for (size_t layer = 0; layer < layers; ++layer) {
    if (list == nullptr) {
      config.no_rope_layers.push_back((static_cast<int64_t>(layer) + 1) % interval == 0);
    } else if ((*list)[layer] == 0 || (*list)[layer] == 1) {
      config.no_rope_layers.push_back((*list)[layer] == 0);
    } else {
      return fields.Mismatch("no_rope_layers", "zeros and ones");
    }
  }
  return OkStatus();
}

// Which layers slide when the file does not list them.
Result<std::vector<bool>> DefaultSlidingLayers(const JsonFields& fields,
                                               const Architecture& architecture,
                                               const ModelConfig& config) {
  using Window = Architecture::Window;
  HEXPORT_ASSIGN_OR_RETURN(const int64_t pattern, fields.Int("sliding_window_pattern", 6));
  HEXPORT_ASSIGN_OR_RETURN(const int64_t full_layers, fields.Int("max_window_layers", 28));
  if (pattern < 1) return fields.Mismatch("sliding_window_pattern", "at least 1");
  std::vector<bool> sliding;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    bool slides = architecture.window == Window::kAllLayers;
    if (architecture.window == Window::kByLayerType) slides = (layer + 1) % pattern != 0;
    if (architecture.window == Window::kSwitched) {
      slides = config.architecture == "smollm3" ? !config.UsesRope(layer) : layer >= full_layers;
    }
    sliding.push_back(slides);
  }
  return sliding;
}

// Sliding windows, and layers without RoPE.
Status ParseLayers(const JsonFields& fields, const Architecture& architecture,
                   ModelConfig& config) {
  using Window = Architecture::Window;
  if (config.architecture == "smollm3") HEXPORT_RETURN_IF_ERROR(ParseNoRopeLayers(fields, config));
  HEXPORT_ASSIGN_OR_RETURN(const auto types, ParseLayerTypes(fields, config.num_hidden_layers));
  std::optional<int64_t> window;
  HEXPORT_ASSIGN_OR_RETURN(const bool switched_on, fields.Bool("use_sliding_window", false));
  if (architecture.window != Window::kNever &&
      (architecture.window != Window::kSwitched || switched_on)) {
    HEXPORT_ASSIGN_OR_RETURN(window, fields.OptionalInt("sliding_window"));
    if (!fields.Contains("sliding_window")) window = architecture.sliding_window;
    if (window.has_value() && *window < 1) return fields.Mismatch("sliding_window", "at least 1");
  }
  if (window.has_value() || architecture.window == Window::kByLayerType) {
    HEXPORT_ASSIGN_OR_RETURN(config.sliding_layers,
                             DefaultSlidingLayers(fields, architecture, config));
    // Mistral and Phi-3 do not look at layer_types: it must say the same.
    if (types.has_value() && architecture.window == Window::kAllLayers &&
        *types != config.sliding_layers) {
      return Unsupported(fields, "layer_types", "\"sliding_attention\" for all layers");
    }
    if (types.has_value()) config.sliding_layers = *types;
  } else if (types.has_value()) {
    config.sliding_layers = *types;
  }
  const bool slides = std::find(config.sliding_layers.begin(), config.sliding_layers.end(), true) !=
                      config.sliding_layers.end();
  if (!slides) {
    config.sliding_layers.clear();
    return OkStatus();
  }
  if (!window.has_value()) {
    return Unimplemented(fields.where() +
                         ": layer_types: expected \"full_attention\" without a "
                         "sliding window, got \"sliding_attention\"");
  }
  config.sliding_window = *window;
  return OkStatus();
}

// An integer, or a list of integers.
Status AppendTokenIds(const JsonFields& fields, std::string_view name, std::vector<int64_t>& ids) {
  static constexpr std::string_view kExpected = "an integer or a list of integers";
  const json* value = fields.Find(name);
  if (value == nullptr) return OkStatus();
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& element : list) {
    if (!element.is_number_integer()) return fields.Mismatch(name, kExpected);
    const auto id = element.get<int64_t>();
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return OkStatus();
}

struct Range {
  std::string_view field;
  int64_t value, highest;
};

Status CheckFloat(const std::string& where, std::string_view field, double value, double above,
                  double below) {
  if (value > above && value < below) return OkStatus();  // false for NaN
  return InvalidArgument(where + ": " + std::string(field) + ": expected between " +
                         std::to_string(above) + " and " + std::to_string(below) + ", got " +
                         std::to_string(value));
}

Status CheckLongropeFactors(const std::string& where, std::string_view field,
                            const std::vector<double>& factors, int64_t pairs) {
  if (static_cast<int64_t>(factors.size()) != pairs) {
    return InvalidArgument(where + ": " + std::string(field) + ": expected " +
                           std::to_string(pairs) + " numbers, got " +
                           std::to_string(factors.size()));
  }
  for (const double factor : factors)
    HEXPORT_RETURN_IF_ERROR(CheckFloat(where, field, factor, 0.0, 1e6));
  return OkStatus();
}

Status CheckRope(const std::string& where, const RopeParameters& rope, int64_t head_dim) {
  HEXPORT_RETURN_IF_ERROR(CheckFloat(where, "rope_theta", rope.rope_theta, 1.0, 1e12));
  if (rope.rotary_dim < 2 || rope.rotary_dim > head_dim || rope.rotary_dim % 2 != 0) {
    return InvalidArgument(where + ": partial_rotary_factor: expected an even number of up to " +
                           std::to_string(head_dim) + " elements to turn, got " +
                           std::to_string(rope.rotary_dim));
  }
  const RopeScaling& scaling = rope.scaling;
  if (scaling.type == RopeScaling::Type::kNone) return OkStatus();
  HEXPORT_RETURN_IF_ERROR(CheckFloat(where, "rope factor", scaling.factor, 0.0, 1e6));
  if (scaling.type == RopeScaling::Type::kLinear) return OkStatus();
  const int64_t original = scaling.original_max_position_embeddings;
  if (original < 1 || original > kMaxPositions) {
    return InvalidArgument(where + ": rope original_max_position_embeddings: expected 1 to " +
                           std::to_string(kMaxPositions) + ", got " + std::to_string(original));
  }
  HEXPORT_RETURN_IF_ERROR(
      CheckFloat(where, "rope attention_factor", scaling.attention_factor, 0.0, 100.0));
  if (scaling.type == RopeScaling::Type::kYarn) {
    HEXPORT_RETURN_IF_ERROR(CheckFloat(where, "beta_slow", scaling.beta_slow, 0.0, 1e6));
    return CheckFloat(where, "beta_fast", scaling.beta_fast, scaling.beta_slow, 1e6);
  }
  if (scaling.type == RopeScaling::Type::kLongrope) {
    HEXPORT_RETURN_IF_ERROR(
        CheckLongropeFactors(where, "short_factor", scaling.short_factor, rope.rotary_dim / 2));
    return CheckLongropeFactors(where, "long_factor", scaling.long_factor, rope.rotary_dim / 2);
  }
  HEXPORT_RETURN_IF_ERROR(CheckFloat(where, "low_freq_factor", scaling.low_freq_factor, 0.0, 1e6));
  return CheckFloat(where, "high_freq_factor", scaling.high_freq_factor, scaling.low_freq_factor,
                    1e6);
}

Status CheckAttention(const ModelConfig& config, const std::string& where) {
  if (config.sliding_window < 0 || config.sliding_window > kMaxPositions) {
    return InvalidArgument(where + ": sliding_window: expected 1 to " +
                           std::to_string(kMaxPositions) + " or null, got " +
                           std::to_string(config.sliding_window));
  }
  if (config.query_pre_attn_scalar != 0.0) {
    HEXPORT_RETURN_IF_ERROR(
        CheckFloat(where, "query_pre_attn_scalar", config.query_pre_attn_scalar, 0.0, 1e9));
  }
  HEXPORT_RETURN_IF_ERROR(CheckRope(where, config.rope, config.head_dim));
  if (!config.local_rope.has_value()) return OkStatus();
  return CheckRope(where + ": sliding layers", *config.local_rope, config.head_dim);
}

}  // namespace

Result<ModelConfig> ParseHfConfig(const std::string& config_json,
                                  const std::string& generation_config_json,
                                  const std::string& where) {
  HEXPORT_ASSIGN_OR_RETURN(const json parsed, ParseJsonObject(config_json, where));
  const JsonFields fields(parsed, where);
  HEXPORT_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(fields));
  ModelConfig config;
  config.architecture = architecture->name;
  HEXPORT_RETURN_IF_ERROR(RefuseOtherMaths(fields));
  HEXPORT_ASSIGN_OR_RETURN(config.unknown_fields,
                           checkpoint::CheckConfigFields(fields, architecture->name));
  HEXPORT_RETURN_IF_ERROR(ParseSizes(fields, *architecture, config));
  HEXPORT_RETURN_IF_ERROR(ParseParts(fields, *architecture, config));
  HEXPORT_RETURN_IF_ERROR(ParseLayers(fields, *architecture, config));
  HEXPORT_RETURN_IF_ERROR(checkpoint::ParseRope(fields, architecture->rope, config));
  HEXPORT_ASSIGN_OR_RETURN(config.bos_token_id, fields.Int("bos_token_id", -1));
  HEXPORT_RETURN_IF_ERROR(AppendTokenIds(fields, "eos_token_id", config.eos_token_ids));
  if (!generation_config_json.empty()) {
    const std::string generation_where = where + " (generation_config.json)";
    HEXPORT_ASSIGN_OR_RETURN(const json generation,
                             ParseJsonObject(generation_config_json, generation_where));
    HEXPORT_RETURN_IF_ERROR(AppendTokenIds(JsonFields(generation, generation_where), "eos_token_id",
                                           config.eos_token_ids));
  }
  HEXPORT_RETURN_IF_ERROR(ValidateConfig(config, where));
  return config;
}

Status ValidateConfig(const ModelConfig& config, const std::string& where) {
  for (const Range& range : {
           Range{"hidden_size", config.hidden_size, kMaxHiddenSize},
           Range{"intermediate_size", config.intermediate_size, kMaxIntermediateSize},
           Range{"num_hidden_layers", config.num_hidden_layers, kMaxLayers},
           Range{"num_attention_heads", config.num_attention_heads, kMaxHeads},
           Range{"num_key_value_heads", config.num_key_value_heads, kMaxHeads},
           Range{"head_dim", config.head_dim, kMaxHeadDim},
           Range{"vocab_size", config.vocab_size, kMaxVocabSize},
           Range{"max_position_embeddings", config.max_position_embeddings, kMaxPositions},
       }) {
    if (range.value < 1 || range.value > range.highest) {
      return InvalidArgument(where + ": " + std::string(range.field) + ": expected 1 to " +
                             std::to_string(range.highest) + ", got " +
                             std::to_string(range.value));
    }
  }
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    return InvalidArgument(where + ": num_key_value_heads: expected a divisor of " +
                           std::to_string(config.num_attention_heads) + " attention heads, got " +
                           std::to_string(config.num_key_value_heads));
  }
  if (config.head_dim % 2 != 0) {
    return InvalidArgument(where + ": head_dim: expected an even number (RoPE turns pairs), got " +
                           std::to_string(config.head_dim));
  }
  std::vector<int64_t> ids = config.eos_token_ids;
  if (config.bos_token_id != -1) ids.push_back(config.bos_token_id);
  for (const int64_t id : ids) {
    if (id < 0 || id >= config.vocab_size) {
      return InvalidArgument(where + ": bos_token_id or eos_token_id: expected 0 to " +
                             std::to_string(config.vocab_size - 1) + ", got " + std::to_string(id));
    }
  }
  HEXPORT_RETURN_IF_ERROR(CheckFloat(where, "rms_norm_eps", config.rms_norm_eps, 0.0, 0.1));
  return CheckAttention(config, where);
}

}  // namespace hexport
