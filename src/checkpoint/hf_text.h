// Tokenizer files of a Hugging Face folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/json_fields.h"

namespace hexport::checkpoint {

// Tokenizer, chat templates and token texts of a folder, which needs no weights: an adapter's will
// do. A tokenizer that is not required may be absent. Errors: kNotFound (no tokenizer), kDataLoss,
// kInvalidArgument, kUnimplemented (a kind of tokenizer that is not read, named).
Result<TextAssets> HfText(const std::filesystem::path& folder, bool tokenizer_required);

// Fills tokenizer_json and add_bos_token from tokenizer.json, or else from tokenizer.model
// (SentencePiece), or else from vocab.json and merges.txt (GPT-2's and Qwen 2's classes), with the
// added and special tokens of the folder's other files. `config` is tokenizer_config.json. Errors
// as HfText.
Status HfTokenizer(const std::filesystem::path& folder, const JsonFields& config,
                   TextAssets& assets);

// Fills chat_template and chat_templates from chat_template.jinja and
// additional_chat_templates/*.jinja, or else from the string or list of `config`. Leaves them empty
// when there is none. Errors: kInvalidArgument.
Status HfTemplates(const std::filesystem::path& folder, const JsonFields& config,
                   TextAssets& assets);

// Id of the eos_token that tokenizer_config.json names; nullopt when there is no such file or
// token.
Result<std::optional<int64_t>> HfEosTokenId(const std::filesystem::path& folder);

// ReadTextFile, but an absent file is nullopt.
Result<std::optional<std::string>> ReadIfPresent(const std::filesystem::path& path);

}  // namespace hexport::checkpoint
