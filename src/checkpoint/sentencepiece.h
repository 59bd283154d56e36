// SentencePiece models (tokenizer.model) as a Hugging Face tokenizer.json. Works on bytes in
// memory.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace hexport::checkpoint {

// What tokenizer_config.json says besides the model.
struct SentencePieceOptions {
  // tokenizer_class without "Fast": "LlamaTokenizer" and "GemmaTokenizer" have conversions of their
  // own in transformers; any other follows the model's own settings.
  std::string tokenizer_class;
  // Llama: SentencePiece's dummy prefix is put before every text between added tokens (legacy), or
  // before the first only.
  bool legacy = true;
  bool add_prefix_space = true;
};

// The tokenizer.json without post-processor ("post_processor": null). Control pieces become special
// added tokens and user-defined ones added tokens. `where` names the file. Errors: kDataLoss (not a
// SentencePiece model: truncated or a tiktoken file), kUnimplemented (word or char models, spaces
// as suffixes), kInvalidArgument (no pieces, unk_id out of range, a text twice). Follows
// transformers.convert_slow_tokenizer: LlamaConverter, GemmaConverter, and
// SpmConverter.build_tokenizer_from_spm_proto.
Result<nlohmann::json> SentencePieceTokenizer(std::string_view model,
                                              const SentencePieceOptions& options,
                                              const std::string& where);

}  // namespace hexport::checkpoint
