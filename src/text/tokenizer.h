// Tokenizer and streaming detokenizer: Hugging Face's `tokenizers`, through textkit.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace hexport {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
};

// One token of a text, for people to read.
struct TokenPiece {
  int32_t id = 0;
  std::string token;          // as the vocabulary spells it
  size_t begin = 0, end = 0;  // its place in the text, in characters
};

// Thread-safe after creation.
class Tokenizer {
 public:
  // `json`: the text of a tokenizer.json; its truncation and padding are ignored. Errors: kDataLoss
  // with the library's message, or when the library would number an added token differently.
  static Result<std::unique_ptr<Tokenizer>> FromJson(std::string_view json);
  ~Tokenizer();
  // add_special_tokens: apply the post-processor (BOS); false for text that a chat template
  // rendered. Special tokens written in the text are recognised either way. Errors:
  // kInvalidArgument (not UTF-8).
  Result<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens) const;
  // As Encode, with the tokens' spelling and place. Slower.
  Result<std::vector<TokenPiece>> EncodePieces(std::string_view text,
                                               bool add_special_tokens) const;
  // Added tokens, special and not, in the order of their ids.
  const std::vector<AddedToken>& added_tokens() const { return added_tokens_; }
  // Ids that no token has are skipped, as the library does. Errors: kInvalidArgument (negative id).
  Result<std::string> Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;
  int32_t vocab_size() const;                       // highest id + 1, added tokens included
  int32_t TokenToId(std::string_view token) const;  // -1 if absent
  Result<std::string> IdToToken(int32_t id) const;  // kInvalidArgument if absent

 private:
  friend class StreamingDetokenizer;
  Tokenizer() = default;
  std::vector<AddedToken> added_tokens_;
  void* handle_ = nullptr;
};

// Turns ids into text piece by piece; never emits half a character. The concatenation of all pieces
// equals Decode of all ids; the time is linear. SentencePiece fallback bytes (<0xE2>) come out when
// their run ends, because one bad byte changes the whole run. One per answer; not thread-safe; the
// Tokenizer must outlive it.
class StreamingDetokenizer {
 public:
  StreamingDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens);
  ~StreamingDetokenizer();
  StreamingDetokenizer(const StreamingDetokenizer&) = delete;
  StreamingDetokenizer& operator=(const StreamingDetokenizer&) = delete;
  // The text that `id` completes; empty while a character is incomplete. An invalid byte becomes
  // U+FFFD at once. Errors: kInvalidArgument (negative id), kFailedPrecondition (after Finish).
  Result<std::string> Push(int32_t id);
  // What is left at the end (U+FFFD for a truncated character). Call once, else
  // kFailedPrecondition.
  Result<std::string> Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hexport
