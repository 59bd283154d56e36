// Which tokenizer and chat template a merged model gets: the trainer's or the base's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace hexport::compile {

enum class TextSource { kUnset, kBase, kAdapter };

struct TextChoice {
  TextAssets text;                           // empty tokenizer_json: neither has a tokenizer
  std::string tokenizer_from = "none";       // "base", "adapter", "none"
  std::string template_from = "none";        // likewise
  int64_t differing_probes = 0;              // strings that the two tokenizers encode differently
  std::string first_difference;              // of the templates, in words; empty: none
  std::vector<std::filesystem::path> files;  // to copy into the merged folder
  std::vector<std::string> warnings, failures;
};

// base: folder or GGUF; adapters: folders or files, the first with a tokenizer counts. A tokenizer
// of the adapter is what it was trained with and is taken unless `tokenizer` says otherwise.
// vocab_rows: rows of the merged embedding. Errors: kFailedPrecondition when both have a chat
// template, they render differently, `chat_template` is unset and `any_template` is false (names
// the first differing token), or when the tokenizer has ids that no row of the embedding stands
// for.
Result<TextChoice> ChooseText(const std::filesystem::path& base,
                              const std::vector<std::filesystem::path>& adapters,
                              TextSource tokenizer, TextSource chat_template, bool any_template,
                              int64_t vocab_rows);

// Copies or writes tokenizer and template into `folder`. Errors: those of writing.
Status WriteText(const TextChoice& choice, const std::filesystem::path& folder);

}  // namespace hexport::compile
