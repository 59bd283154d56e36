// Tiny Hugging Face folders and adapters, made in memory; tests only. The weights come from a
// linear congruential generator, so that they are the same on every machine.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/status_matchers.h"
#include "base/test_directory.h"
#include "checkpoint/safetensors.h"

namespace hexport::testing {

// x0 = seed; x = (1103515245 x + 12345) mod 2^31; w = (x / 2^31 - 0.5) * 0.2.
class Lcg {
 public:
  explicit Lcg(uint32_t seed = 12345) : x_(seed) {}
  float Next() {
    x_ = (uint64_t{1103515245} * x_ + 12345) % (uint64_t{1} << 31);
    return static_cast<float>((static_cast<double>(x_) / 2147483648.0 - 0.5) * 0.2);
  }

 private:
  uint64_t x_;
};

struct TinyTensor {
  Shape shape;
  std::vector<float> values;
  std::string dtype = "F32";  // F32, F16 or BF16: how it is stored
};
using TinyTensors = std::map<std::string, TinyTensor>;

struct TinyModel {
  nlohmann::json config;
  TinyTensors tensors;  // values by the generator in the order of names
};

inline void Fill(TinyTensors& tensors, uint32_t seed = 12345) {
  Lcg lcg(seed);
  for (auto& [name, tensor] : tensors) {
    tensor.values.resize(static_cast<size_t>(NumElements(tensor.shape)));
    for (float& value : tensor.values) value = lcg.Next();
  }
}

struct TinySizes {
  std::string model_type = "llama";
  int64_t vocab = 64, hidden = 32, intermediate = 64, layers = 2, heads = 4, kv_heads = 2;
  int64_t head_dim = 8;
  bool qkv_bias = false, o_bias = false, mlp_bias = false, qk_norm = false, tied = false;
};

inline TinyModel MakeModel(const TinySizes& sizes) {
  TinyModel model;
  model.config = {{"model_type", sizes.model_type},
                  {"hidden_size", sizes.hidden},
                  {"intermediate_size", sizes.intermediate},
                  {"num_hidden_layers", sizes.layers},
                  {"num_attention_heads", sizes.heads},
                  {"num_key_value_heads", sizes.kv_heads},
                  {"head_dim", sizes.head_dim},
                  {"vocab_size", sizes.vocab},
                  {"max_position_embeddings", 128},
                  {"rms_norm_eps", 1e-6},
                  {"rope_theta", 1e6},
                  {"tie_word_embeddings", sizes.tied},
                  {"torch_dtype", "float32"},
                  {"bos_token_id", 1},
                  {"eos_token_id", 2}};
  TinyTensors& out = model.tensors;
  const auto linear = [&](const std::string& name, int64_t rows, int64_t columns, bool bias) {
    out[name + ".weight"] = {{rows, columns}, {}, "F32"};
    if (bias) out[name + ".bias"] = {{rows}, {}, "F32"};
  };
  const int64_t query = sizes.heads * sizes.head_dim, kv = sizes.kv_heads * sizes.head_dim;
  out["model.embed_tokens.weight"] = {{sizes.vocab, sizes.hidden}, {}, "F32"};
  for (int64_t layer = 0; layer < sizes.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    linear(prefix + "self_attn.q_proj", query, sizes.hidden, sizes.qkv_bias);
    linear(prefix + "self_attn.k_proj", kv, sizes.hidden, sizes.qkv_bias);
    linear(prefix + "self_attn.v_proj", kv, sizes.hidden, sizes.qkv_bias);
    linear(prefix + "self_attn.o_proj", sizes.hidden, query, sizes.o_bias);
    linear(prefix + "mlp.gate_proj", sizes.intermediate, sizes.hidden, sizes.mlp_bias);
    linear(prefix + "mlp.up_proj", sizes.intermediate, sizes.hidden, sizes.mlp_bias);
    linear(prefix + "mlp.down_proj", sizes.hidden, sizes.intermediate, sizes.mlp_bias);
    out[prefix + "input_layernorm.weight"] = {{sizes.hidden}, {}, "F32"};
    out[prefix + "post_attention_layernorm.weight"] = {{sizes.hidden}, {}, "F32"};
    if (sizes.qk_norm) {
      out[prefix + "self_attn.q_norm.weight"] = {{sizes.head_dim}, {}, "F32"};
      out[prefix + "self_attn.k_norm.weight"] = {{sizes.head_dim}, {}, "F32"};
    }
  }
  out["model.norm.weight"] = {{sizes.hidden}, {}, "F32"};
  if (!sizes.tied) out["lm_head.weight"] = {{sizes.vocab, sizes.hidden}, {}, "F32"};
  Fill(out);
  return model;
}

// The fixtures TQ2, TQ3 and TL3 of docs/cases.md.
inline TinyModel Tq2() {
  TinySizes sizes;
  sizes.model_type = "qwen2";
  sizes.qkv_bias = true;
  return MakeModel(sizes);
}
inline TinyModel Tq3() {
  TinySizes sizes;
  sizes.model_type = "qwen3";
  sizes.head_dim = 16;
  sizes.qk_norm = sizes.tied = true;
  return MakeModel(sizes);
}
inline TinyModel Tl3() {
  TinyModel model = MakeModel({});
  model.config["rope_scaling"] = {{"rope_type", "llama3"},
                                  {"factor", 8.0},
                                  {"low_freq_factor", 1.0},
                                  {"high_freq_factor", 4.0},
                                  {"original_max_position_embeddings", 64}};
  return model;
}

inline std::string Encode(const TinyTensor& tensor) {
  std::string bytes;
  for (const float value : tensor.values) {
    if (tensor.dtype == "F32") {
      bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
      continue;
    }
    const uint16_t half = tensor.dtype == "F16" ? FloatToHalf(value) : FloatToBFloat16(value);
    bytes.append(reinterpret_cast<const char*>(&half), sizeof(half));
  }
  return bytes;
}

inline void WriteSafetensors(const std::filesystem::path& path, const TinyTensors& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, tensor.dtype, tensor.shape, 0, 0});
  }
  auto writer = SafetensorsWriter::Create(path, entries, {{"format", "pt"}});
  ASSERT_THAT(writer, IsOk());
  for (const auto& [name, tensor] : tensors) {
    const std::string bytes = Encode(tensor);
    ASSERT_THAT((*writer)->Append(std::as_bytes(std::span<const char>(bytes))), IsOk()) << name;
  }
  ASSERT_THAT((*writer)->Commit(), IsOk());
}

// config.json and model.safetensors.
inline void WriteModel(const std::filesystem::path& folder, const TinyModel& model) {
  std::filesystem::create_directories(folder);
  Spill(folder / "config.json", model.config.dump(2));
  WriteSafetensors(folder / "model.safetensors", model.tensors);
}

struct TinyAdapter {
  nlohmann::json config;
  TinyTensors tensors;  // keys as in the file
};

inline void WriteAdapter(const std::filesystem::path& folder, const TinyAdapter& adapter) {
  std::filesystem::create_directories(folder);
  Spill(folder / "adapter_config.json", adapter.config.dump(2));
  WriteSafetensors(folder / "adapter_model.safetensors", adapter.tensors);
}

// ADP(r, alpha, targets) of docs/cases.md: A and B of the modules named ("q_proj") in every layer.
inline TinyAdapter MakeAdapter(const TinyModel& model, int64_t r, double alpha,
                               const std::vector<std::string>& targets, uint32_t seed = 777) {
  TinyAdapter adapter;
  adapter.config = {{"peft_type", "LORA"},      {"task_type", "CAUSAL_LM"},  {"r", r},
                    {"lora_alpha", alpha},      {"target_modules", targets}, {"bias", "none"},
                    {"init_lora_weights", true}};
  for (const auto& [name, tensor] : model.tensors) {
    static constexpr std::string_view kWeight = ".weight";
    if (tensor.shape.size() != 2 || !name.ends_with(kWeight)) continue;
    const std::string module = name.substr(0, name.size() - kWeight.size());
    for (const std::string& target : targets) {
      if (module != target && !module.ends_with("." + target)) continue;
      const std::string prefix = "base_model.model." + module;
      adapter.tensors[prefix + ".lora_A.weight"] = {{r, tensor.shape[1]}, {}, "F32"};
      adapter.tensors[prefix + ".lora_B.weight"] = {{tensor.shape[0], r}, {}, "F32"};
    }
  }
  Fill(adapter.tensors, seed);
  return adapter;
}

// B A in double, [rows, columns].
inline std::vector<double> Product(const TinyTensor& b, const TinyTensor& a) {
  const auto rows = static_cast<size_t>(b.shape[0]), rank = static_cast<size_t>(b.shape[1]);
  const auto columns = static_cast<size_t>(a.shape[1]);
  std::vector<double> out(rows * columns);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t k = 0; k < rank; ++k) {
      for (size_t j = 0; j < columns; ++j) {
        out[i * columns + j] += static_cast<double>(b.values[i * rank + k]) *
                                static_cast<double>(a.values[k * columns + j]);
      }
    }
  }
  return out;
}

// Every tensor of a folder's safetensors files, as float32.
inline TinyTensors ReadFolder(const std::filesystem::path& folder) {
  TinyTensors tensors;
  for (const auto& item : std::filesystem::directory_iterator(folder)) {
    if (item.path().extension() != ".safetensors") continue;
    const auto file = SafetensorsFile::Open(item.path());
    EXPECT_THAT(file, IsOk());
    for (const SafetensorsEntry& entry : (*file)->entries()) {
      TinyTensor tensor{entry.shape, {}, entry.dtype};
      const std::span<const std::byte> bytes = (*file)->Bytes(entry);
      const size_t size = entry.dtype == "F32" ? 4 : 2;
      for (size_t at = 0; at + size <= bytes.size(); at += size) {
        uint32_t word = 0;
        std::memcpy(&word, bytes.data() + at, size);
        float value = 0;
        if (size == 4) std::memcpy(&value, &word, sizeof(value));
        if (entry.dtype == "F16") value = HalfToFloat(static_cast<uint16_t>(word));
        if (entry.dtype == "BF16") value = BFloat16ToFloat(static_cast<uint16_t>(word));
        tensor.values.push_back(value);
      }
      tensors.emplace(entry.name, std::move(tensor));
    }
  }
  return tensors;
}

}  // namespace hexport::testing
