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
constexpr std::string_view kShortFactors = "rope_factors_short.weight";
constexpr std::string_view kLongFactors = "rope_factors_long.weight";
// What llama.cpp has in code where the file has no key.
constexpr int64_t kSmolLm3NoRopeInterval = 4;
constexpr int64_t kGemma3WindowPattern = 6;
constexpr double kGemma3LocalTheta = 10000.0;
// Gemma 3 27B divides the scores by another number than its head_dim's root, which the file lacks.
constexpr int64_t kGemma3LayersOf27B = 62;

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

// Names that mean something else than above, or exist, in one architecture alone.
struct OwnName {
  std::string_view architecture, gguf, hf;
};
constexpr std::array<OwnName, 5> kOwnNames = {{
    {"phi3", "attn_qkv", "self_attn.qkv_proj"},
    {"phi3", "ffn_up", "mlp.gate_up_proj"},
    {"gemma3_text", "post_attention_norm", "post_attention_layernorm"},
    {"gemma3_text", "ffn_norm", "pre_feedforward_layernorm"},
    {"gemma3_text", "post_ffw_norm", "post_feedforward_layernorm"},
}};

struct GgufArchitecture {
  std::string_view gguf, model_type;
};
// Mistral's files say "llama".
constexpr std::array<GgufArchitecture, 6> kGgufArchitectures = {{{"llama", "llama"},
                                                                 {"qwen2", "qwen2"},
                                                                 {"qwen3", "qwen3"},
                                                                 {"phi3", "phi3"},
                                                                 {"smollm3", "smollm3"},
                                                                 {"gemma3", "gemma3_text"}}};

// Keys below "<architecture>." that change the maths when they have another value.
struct Neutral {
  std::string_view key;
  double value;
};
constexpr std::array kNeutralKeys{
    Neutral{"expert_count", 0},
    Neutral{"attention.scale", 0},
    Neutral{"rope.scaling.yarn_log_multiplier", 0},
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
  HEXPORT_ASSIGN_OR_RETURN(config.rope.rotary_dim,
                           keys.Int("rope.dimension_count", config.head_dim));
  HEXPORT_ASSIGN_OR_RETURN(const int64_t value_length,
                           keys.Int("attention.value_length", config.head_dim));
  const auto check = [&](const char* suffix, int64_t value) {
    if (value == config.head_dim) return OkStatus();
    return Unimplemented(keys.Where(suffix) + ": expected head_dim " +
                         std::to_string(config.head_dim) + ", got " + std::to_string(value));
  };
  if (config.architecture != "phi3")
    HEXPORT_RETURN_IF_ERROR(check("rope.dimension_count", config.rope.rotary_dim));
  return check("attention.value_length", value_length);
}

Status ReadRope(const ArchitectureKeys& keys, ModelConfig& config) {
  const double usual = config.architecture == "gemma3_text" ? 1000000.0 : 10000.0;
  HEXPORT_ASSIGN_OR_RETURN(config.rope.rope_theta, keys.Number("rope.freq_base", usual));
  HEXPORT_ASSIGN_OR_RETURN(const std::string_view type,
                           keys.metadata().String(keys.Key("rope.scaling.type"), "none"));
  if (type != "none" && type != "linear" && !(type == "longrope" && config.fused_projections)) {
    return Unimplemented(keys.Where("rope.scaling.type") + ": expected none or linear, got " +
                         std::string(type));
  }
  HEXPORT_ASSIGN_OR_RETURN(const double old_factor, keys.Number("rope.scale_linear", 1.0));
  HEXPORT_ASSIGN_OR_RETURN(const double factor, keys.Number("rope.scaling.factor", old_factor));
  const bool linear = type == "linear" || !keys.Has("rope.scaling.type");
  if (linear && factor != 1.0 && factor != 0.0) {
    config.rope.scaling.type = RopeScaling::Type::kLinear;
    config.rope.scaling.factor = factor;
  }
  HEXPORT_ASSIGN_OR_RETURN(const double attention_factor,
                           keys.Number("rope.scaling.attn_factor", 1.0));
  if (!config.fused_projections && attention_factor != 1.0) {
    return Unimplemented(keys.Where("rope.scaling.attn_factor") + ": expected 1 or nothing, got " +
                         std::to_string(attention_factor));
  }
  if (config.architecture != "gemma3_text") return OkStatus();
  RopeParameters local{kGemma3LocalTheta, config.rope.rotary_dim, {}};
  HEXPORT_ASSIGN_OR_RETURN(local.rope_theta, keys.Number("rope.freq_base_swa", local.rope_theta));
  config.local_rope = local;
  return OkStatus();
}

// Values of a vector of head_dim / 2 (or rotary_dim / 2) factors; empty when the tensor is absent.
Result<std::vector<float>> ReadFactors(const GgufContents& contents,
                                       std::span<const std::byte> file, std::string_view name,
                                       const std::string& where, int64_t pairs) {
  const GgufTensor* tensor = FindTensor(contents, name);
  if (tensor == nullptr) return std::vector<float>();
  if (tensor->shape != Shape{pairs}) {
    return DataLoss(where + ": " + std::string(name) + ": expected " + ShapeString({pairs}) +
                    ", got " + ShapeString(tensor->shape));
  }
  std::vector<float> factors(static_cast<size_t>(pairs));
  HEXPORT_RETURN_IF_ERROR(
      Widen(*tensor->format, file.subspan(tensor->offset, tensor->bytes), factors)
          .WithContext(where + ": " + std::string(name)));
  return factors;
}

// Phi-3's: both sets or none; the factor of cosines and sines stands in the metadata.
Status ReadLongropeFactors(const GgufContents& contents, std::span<const std::byte> file,
                           const ArchitectureKeys& keys, const std::string& where,
                           ModelConfig& config) {
  const int64_t pairs = config.rope.rotary_dim / 2;
  HEXPORT_ASSIGN_OR_RETURN(const std::vector<float> few,
                           ReadFactors(contents, file, kShortFactors, where, pairs));
  HEXPORT_ASSIGN_OR_RETURN(const std::vector<float> many,
                           ReadFactors(contents, file, kLongFactors, where, pairs));
  if (few.empty() && many.empty()) return OkStatus();
  if (few.empty() || many.empty()) {
    return NotFound(where + ": expected both " + std::string(kShortFactors) + " and " +
                    std::string(kLongFactors) + ", got one");
  }
  RopeScaling& scaling = config.rope.scaling;
  scaling.type = RopeScaling::Type::kLongrope;
  scaling.short_factor.assign(few.begin(), few.end());
  scaling.long_factor.assign(many.begin(), many.end());
  HEXPORT_ASSIGN_OR_RETURN(scaling.original_max_position_embeddings,
                           keys.Int("rope.scaling.original_context_length"));
  HEXPORT_ASSIGN_OR_RETURN(scaling.attention_factor, keys.Number("rope.scaling.attn_factor"));
  return OkStatus();
}

Status ReadRopeFactors(const GgufContents& contents, std::span<const std::byte> file,
                       const ArchitectureKeys& keys, const std::string& where,
                       ModelConfig& config) {
  if (config.architecture == "phi3")
    return ReadLongropeFactors(contents, file, keys, where, config);
  const std::string here = where + ": " + std::string(kRopeFactors);
  HEXPORT_ASSIGN_OR_RETURN(
      const std::vector<float> factors,
      ReadFactors(contents, file, kRopeFactors, where, config.rope.rotary_dim / 2));
  if (factors.empty()) return OkStatus();
  HEXPORT_ASSIGN_OR_RETURN(const RopeScaling scaling,
                           RopeScalingFromFactors(factors, config.rope.rope_theta, here));
  if (scaling.type == RopeScaling::Type::kNone) return OkStatus();
  if (config.rope.scaling.type != RopeScaling::Type::kNone) {
    return Unimplemented(here + ": expected no other RoPE scaling beside it");
  }
  config.rope.scaling = scaling;
  return OkStatus();
}

// What the architecture's code has fixed.
void SetParts(ModelConfig& config) {
  const bool gemma = config.architecture == "gemma3_text";
  config.qk_norm = config.architecture == "qwen3" || gemma;
  config.fused_projections = config.architecture == "phi3";
  config.branch_norms = gemma;
  if (!gemma) return;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  config.hidden_act = HiddenAct::kGeluTanh;
}

// Windows and layers without RoPE.
Status ReadLayers(const ArchitectureKeys& keys, ModelConfig& config) {
  const bool gemma = config.architecture == "gemma3_text";
  HEXPORT_ASSIGN_OR_RETURN(config.sliding_window, keys.Int("attention.sliding_window", 0));
  HEXPORT_ASSIGN_OR_RETURN(const int64_t pattern, keys.Int("attention.sliding_window_pattern",
                                                           gemma ? kGemma3WindowPattern : 0));
  if (config.sliding_window != 0 && !gemma && config.architecture != "phi3") {
    return Unimplemented(keys.Where("attention.sliding_window") + ": expected 0 or nothing for " +
                         config.architecture + ", got " + std::to_string(config.sliding_window));
  }
  if (gemma && config.num_hidden_layers == kGemma3LayersOf27B) {
    return Unimplemented(keys.Where("block_count") +
                         ": Gemma 3 27B: its query_pre_attn_scalar is not in a GGUF file; use the "
                         "Hugging Face folder");
  }
  if (gemma && (pattern < 1 || config.sliding_window < 1)) {
    return Unimplemented(keys.Where("attention.sliding_window") +
                         ": expected a window and a pattern of at least 1, got " +
                         std::to_string(config.sliding_window) + " and " + std::to_string(pattern));
  }
  if (!gemma && pattern != 0) {
    return Unimplemented(keys.Where("attention.sliding_window_pattern") +
                         ": expected nothing, got " + std::to_string(pattern));
  }
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (gemma) config.sliding_layers.push_back((layer + 1) % pattern != 0);
    if (config.architecture == "phi3" && config.sliding_window > 0)
      config.sliding_layers.push_back(true);
    if (config.architecture == "smollm3")
      config.no_rope_layers.push_back((layer + 1) % kSmolLm3NoRopeInterval == 0);
  }
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
  for (const GgufTensor& tensor : contents.tensors) {
    if (tensor.name == kRopeFactors && config.architecture != "phi3") continue;
    const bool longrope = tensor.name == kShortFactors || tensor.name == kLongFactors;
    if (longrope && config.architecture == "phi3") continue;
    if (!HfTensorName(tensor.name, config.architecture).has_value()) {
      return Unimplemented(where + ": tensor " + std::string(tensor.name) + ": not part of " +
                           config.architecture + " as hexport knows it");
    }
  }
  return OkStatus();
}

}  // namespace

bool InterleavesQueryAndKey(std::string_view architecture) {
  return architecture == "llama" || architecture == "smollm3";
}

std::optional<std::string> HfTensorName(std::string_view gguf_name, std::string_view architecture) {
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
  const auto hf_name = [&](std::string_view hf) {
    return "model.layers." + std::to_string(layer) + "." + std::string(hf) + std::string(kind);
  };
  for (const OwnName& own : kOwnNames) {
    if (own.architecture == architecture && own.gguf == part) return hf_name(own.hf);
  }
  for (const auto& [gguf, hf] : kLayerNames) {
    if (part == gguf) return hf_name(hf);
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
  config.name = name;
  for (const GgufArchitecture& known : kGgufArchitectures) {
    if (known.gguf == architecture) config.architecture = known.model_type;
  }
  if (config.architecture.empty()) {
    return Unimplemented(
        where +
        ": general.architecture: expected llama, qwen2, qwen3, phi3, smollm3 or gemma3, got " +
        std::string(architecture));
  }
  const ArchitectureKeys keys(metadata, architecture);
  HEXPORT_RETURN_IF_ERROR(RefuseOtherMaths(keys));
  HEXPORT_RETURN_IF_ERROR(ReadSizes(keys, config));
  SetParts(config);
  HEXPORT_RETURN_IF_ERROR(ReadRope(keys, config));
  HEXPORT_RETURN_IF_ERROR(ReadTokens(metadata, config));
  HEXPORT_RETURN_IF_ERROR(ReadTensorTable(contents, where, config));
  HEXPORT_RETURN_IF_ERROR(ValidateConfig(config, where));
  HEXPORT_RETURN_IF_ERROR(ReadLayers(keys, config));
  HEXPORT_RETURN_IF_ERROR(ReadRopeFactors(contents, file, keys, where, config));
  HEXPORT_RETURN_IF_ERROR(ValidateConfig(config, where));
  return config;
}

}  // namespace hexport::checkpoint
