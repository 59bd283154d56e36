#include "checkpoint/gguf_model.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

namespace hexport::checkpoint {
namespace {

using NamePair = std::pair<std::string_view, std::string_view>;

constexpr std::string_view kRopeFactors = "rope_freqs.weight";

constexpr std::array kModelNames{
    NamePair{"token_embd.weight", "model.embed_tokens.weight"},
    NamePair{"output_norm.weight", "model.norm.weight"},
    NamePair{"output.weight", "lm_head.weight"},
};

// Without ".weight" or ".bias".
constexpr std::array kLayerNames{
    NamePair{"attn_norm", "input_layernorm"},    NamePair{"attn_q", "self_attn.q_proj"},
    NamePair{"attn_k", "self_attn.k_proj"},      NamePair{"attn_v", "self_attn.v_proj"},
    NamePair{"attn_output", "self_attn.o_proj"}, NamePair{"attn_q_norm", "self_attn.q_norm"},
    NamePair{"attn_k_norm", "self_attn.k_norm"}, NamePair{"ffn_norm", "post_attention_layernorm"},
    NamePair{"ffn_gate", "mlp.gate_proj"},       NamePair{"ffn_up", "mlp.up_proj"},
    NamePair{"ffn_down", "mlp.down_proj"},
};

// Keys below "<architecture>." that change the maths when they have another value.
struct Neutral {
  std::string_view key;
  double value;
};
constexpr std::array kNeutralKeys{
    Neutral{"expert_count", 0},
    Neutral{"attention.sliding_window", 0},
    Neutral{"logit_scale", 1},
    Neutral{"embedding_scale", 1},
    Neutral{"residual_scale", 1},
    Neutral{"attn_logit_softcapping", 0},
    Neutral{"final_logit_softcapping", 0},
};

const GgufTensor* FindTensor(const GgufContents& contents, std::string_view name) {
  for (const GgufTensor& tensor : contents.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

// Keys are "<architecture>.<suffix>".
class ArchitectureKeys {
 public:
  ArchitectureKeys(const GgufMetadata& metadata, std::string_view architecture)
      : metadata_(metadata), prefix_(std::string(architecture) + ".") {}
  std::string Key(std::string_view suffix) const { return prefix_ + std::string(suffix); }
  bool Has(std::string_view suffix) const { return metadata_.Find(Key(suffix)) != nullptr; }
  Result<int64_t> Int(std::string_view suffix) const { return metadata_.Int(Key(suffix)); }
  Result<int64_t> Int(std::string_view suffix, int64_t otherwise) const {
    return metadata_.Int(Key(suffix), otherwise);
  }
  Result<double> Number(std::string_view suffix) const { return metadata_.Number(Key(suffix)); }
  Result<double> Number(std::string_view suffix, double otherwise) const {
    return metadata_.Number(Key(suffix), otherwise);
  }
  const GgufMetadata& metadata() const { return metadata_; }
  std::string Where(std::string_view suffix) const {
    return metadata_.where() + ": " + Key(suffix);
  }

 private:
  const GgufMetadata& metadata_;
  std::string prefix_;
};

Status RefuseOtherMaths(const ArchitectureKeys& keys) {
  for (const Neutral& neutral : kNeutralKeys) {
    HEXPORT_ASSIGN_OR_RETURN(const double value, keys.Number(neutral.key, neutral.value));
    if (value != neutral.value) {
      return Unimplemented(keys.Where(neutral.key) + ": expected " + std::to_string(neutral.value) +
                           " or nothing, got " + std::to_string(value));
    }
  }
  HEXPORT_ASSIGN_OR_RETURN(const bool causal,
                           keys.metadata().Bool(keys.Key("attention.causal"), true));
  if (!causal) return Unimplemented(keys.Where("attention.causal") + ": expected true, got false");
  HEXPORT_ASSIGN_OR_RETURN(const int64_t parts, keys.metadata().Int("split.count", 1));
  if (parts > 1) {
    return Unimplemented(keys.metadata().where() + ": split.count: expected one file, got " +
                         std::to_string(parts) + "; merge them with llama-gguf-split --merge");
  }
  return OkStatus();
}

Status ReadSizes(const ArchitectureKeys& keys, ModelConfig& config) {
  HEXPORT_ASSIGN_OR_RETURN(config.hidden_size, keys.Int("embedding_length"));
  HEXPORT_ASSIGN_OR_RETURN(config.intermediate_size, keys.Int("feed_forward_length"));
  HEXPORT_ASSIGN_OR_RETURN(config.num_hidden_layers, keys.Int("block_count"));
  HEXPORT_ASSIGN_OR_RETURN(config.num_attention_heads, keys.Int("attention.head_count"));
  HEXPORT_ASSIGN_OR_RETURN(config.num_key_value_heads,
                           keys.Int("attention.head_count_kv", config.num_attention_heads));
  HEXPORT_ASSIGN_OR_RETURN(config.max_position_embeddings, keys.Int("context_length"));
  HEXPORT_ASSIGN_OR_RETURN(config.rms_norm_eps, keys.Number("attention.layer_norm_rms_epsilon"));
  const bool divides =
      config.num_attention_heads > 0 && config.hidden_size % config.num_attention_heads == 0;
  if (!divides && !keys.Has("attention.key_length")) {
    return InvalidArgument(keys.Where("attention.head_count") + ": expected a divisor of " +
                           std::to_string(config.hidden_size) + ", got " +
                           std::to_string(config.num_attention_heads));
  }
  const int64_t otherwise = divides ? config.hidden_size / config.num_attention_heads : 0;
  HEXPORT_ASSIGN_OR_RETURN(config.head_dim, keys.Int("attention.key_length", otherwise));
  for (const char* suffix : {"attention.value_length", "rope.dimension_count"}) {
    HEXPORT_ASSIGN_OR_RETURN(const int64_t value, keys.Int(suffix, config.head_dim));
    if (value != config.head_dim) {
      return Unimplemented(keys.Where(suffix) + ": expected head_dim " +
                           std::to_string(config.head_dim) + ", got " + std::to_string(value));
    }
  }
  return OkStatus();
}

Status ReadRope(const ArchitectureKeys& keys, ModelConfig& config) {
  HEXPORT_ASSIGN_OR_RETURN(config.rope_theta, keys.Number("rope.freq_base", 10000.0));
  HEXPORT_ASSIGN_OR_RETURN(const std::string_view type,
                           keys.metadata().String(keys.Key("rope.scaling.type"), "none"));
  if (type != "none" && type != "linear") {
    return Unimplemented(keys.Where("rope.scaling.type") + ": expected none or linear, got " +
                         std::string(type));
  }
  HEXPORT_ASSIGN_OR_RETURN(const double old_factor, keys.Number("rope.scale_linear", 1.0));
  HEXPORT_ASSIGN_OR_RETURN(const double factor, keys.Number("rope.scaling.factor", old_factor));
  const bool linear = type == "linear" || !keys.Has("rope.scaling.type");
  if (linear && factor != 1.0 && factor != 0.0) {
    config.rope_scaling.type = RopeScaling::Type::kLinear;
    config.rope_scaling.factor = factor;
  }
  return OkStatus();
}

Status ReadRopeFactors(const GgufContents& contents, std::span<const std::byte> file,
                       const std::string& where, ModelConfig& config) {
  const GgufTensor* tensor = FindTensor(contents, kRopeFactors);
  if (tensor == nullptr) return OkStatus();
  const std::string here = where + ": " + std::string(kRopeFactors);
  if (tensor->shape != Shape{config.head_dim / 2}) {
    return DataLoss(here + ": expected " + ShapeString({config.head_dim / 2}) + ", got " +
                    ShapeString(tensor->shape));
  }
  std::vector<float> factors(static_cast<size_t>(config.head_dim / 2));
  HEXPORT_RETURN_IF_ERROR(
      Widen(*tensor->format, file.subspan(tensor->offset, tensor->bytes), factors)
          .WithContext(here));
  HEXPORT_ASSIGN_OR_RETURN(const RopeScaling scaling,
                           RopeScalingFromFactors(factors, config.rope_theta, here));
  if (scaling.type == RopeScaling::Type::kNone) return OkStatus();
  if (config.rope_scaling.type != RopeScaling::Type::kNone) {
    return Unimplemented(here + ": expected no other RoPE scaling beside it");
  }
  config.rope_scaling = scaling;
  return OkStatus();
}

Status ReadTokens(const GgufMetadata& metadata, ModelConfig& config) {
  HEXPORT_ASSIGN_OR_RETURN(config.bos_token_id, metadata.Int("tokenizer.ggml.bos_token_id", -1));
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    if (metadata.Find(key) == nullptr) continue;
    HEXPORT_ASSIGN_OR_RETURN(const int64_t id, metadata.Int(key));
    std::vector<int64_t>& ids = config.eos_token_ids;
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return OkStatus();
}

// What only the tensor table tells: vocabulary, tied embeddings, biases.
Status ReadTensorTable(const GgufContents& contents, const std::string& where,
                       ModelConfig& config) {
  const GgufTensor* embedding = FindTensor(contents, "token_embd.weight");
  if (embedding == nullptr) return NotFound(where + ": tensor token_embd.weight: not in the file");
  if (embedding->shape.size() != 2) {
    return DataLoss(where + ": token_embd.weight: expected two dimensions, got " +
                    ShapeString(embedding->shape));
  }
  config.vocab_size = embedding->shape[0];
  config.tie_word_embeddings = FindTensor(contents, "output.weight") == nullptr;
  config.attention_bias = FindTensor(contents, "blk.0.attn_q.bias") != nullptr;
  config.attention_output_bias = FindTensor(contents, "blk.0.attn_output.bias") != nullptr;
  config.mlp_bias = FindTensor(contents, "blk.0.ffn_down.bias") != nullptr;
  config.qk_norm = config.architecture == "qwen3";
  for (const GgufTensor& tensor : contents.tensors) {
    if (tensor.name != kRopeFactors && !HfTensorName(tensor.name).has_value()) {
      return Unimplemented(where + ": tensor " + std::string(tensor.name) + ": not part of " +
                           config.architecture + " as hexport knows it");
    }
  }
  return OkStatus();
}

}  // namespace

std::optional<std::string> HfTensorName(std::string_view gguf_name) {
  for (const auto& [gguf, hf] : kModelNames) {
    if (gguf_name == gguf) return std::string(hf);
  }
  constexpr std::string_view kPrefix = "blk.";
  if (!gguf_name.starts_with(kPrefix)) return std::nullopt;
  gguf_name.remove_prefix(kPrefix.size());
  const size_t dot = gguf_name.find('.');
  const size_t last_dot = gguf_name.rfind('.');
  if (dot == std::string_view::npos || last_dot <= dot) return std::nullopt;
  uint32_t layer = 0;
  const auto [end, error] = std::from_chars(gguf_name.data(), gguf_name.data() + dot, layer);
  if (error != std::errc() || end != gguf_name.data() + dot) return std::nullopt;
  const std::string_view part = gguf_name.substr(dot + 1, last_dot - dot - 1);
  const std::string_view kind = gguf_name.substr(last_dot);
  if (kind != ".weight" && kind != ".bias") return std::nullopt;
  for (const auto& [gguf, hf] : kLayerNames) {
    if (part == gguf) {
      return "model.layers." + std::to_string(layer) + "." + std::string(hf) + std::string(kind);
    }
  }
  return std::nullopt;
}

Result<RopeScaling> RopeScalingFromFactors(std::span<const float> factors, double rope_theta,
                                           const std::string& where) {
  constexpr double kTolerance = 1e-3;
  RopeScaling scaling;
  double largest = 1.0;
  for (const float factor : factors) largest = std::max(largest, static_cast<double>(factor));
  if (largest > 1.0) {
    scaling.type = RopeScaling::Type::kLlama3;
    scaling.factor = largest;
  }
  // The factors of this scaling, by transformers' formula for rope type "llama3".
  const auto length = static_cast<double>(scaling.original_max_position_embeddings);
  const double dimensions = 2.0 * static_cast<double>(factors.size());
  for (size_t i = 0; i < factors.size(); ++i) {
    const double frequency = std::pow(rope_theta, -2.0 * static_cast<double>(i) / dimensions);
    const double turns = length * frequency / (2.0 * std::numbers::pi);
    const double smooth = std::clamp(
        (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor),
        0.0, 1.0);
    const double expected = 1.0 / ((1.0 - smooth) / scaling.factor + smooth);
    const auto got = static_cast<double>(factors[i]);
    if (!(std::abs(got - expected) <= kTolerance * expected)) {
      return Unimplemented(where + ": expected the factors of Llama 3 scaling (factor " +
                           std::to_string(scaling.factor) + "): " + std::to_string(expected) +
                           " at " + std::to_string(i) + ", got " + std::to_string(got));
    }
  }
  return scaling;
}

Result<ModelConfig> GgufModelConfig(const GgufContents& contents, std::span<const std::byte> file,
                                    const std::string& where) {
  const GgufMetadata metadata(contents, where);
  HEXPORT_ASSIGN_OR_RETURN(const std::string_view type, metadata.String("general.type", "model"));
  if (type != "model") {
    return InvalidArgument(where + ": general.type: expected model, got " + std::string(type));
  }
  ModelConfig config;
  HEXPORT_ASSIGN_OR_RETURN(const std::string_view architecture,
                           metadata.String("general.architecture"));
  HEXPORT_ASSIGN_OR_RETURN(const std::string_view name, metadata.String("general.name", ""));
  config.architecture = architecture;
  config.name = name;
  if (architecture != "llama" && architecture != "qwen2" && architecture != "qwen3") {
    return Unimplemented(where + ": general.architecture: expected llama, qwen2 or qwen3, got " +
                         config.architecture);
  }
  const ArchitectureKeys keys(metadata, architecture);
  HEXPORT_RETURN_IF_ERROR(RefuseOtherMaths(keys));
  HEXPORT_RETURN_IF_ERROR(ReadSizes(keys, config));
  HEXPORT_RETURN_IF_ERROR(ReadRope(keys, config));
  HEXPORT_RETURN_IF_ERROR(ReadTokens(metadata, config));
  HEXPORT_RETURN_IF_ERROR(ReadTensorTable(contents, where, config));
  HEXPORT_RETURN_IF_ERROR(ValidateConfig(config, where));
  HEXPORT_RETURN_IF_ERROR(ReadRopeFactors(contents, file, where, config));
  return config;
}

}  // namespace hexport::checkpoint
