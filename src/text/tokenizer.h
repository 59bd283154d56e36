// Tokenizer and streaming detokenizer: the C++ face of Hugging Face's `tokenizers`, through textkit.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace hexport {

// Thread-safe after creation.
class Tokenizer {
 public:
  // `json`: the text of a tokenizer.json. Errors: kDataLoss with the library's message.
  static Result<std::unique_ptr<Tokenizer>> FromJson(std::string_view json);
  ~Tokenizer();
  // add_special_tokens: apply the post-processor (BOS); false for text that a chat template rendered.
  // Special tokens written in the text are recognised either way. Errors: kInvalidArgument (not UTF-8).
  Result<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens) const;
  Result<std::string> Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;
  int32_t vocab_size() const;                          // highest id + 1, added tokens included
  int32_t TokenToId(std::string_view token) const;     // -1 if absent
  Result<std::string> IdToToken(int32_t id) const;     // kInvalidArgument if absent

 private:
  friend class StreamingDetokenizer;
  Tokenizer() = default;
  void* handle_ = nullptr;
};

// Turns ids into text piece by piece; never emits half a character. The concatenation of all pieces equals
// Decode of all ids. One per answer; not thread-safe; the Tokenizer must outlive it.
class StreamingDetokenizer {
 public:
  StreamingDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens);
  ~StreamingDetokenizer();
  StreamingDetokenizer(const StreamingDetokenizer&) = delete;
  StreamingDetokenizer& operator=(const StreamingDetokenizer&) = delete;
  // The text that `id` completes; empty while a character is incomplete. An invalid byte becomes U+FFFD at once.
  Result<std::string> Push(int32_t id);
  // What is left at the end (U+FFFD for a truncated character). Call once.
  Result<std::string> Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hexport
