// Tokenizer and templates of whatever --model names.
#pragma once

#include <filesystem>
#include <memory>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "text/tokenizer.h"

namespace hexport::cli {

// A bundle, a GGUF file, or a Hugging Face folder: an adapter's with only tokenizer files will do.
// Errors: OpenText's and bundle::OpenBundle's.
Result<TextAssets> OpenModelText(const std::filesystem::path& path);

// Errors: kNotFound when `text` has no tokenizer; Tokenizer::FromJson's with the path.
Result<std::unique_ptr<Tokenizer>> OpenModelTokenizer(const std::filesystem::path& path,
                                                      const TextAssets& text);

}  // namespace hexport::cli
