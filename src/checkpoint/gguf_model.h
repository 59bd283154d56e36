// What a parsed GGUF file says about its model, in Hugging Face's terms. Works on bytes in memory.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/model_config.h"

namespace hexport::checkpoint {

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; nullopt for a name that is not
// known. `architecture` is ModelConfig's: "ffn_norm" and "ffn_up" mean other tensors in Gemma 3 and
// Phi-3.
std::optional<std::string> HfTensorName(std::string_view gguf_name,
                                        std::string_view architecture = "llama");

// Whether llama.cpp's converter interleaves the rows of q and k (of weights and biases): the first
// half of each head's rows at even places, the second at odd ones.
bool InterleavesQueryAndKey(std::string_view architecture);

// The config from metadata, tensor names and, for llama3 and longrope scaling, the values of
// rope_freqs.weight, rope_factors_short.weight and rope_factors_long.weight in `file` (the bytes
// that `contents` was parsed from). config.architecture is config.json's model_type. What GGUF
// files do not say and llama.cpp has in code is taken from there: SmolLM3 and Gemma 3 leave RoPE or
// the window out every 4th and 6th layer, Gemma 3's sliding layers turn with base 10000, its norm
// weights hold the 1 that its code adds. config.name is general.name, may be empty. Errors:
// kUnimplemented (architecture, experts, per-layer sizes, RoPE kinds, unknown tensors: all named),
// kInvalidArgument (missing, mistyped or absurd metadata), kNotFound (no token_embd.weight).
Result<ModelConfig> GgufModelConfig(const GgufContents& contents, std::span<const std::byte> file,
                                    const std::string& where);

// The RoPE scaling whose frequency divisors are `factors` (head_dim / 2 of them): none when all are
// 1, or Llama 3's with its published low_freq_factor 1, high_freq_factor 4 and original length
// 8192. kUnimplemented when neither gives these factors.
Result<RopeScaling> RopeScalingFromFactors(std::span<const float> factors, double rope_theta,
                                           const std::string& where);

// Tokenizer and chat template from tokenizer.* metadata; see Checkpoint::Text.
// Errors: kNotFound (no tokenizer), kUnimplemented (model or pre-tokenizer), kDataLoss,
// kInvalidArgument.
Result<TextAssets> GgufText(const GgufContents& contents, const std::string& where);

}  // namespace hexport::checkpoint
