// A checkpoint without a file: tensors of a small model with known values; tests only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace hexport::decoder {

// Two layers, 4 heads over 2 key/value heads. Element i of every tensor is i.
class FakeCheckpoint : public Checkpoint {
 public:
  explicit FakeCheckpoint(bool qk_norm = false) {
    config_.architecture = qk_norm ? "qwen3" : "qwen2";
    config_.hidden_size = 8;
    config_.intermediate_size = 12;
    config_.num_hidden_layers = 2;
    config_.num_attention_heads = 4;
    config_.num_key_value_heads = 2;
    config_.head_dim = config_.rope.rotary_dim = 4;
    config_.vocab_size = 10;
    config_.attention_bias = !qk_norm;
    config_.qk_norm = qk_norm;
    config_.tie_word_embeddings = true;
    Add("model.embed_tokens.weight", {10, 8});
    Add("model.norm.weight", {8});
    for (const char* layer : {"model.layers.0.", "model.layers.1."}) AddLayer(layer);
  }

  ModelConfig& mutable_config() { return config_; }
  void Add(const std::string& name, Shape shape) {
    infos_.push_back({name, std::move(shape), "F32"});
  }
  void Remove(const std::string& name) {
    std::erase_if(infos_, [&](const TensorInfo& info) { return info.name == name; });
  }

  const ModelConfig& config() const override { return config_; }
  const std::vector<TensorInfo>& tensors() const override { return infos_; }
  const TensorInfo* Find(const std::string& name) const override {
    const auto found = std::find_if(infos_.begin(), infos_.end(),
                                    [&](const TensorInfo& info) { return info.name == name; });
    return found == infos_.end() ? nullptr : &*found;
  }
  Status Read(const std::string& name, std::span<float> out) const override {
    return ReadRows(name, 0, out);
  }
  Status ReadRows(const std::string& name, int64_t first_row, std::span<float> out) const override {
    const TensorInfo* info = Find(name);
    if (info == nullptr) return NotFound(name);
    const int64_t columns = info->shape.size() > 1 ? info->shape[1] : 1;
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<float>(first_row * columns + static_cast<int64_t>(i));
    }
    return OkStatus();
  }
  Result<TextAssets> Text() const override { return NotFound("no tokenizer"); }
  std::vector<std::filesystem::path> Files() const override { return {}; }

 private:
  void AddLayer(const std::string& layer) {
    const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
    Add(layer + "input_layernorm.weight", {8});
    Add(layer + "post_attention_layernorm.weight", {8});
    Add(attention + "q_proj.weight", {16, 8});
    Add(attention + "k_proj.weight", {8, 8});
    Add(attention + "v_proj.weight", {8, 8});
    Add(attention + "o_proj.weight", {8, 16});
    Add(attention + "q_proj.bias", {16});
    Add(attention + "k_proj.bias", {8});
    Add(attention + "v_proj.bias", {8});
    Add(attention + "q_norm.weight", {4});
    Add(attention + "k_norm.weight", {4});
    Add(mlp + "gate_proj.weight", {12, 8});
    Add(mlp + "up_proj.weight", {12, 8});
    Add(mlp + "down_proj.weight", {8, 12});
  }

  ModelConfig config_;
  std::vector<TensorInfo> infos_;
};

}  // namespace hexport::decoder
