// What a decoder-only model is, read from config.json or GGUF metadata alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace hexport {

// RoPE scaling. kLlama3: factor, low/high_freq_factor, original_max_position_embeddings
// (Llama 3.1). kLinear: positions divided by factor.
struct RopeScaling {
  enum class Type { kNone, kLinear, kLlama3 };
  Type type = Type::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
};

// Field names are Hugging Face's.
struct ModelConfig {
  std::string architecture;  // "llama", "qwen2", "qwen3"
  std::string name;          // for file names: folder name, or general.name / file stem of a GGUF
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;    // from the file when given, else hidden_size / num_attention_heads
  int64_t vocab_size = 0;  // rows of embed_tokens
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  bool attention_bias = false;         // q, k, v have biases
  bool attention_output_bias = false;  // o has one
  bool mlp_bias = false;
  bool qk_norm = false;       // RMSNorm per head on q and k before RoPE (Qwen3)
  int64_t bos_token_id = -1;  // -1: none
  std::vector<int64_t>
      eos_token_ids;  // config.json, generation_config.json and the tokenizer's, merged
};

// Parses config.json (and generation_config.json, may be empty). `where` names the file in
// messages. Errors: kDataLoss for broken JSON, kInvalidArgument for a missing, mistyped or absurd
// field (named, with what was found), kUnimplemented for an architecture, activation, rope type or
// window hexport does not do.
Result<ModelConfig> ParseHfConfig(const std::string& config_json,
                                  const std::string& generation_config_json,
                                  const std::string& where);

// Checks that sizes are positive, within sane limits (see .cc), and fit together. kInvalidArgument
// names the field.
Status ValidateConfig(const ModelConfig& config, const std::string& where);

}  // namespace hexport
