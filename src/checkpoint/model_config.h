// What a decoder-only model is, read from config.json or GGUF metadata alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/rope.h"
#include "base/status.h"

namespace hexport {

enum class HiddenAct { kSilu, kGeluTanh };  // kGeluTanh: GELU's tanh form, arXiv:1606.08415

// Field names are Hugging Face's. What each architecture sets: docs/architectures.md.
struct ModelConfig {
  std::string architecture;  // model_type: "llama", "mistral", "phi3", "gemma3_text", ...
  std::string name;          // for file names: folder name, or general.name / file stem of a GGUF
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;    // from the file when given, else as transformers derives it
  int64_t vocab_size = 0;  // rows of embed_tokens
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  RopeParameters rope;
  std::optional<RopeParameters> local_rope;  // of sliding layers, where they have one of their own
  std::vector<bool> no_rope_layers;          // true: that layer does not rotate (NoPE); empty: none
  int64_t sliding_window = 0;  // a token sees itself and sliding_window - 1 before it; 0: no window
  std::vector<bool> sliding_layers;  // "sliding_attention" of layer_types; empty: none
  bool tie_word_embeddings = false;
  bool attention_bias = false;         // q, k, v have biases
  bool attention_output_bias = false;  // o has one
  bool mlp_bias = false;
  bool qk_norm = false;            // RMSNorm per head on q and k before RoPE (Qwen3, Gemma 3)
  bool fused_projections = false;  // qkv_proj and gate_up_proj hold q, k, v and gate, up (Phi-3)
  // A second RMSNorm on what attention and MLP give, before it joins the residual stream (Gemma):
  // post_attention_layernorm and post_feedforward_layernorm, beside input_layernorm and
  // pre_feedforward_layernorm before them.
  bool branch_norms = false;
  double norm_offset = 0.0;            // added to every RMSNorm weight: 1 in Gemma
  double embedding_scale = 1.0;        // of embed_tokens' rows, not of a tied lm_head
  double query_pre_attn_scalar = 0.0;  // scores are divided by its root; 0: head_dim
  HiddenAct hidden_act = HiddenAct::kSilu;
  int64_t bos_token_id = -1;  // -1: none
  std::vector<int64_t>
      eos_token_ids;  // config.json, generation_config.json and the tokenizer's, merged
  // Fields of config.json that hexport does not know; none of them sounds like maths.
  std::vector<std::string> unknown_fields;

  bool IsSliding(int64_t layer) const {
    return !sliding_layers.empty() && sliding_layers[static_cast<size_t>(layer)];
  }
  bool UsesRope(int64_t layer) const {
    return no_rope_layers.empty() || !no_rope_layers[static_cast<size_t>(layer)];
  }
  // Whether some layer cannot see all of a text of this length.
  bool WindowIsShorterThan(int64_t context_length) const {
    if (sliding_window <= 0 || sliding_window >= context_length) return false;
    for (const bool sliding : sliding_layers) {
      if (sliding) return true;
    }
    return false;
  }
};

// Parses config.json (and generation_config.json, may be empty). `where` names the file in
// messages. Errors: kDataLoss for broken JSON, kInvalidArgument for a missing, mistyped or absurd
// field (named, with what was found), kUnimplemented for an architecture or a field that
// changes the maths in a way hexport does not do (docs/architectures.md).
Result<ModelConfig> ParseHfConfig(const std::string& config_json,
                                  const std::string& generation_config_json,
                                  const std::string& where);

// Checks that sizes are positive, within sane limits (see .cc), and fit together. kInvalidArgument
// names the field.
Status ValidateConfig(const ModelConfig& config, const std::string& where);

}  // namespace hexport
