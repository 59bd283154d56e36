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
// known.
std::optional<std::string> HfTensorName(std::string_view gguf_name);

// The config from metadata, tensor names and, for llama3 RoPE scaling, the values of
// rope_freqs.weight in `file` (the bytes that `contents` was parsed from). config.name is
// general.name, may be empty. Errors: kUnimplemented (architecture, experts, per-layer sizes, RoPE
// kinds, unknown tensors: all named), kInvalidArgument (missing, mistyped or absurd metadata),
// kNotFound (no token_embd.weight).
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
