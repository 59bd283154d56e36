#include "adapter/gguf_base.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/checkpoint.h"

namespace hexport::adapter {
namespace {

using nlohmann::ordered_json;

class GgufTensors final : public BaseTensors {
 public:
  GgufTensors(std::filesystem::path path, std::unique_ptr<Checkpoint> checkpoint,
              std::string config)
      : path_(std::move(path)), checkpoint_(std::move(checkpoint)), config_(std::move(config)) {
    for (const TensorInfo& info : checkpoint_->tensors()) {
      index_.emplace(info.name, tensors_.size());
      tensors_.push_back({info.name, info.shape, info.stored_dtype, "model.safetensors"});
      if (info.stored_dtype != "F32" && info.stored_dtype != "F16" && info.stored_dtype != "BF16") {
        dequantized_ = true;
      }
    }
  }

  const std::filesystem::path& path() const override { return path_; }
  const std::vector<BaseTensor>& tensors() const override { return tensors_; }
  const BaseTensor* Find(const std::string& name) const override {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &tensors_[found->second];
  }
  Status ReadRows(const std::string& name, int64_t first_row, std::span<float> out) const override;
  std::span<const std::byte> Bytes(const std::string&) const override { return {}; }
  void Release(const std::string&) const override {}
  const std::string& config_json() const override { return config_; }
  bool dequantized() const override { return dequantized_; }
  std::vector<std::string> warnings() const override {
    if (!dequantized_) return {};
    return {path_.string() +
            ": the base is quantized; its values were dequantized, which are not those that the "
            "adapter was trained on"};
  }

 private:
  std::filesystem::path path_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::string config_;
  std::vector<BaseTensor> tensors_;
  std::map<std::string, size_t> index_;
  bool dequantized_ = false;
};

Status GgufTensors::ReadRows(const std::string& name, int64_t first_row,
                             std::span<float> out) const {
  const BaseTensor* tensor = Find(name);
  if (tensor == nullptr) return NotFound(path_.string() + ": tensor " + name + ": not there");
  if (tensor->shape.size() == 2) return checkpoint_->ReadRows(name, first_row, out);
  // Vectors are small: read whole.
  const auto total = static_cast<size_t>(NumElements(tensor->shape));
  if (first_row < 0 || static_cast<size_t>(first_row) > total ||
      out.size() > total - static_cast<size_t>(first_row)) {
    return InvalidArgument(path_.string() + ": tensor " + name + ": expected values within " +
                           ShapeString(tensor->shape) + ", got " + std::to_string(out.size()) +
                           " from " + std::to_string(first_row));
  }
  std::vector<float> values(total);
  HEXPORT_RETURN_IF_ERROR(checkpoint_->Read(name, values));
  std::copy_n(values.begin() + first_row, out.size(), out.begin());
  return OkStatus();
}

// The class transformers builds; it reads nothing without it.
std::string ClassName(const std::string& architecture) {
  if (architecture == "llama") return "LlamaForCausalLM";
  if (architecture == "qwen2") return "Qwen2ForCausalLM";
  if (architecture == "qwen3") return "Qwen3ForCausalLM";
  return {};
}

}  // namespace

Result<std::string> HfConfigJson(const ModelConfig& config, const std::string& where) {
  const std::string class_name = ClassName(config.architecture);
  if (class_name.empty()) {
    return Unimplemented(where + ": writing a config.json: expected llama, qwen2 or qwen3, got " +
                         config.architecture + "; use the model's Hugging Face folder as the base");
  }
  if (config.architecture == "llama" && config.attention_bias != config.attention_output_bias) {
    return Unimplemented(where +
                         ": writing a config.json: expected biases on q, k, v and o or on "
                         "none, got them on some; use the model's Hugging Face folder");
  }
  ordered_json json = {
      {"architectures", {class_name}},
      {"model_type", config.architecture},
      {"hidden_act", "silu"},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_key_value_heads},
      {"head_dim", config.head_dim},
      {"vocab_size", config.vocab_size},
      {"max_position_embeddings", config.max_position_embeddings},
      {"rms_norm_eps", config.rms_norm_eps},
      {"rope_theta", config.rope.rope_theta},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"torch_dtype", "float16"},
  };
  const RopeScaling& rope = config.rope.scaling;
  if (rope.type == RopeScaling::Type::kLinear) {
    json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", rope.factor}};
  } else if (rope.type == RopeScaling::Type::kLlama3) {
    json["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", rope.factor},
        {"low_freq_factor", rope.low_freq_factor},
        {"high_freq_factor", rope.high_freq_factor},
        {"original_max_position_embeddings", rope.original_max_position_embeddings}};
  } else if (rope.type != RopeScaling::Type::kNone) {
    return Unimplemented(where +
                         ": writing a config.json: expected no RoPE scaling, linear or "
                         "llama3, got another; use the model's Hugging Face folder");
  }
  if (config.architecture != "qwen2") json["attention_bias"] = config.attention_output_bias;
  if (config.architecture == "llama") json["mlp_bias"] = config.mlp_bias;
  if (config.bos_token_id >= 0) json["bos_token_id"] = config.bos_token_id;
  if (config.eos_token_ids.size() == 1) json["eos_token_id"] = config.eos_token_ids[0];
  if (config.eos_token_ids.size() > 1) json["eos_token_id"] = config.eos_token_ids;
  return json.dump(2) + "\n";
}

Result<std::unique_ptr<BaseTensors>> OpenGgufBase(const std::filesystem::path& path,
                                                  const BaseOptions& options) {
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  HEXPORT_ASSIGN_OR_RETURN(std::string config, HfConfigJson(checkpoint->config(), path.string()));
  auto base = std::make_unique<GgufTensors>(path, std::move(checkpoint), std::move(config));
  if (base->dequantized() && !options.dequantize) {
    return Unimplemented(path.string() +
                         ": expected float weights, got a quantized GGUF; name the model as it was "
                         "before it was quantized, or ask for dequantized values");
  }
  return std::unique_ptr<BaseTensors>(std::move(base));
}

}  // namespace hexport::adapter
