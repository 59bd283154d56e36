// Tokenizer files of a Hugging Face folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace hexport::checkpoint {

// tokenizer.json (may be absent when not required), the templates from chat_template.jinja or
// tokenizer_config.json, token texts. Errors: kNotFound (no tokenizer.json), kDataLoss,
// kInvalidArgument.
Result<TextAssets> HfText(const std::filesystem::path& folder, bool tokenizer_required);

// Id of the eos_token that tokenizer_config.json names; nullopt when there is no such file or
// token.
Result<std::optional<int64_t>> HfEosTokenId(const std::filesystem::path& folder);

// ReadTextFile, but an absent file is nullopt.
Result<std::optional<std::string>> ReadIfPresent(const std::filesystem::path& path);

}  // namespace hexport::checkpoint
