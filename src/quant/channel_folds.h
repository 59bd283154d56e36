// Scales of single channels, moved between a tensor that makes an activation and those that read
// it: the model computes the same function, but the activation (or a cache) fills its codes better.
//
//   input_layernorm, post_attention_layernorm (pre_feedforward_layernorm)   -> the linears after it
//   mlp.up_proj -> mlp.down_proj
//   self_attn.v_proj -> self_attn.o_proj, each key/value head for the query heads that share it
//   self_attn.k_proj -> self_attn.q_proj, both halves of a RoPE pair alike; not with qk_norm
//
// SmoothQuant, arXiv:2211.10438; AWQ, arXiv:2306.00978; Outlier Suppression+, arXiv:2304.09145.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"

namespace hexport::quant {

inline constexpr char kFoldsFile[] = "folds.safetensors";

// What `producer` gives is divided by `factors`, and what `consumers` multiply with it is
// multiplied by them. Names as nodes of the decoder: "layers.0.input_layernorm",
// "layers.0.self_attn.q_proj".
struct ChannelFold {
  std::string producer;
  std::vector<std::string> consumers;
  std::vector<float> factors;  // a channel of the producer each; positive and finite
};

// All consumers of `producer` in the whole decoder `graph`, in its order. Errors: kInvalidArgument
// when it is none of the producers above, or the architecture does not allow the fold.
Result<std::vector<std::string>> ConsumersOf(const decoder::DecoderGraph& graph,
                                             const ModelConfig& config,
                                             const std::string& producer);

// A view of `base` (which must outlive it) with the folds applied. Same function as `base` up to
// float32 rounding. Errors: ConsumersOf's; kInvalidArgument naming a consumer that is missing from
// a fold or does not read the producer, the number of factors, or a factor that is not positive and
// finite, or differs within a RoPE pair.
Result<std::unique_ptr<Checkpoint>> FoldChannels(const Checkpoint& base,
                                                 const std::vector<ChannelFold>& folds);

// A safetensors file with a tensor F32 [channels] a producer. Errors: those of writing.
Status WriteFolds(const std::vector<ChannelFold>& folds, const std::filesystem::path& path);
// With every consumer that the decoder of `checkpoint` has. Errors: kDataLoss (file, dtype),
// ConsumersOf's.
Result<std::vector<ChannelFold>> ReadFolds(const Checkpoint& checkpoint,
                                           const std::filesystem::path& path);

}  // namespace hexport::quant
