#include "checkpoint/model_config.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "checkpoint/json_fields.h"

namespace hexport {
namespace {

using checkpoint::Excerpt;
using checkpoint::JsonFields;
using checkpoint::ParseJsonObject;
using nlohmann::json;

// Far above any model that fits a phone; they stop a broken file from asking for terabytes.
constexpr int64_t kMaxHiddenSize = 1 << 16;
constexpr int64_t kMaxIntermediateSize = 1 << 20;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxVocabSize = 1 << 22;
constexpr int64_t kMaxPositions = 1 << 28;

Status Unsupported(const JsonFields& fields, std::string_view name, std::string_view expected) {
  const json* value = fields.Find(name);
  return Unimplemented(fields.where() + ": " + std::string(name) + ": expected " +
                       std::string(expected) + ", got " +
                       (value == nullptr ? "nothing" : Excerpt(*value)));
}

// What transformers would compute differently from the plain decoder, and hexport does not do.
Status RefuseOtherMaths(const JsonFields& fields) {
  HEXPORT_ASSIGN_OR_RETURN(const std::string activation, fields.String("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish")
    return Unsupported(fields, "hidden_act", "silu");
  if (fields.Find("quantization_config") != nullptr) {
    return Unsupported(fields, "quantization_config",
                       "float weights (dequantize the checkpoint and save it again)");
  }
  HEXPORT_ASSIGN_OR_RETURN(const bool sliding, fields.Bool("use_sliding_window", false));
  if (sliding) return Unsupported(fields, "use_sliding_window", "false");
  HEXPORT_ASSIGN_OR_RETURN(const bool causal, fields.Bool("is_causal", true));
  if (!causal) return Unsupported(fields, "is_causal", "true");
  HEXPORT_ASSIGN_OR_RETURN(const double rotary, fields.Number("partial_rotary_factor", 1.0));
  if (rotary != 1.0) return Unsupported(fields, "partial_rotary_factor", "1");
  if (const json* types = fields.Find("layer_types"); types != nullptr) {
    if (!types->is_array()) return fields.Mismatch("layer_types", "a list");
    for (const json& type : *types) {
      if (type != "full_attention") {
        return Unimplemented(fields.where() + ": layer_types: expected \"full_attention\", got " +
                             Excerpt(type));
      }
    }
  }
  return OkStatus();
}

Result<RopeScaling> ParseRopeObject(const JsonFields& rope) {
  HEXPORT_ASSIGN_OR_RETURN(const std::string old_spelling, rope.String("type", "default"));
  HEXPORT_ASSIGN_OR_RETURN(const std::string type, rope.String("rope_type", old_spelling));
  RopeScaling scaling;
  if (type == "default" || type == "none") return scaling;
  if (type != "linear" && type != "llama3") {
    return Unimplemented(rope.where() + ": rope_type: expected default, linear or llama3, got " +
                         type);
  }
  HEXPORT_ASSIGN_OR_RETURN(scaling.factor, rope.Number("factor"));
  if (type == "linear") {
    scaling.type = RopeScaling::Type::kLinear;
    return scaling;
  }
  scaling.type = RopeScaling::Type::kLlama3;
  HEXPORT_ASSIGN_OR_RETURN(scaling.low_freq_factor, rope.Number("low_freq_factor"));
  HEXPORT_ASSIGN_OR_RETURN(scaling.high_freq_factor, rope.Number("high_freq_factor"));
  HEXPORT_ASSIGN_OR_RETURN(scaling.original_max_position_embeddings,
                           rope.Int("original_max_position_embeddings"));
  return scaling;
}

// transformers 4 has rope_theta and rope_scaling, transformers 5 rope_parameters with both.
Status ParseRope(const JsonFields& fields, ModelConfig& config) {
  HEXPORT_ASSIGN_OR_RETURN(config.rope_theta, fields.Number("rope_theta", 10000.0));
  bool seen = false;
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const json* object = fields.Find(name);
    if (object == nullptr) continue;
    if (!object->is_object()) return fields.Mismatch(name, "an object");
    const JsonFields rope(*object, fields.where() + ": " + name);
    for (const auto& item : object->items()) {
      if (item.value().is_object()) return Unsupported(rope, item.key(), "one set for all layers");
    }
    HEXPORT_ASSIGN_OR_RETURN(const RopeScaling scaling, ParseRopeObject(rope));
    if (seen && scaling.type != config.rope_scaling.type) {
      return fields.Mismatch(name, "the rope type of rope_scaling");
    }
    config.rope_scaling = scaling;
    seen = true;
    HEXPORT_ASSIGN_OR_RETURN(config.rope_theta, rope.Number("rope_theta", config.rope_theta));
    HEXPORT_ASSIGN_OR_RETURN(const double rotary, rope.Number("partial_rotary_factor", 1.0));
    if (rotary != 1.0) return Unsupported(rope, "partial_rotary_factor", "1");
  }
  return OkStatus();
}

Status ParseSizes(const JsonFields& fields, ModelConfig& config) {
  HEXPORT_ASSIGN_OR_RETURN(config.hidden_size, fields.Int("hidden_size"));
  HEXPORT_ASSIGN_OR_RETURN(config.intermediate_size, fields.Int("intermediate_size"));
  HEXPORT_ASSIGN_OR_RETURN(config.num_hidden_layers, fields.Int("num_hidden_layers"));
  HEXPORT_ASSIGN_OR_RETURN(config.num_attention_heads, fields.Int("num_attention_heads"));
  HEXPORT_ASSIGN_OR_RETURN(config.num_key_value_heads,
                           fields.Int("num_key_value_heads", config.num_attention_heads));
  HEXPORT_ASSIGN_OR_RETURN(config.vocab_size, fields.Int("vocab_size"));
  HEXPORT_ASSIGN_OR_RETURN(config.max_position_embeddings, fields.Int("max_position_embeddings"));
  HEXPORT_ASSIGN_OR_RETURN(config.rms_norm_eps, fields.Number("rms_norm_eps", 1e-6));
  HEXPORT_ASSIGN_OR_RETURN(const std::optional<int64_t> head_dim, fields.OptionalInt("head_dim"));
  if (head_dim.has_value()) {
    config.head_dim = *head_dim;
  } else if (config.num_attention_heads > 0) {
    if (config.hidden_size % config.num_attention_heads != 0) {
      return fields.Mismatch("hidden_size", "a multiple of num_attention_heads " +
                                                std::to_string(config.num_attention_heads));
    }
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  return OkStatus();
}

Status ParseArchitecture(const JsonFields& fields, ModelConfig& config) {
  HEXPORT_ASSIGN_OR_RETURN(config.architecture, fields.String("model_type", ""));
  if (config.architecture.empty()) return fields.Mismatch("model_type", "llama, qwen2 or qwen3");
  HEXPORT_ASSIGN_OR_RETURN(config.tie_word_embeddings, fields.Bool("tie_word_embeddings", false));
  HEXPORT_ASSIGN_OR_RETURN(const bool attention_bias, fields.Bool("attention_bias", false));
  if (config.architecture == "llama") {
    config.attention_bias = config.attention_output_bias = attention_bias;
    HEXPORT_ASSIGN_OR_RETURN(config.mlp_bias, fields.Bool("mlp_bias", false));
  } else if (config.architecture == "qwen2") {
    config.attention_bias = true;  // fixed in its code; no field of config.json changes it
  } else if (config.architecture == "qwen3") {
    config.attention_bias = config.attention_output_bias = attention_bias;
    config.qk_norm = true;
  } else {
    return Unsupported(fields, "model_type", "llama, qwen2 or qwen3");
  }
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

Status CheckFloats(const ModelConfig& config, const std::string& where) {
  const auto check = [&](std::string_view field, double value, double above, double below) {
    if (value > above && value < below) return OkStatus();  // false for NaN
    return InvalidArgument(where + ": " + std::string(field) + ": expected between " +
                           std::to_string(above) + " and " + std::to_string(below) + ", got " +
                           std::to_string(value));
  };
  HEXPORT_RETURN_IF_ERROR(check("rms_norm_eps", config.rms_norm_eps, 0.0, 0.1));
  HEXPORT_RETURN_IF_ERROR(check("rope_theta", config.rope_theta, 1.0, 1e12));
  const RopeScaling& rope = config.rope_scaling;
  if (rope.type == RopeScaling::Type::kNone) return OkStatus();
  HEXPORT_RETURN_IF_ERROR(check("rope factor", rope.factor, 0.0, 1e6));
  if (rope.type == RopeScaling::Type::kLinear) return OkStatus();
  HEXPORT_RETURN_IF_ERROR(check("low_freq_factor", rope.low_freq_factor, 0.0, 1e6));
  return check("high_freq_factor", rope.high_freq_factor, rope.low_freq_factor, 1e6);
}

}  // namespace

Result<ModelConfig> ParseHfConfig(const std::string& config_json,
                                  const std::string& generation_config_json,
                                  const std::string& where) {
  HEXPORT_ASSIGN_OR_RETURN(const json parsed, ParseJsonObject(config_json, where));
  const JsonFields fields(parsed, where);
  ModelConfig config;
  HEXPORT_RETURN_IF_ERROR(ParseArchitecture(fields, config));
  HEXPORT_RETURN_IF_ERROR(RefuseOtherMaths(fields));
  HEXPORT_RETURN_IF_ERROR(ParseSizes(fields, config));
  HEXPORT_RETURN_IF_ERROR(ParseRope(fields, config));
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
           Range{"rope original_max_position_embeddings",
                 config.rope_scaling.original_max_position_embeddings, kMaxPositions},
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
  return CheckFloats(config, where);
}

}  // namespace hexport
