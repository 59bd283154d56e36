#include "checkpoint/tensor_layout.h"

namespace hexport::checkpoint {
namespace {

void AddLinear(std::vector<ExpectedTensor>& out, const std::string& name, int64_t rows,
               int64_t columns, bool bias) {
  out.push_back({name + ".weight", {rows, columns}});
  if (bias) out.push_back({name + ".bias", {rows}});
}

void AddLayer(std::vector<ExpectedTensor>& out, const ModelConfig& config, int64_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const int64_t hidden = config.hidden_size;
  const int64_t query = config.num_attention_heads * config.head_dim;
  const int64_t key_value = config.num_key_value_heads * config.head_dim;
  out.push_back({prefix + "input_layernorm.weight", {hidden}});
  if (config.fused_projections) {
    AddLinear(out, attention + "qkv_proj", query + 2 * key_value, hidden, config.attention_bias);
  } else {
    AddLinear(out, attention + "q_proj", query, hidden, config.attention_bias);
    AddLinear(out, attention + "k_proj", key_value, hidden, config.attention_bias);
    AddLinear(out, attention + "v_proj", key_value, hidden, config.attention_bias);
  }
  if (config.qk_norm) {
    out.push_back({attention + "q_norm.weight", {config.head_dim}});
    out.push_back({attention + "k_norm.weight", {config.head_dim}});
  }
  AddLinear(out, attention + "o_proj", hidden, query, config.attention_output_bias);
  out.push_back({prefix + "post_attention_layernorm.weight", {hidden}});
  if (config.branch_norms) {
    out.push_back({prefix + "pre_feedforward_layernorm.weight", {hidden}});
    out.push_back({prefix + "post_feedforward_layernorm.weight", {hidden}});
  }
  if (config.fused_projections) {
    AddLinear(out, mlp + "gate_up_proj", 2 * config.intermediate_size, hidden, config.mlp_bias);
  } else {
    AddLinear(out, mlp + "gate_proj", config.intermediate_size, hidden, config.mlp_bias);
    AddLinear(out, mlp + "up_proj", config.intermediate_size, hidden, config.mlp_bias);
  }
  AddLinear(out, mlp + "down_proj", hidden, config.intermediate_size, config.mlp_bias);
}

}  // namespace

std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config) {
  std::vector<ExpectedTensor> out;
  out.push_back({"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) AddLayer(out, config, layer);
  out.push_back({"model.norm.weight", {config.hidden_size}});
  if (!config.tie_word_embeddings) {
    out.push_back({"lm_head.weight", {config.vocab_size, config.hidden_size}});
  }
  return out;
}

}  // namespace hexport::checkpoint
