// Biases that an adapter brings to layers which have none in the base.
#include <array>
#include <string_view>
#include <utility>

#include "adapter/matcher.h"

namespace hexport::adapter {
namespace {

// A field of config.json that turns on the biases of several layers at once.
struct BiasField {
  std::string_view field, block;  // block: the module that holds the layers
  std::vector<std::string_view> layers;
  std::vector<std::string_view> model_types;
};

const std::array<BiasField, 2>& BiasFields() {
  static const std::array<BiasField, 2> fields{
      BiasField{"attention_bias",
                ".self_attn.",
                {"q_proj", "k_proj", "v_proj", "o_proj"},
                {"llama", "qwen3", "smollm3", "gemma3_text"}},
      BiasField{"mlp_bias", ".mlp.", {"gate_proj", "up_proj", "down_proj"}, {"llama", "smollm3"}}};
  return fields;
}

constexpr std::string_view kWeight = ".weight", kBias = ".bias";

// nullptr: no field of this model type gives the module `path` a bias.
const BiasField* FieldFor(std::string_view path, std::string_view model_type) {
  for (const BiasField& field : BiasFields()) {
    const auto has_type = [&] {
      for (const std::string_view type : field.model_types) {
        if (type == model_type) return true;
      }
      return false;
    };
    if (!has_type()) continue;
    for (const std::string_view layer : field.layers) {
      if (path.ends_with(std::string(field.block) + std::string(layer))) return &field;
    }
  }
  return nullptr;
}

}  // namespace

Status Matcher::SettleNewBiases() {
  const checkpoint::JsonFields fields(config_, base_.path().string() + ": config.json");
  HEXPORT_ASSIGN_OR_RETURN(const std::string model_type, fields.String("model_type", ""));
  std::map<std::string_view, const BiasField*> needed;
  for (auto it = targets_.begin(); it != targets_.end();) {
    const auto& [name, target] = *it;
    const bool is_new = name.ends_with(kBias) && base_.Find(name) == nullptr;
    if (is_new && target.change.empty()) {
      it = targets_.erase(it);
      continue;
    }
    if (is_new) {
      const std::string_view path = std::string_view(name).substr(0, name.size() - kBias.size());
      const BiasField* field = FieldFor(path, model_type);
      if (field == nullptr) {
        return Unimplemented("tensor " + name + ": the adapter adds a bias, and " +
                             (model_type.empty() ? "this architecture" : model_type) +
                             " has no field in config.json that gives this layer one");
      }
      needed.emplace(field->field, field);
    }
    ++it;
  }
  // The field gives every layer of its kind a bias: those that were not trained are zero.
  for (const auto& [name, field] : needed) {
    for (const BaseTensor& tensor : base_.tensors()) {
      if (!tensor.name.ends_with(kWeight)) continue;
      const std::string path = tensor.name.substr(0, tensor.name.size() - kWeight.size());
      if (FieldFor(path, model_type) != field) continue;
      const std::string bias = path + std::string(kBias);
      if (base_.Find(bias) == nullptr) (void)FindTarget(bias);
    }
    matched_->bias_fields_.emplace_back(name);
    Warn("the adapter adds biases to layers that have none in the base: " + std::string(name) +
         " becomes true, and biases that were not trained are zero");
  }
  return OkStatus();
}

}  // namespace hexport::adapter
