#include "text/tokenizer.h"

#include <nlohmann/json.hpp>

#include "text/textkit_adapter.h"

namespace hexport {

using text_internal::OwnedString;
using text_internal::StatusFromTextkit;

namespace {

const textkit_tokenizer* AsTokenizer(const void* handle) {
  return static_cast<const textkit_tokenizer*>(handle);
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(std::string_view json) {
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  textkit_tokenizer* handle = nullptr;
  OwnedString error;
  const int32_t code = textkit_tokenizer_new(json.data(), json.size(), &handle, error.out());
  // Whatever is wrong with the text of a file, the file is at fault.
  if (code == TEXTKIT_INVALID_ARGUMENT) return DataLoss("tokenizer.json: " + error.Text());
  HEXPORT_RETURN_IF_ERROR(StatusFromTextkit(code, "tokenizer.json", error));
  tokenizer->handle_ = handle;
  OwnedString listed, list_error;
  HEXPORT_RETURN_IF_ERROR(
      StatusFromTextkit(textkit_tokenizer_added_tokens(handle, listed.out(), list_error.out()),
                        "tokenizer.json", list_error));
  for (const nlohmann::json& token : nlohmann::json::parse(listed.Text(), nullptr, false)) {
    tokenizer->added_tokens_.push_back(
        {token.value("id", -1), token.value("content", ""), token.value("special", false)});
  }
  return tokenizer;
}

Tokenizer::~Tokenizer() { textkit_tokenizer_free(static_cast<textkit_tokenizer*>(handle_)); }

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                               bool add_special_tokens) const {
  int32_t* ids = nullptr;
  size_t count = 0;
  OwnedString error;
  const int32_t code =
      textkit_tokenizer_encode(AsTokenizer(handle_), text.data(), text.size(),
                               add_special_tokens ? 1 : 0, &ids, &count, error.out());
  HEXPORT_RETURN_IF_ERROR(StatusFromTextkit(code, "Tokenizer::Encode", error));
  std::vector<int32_t> result(ids, ids + count);
  textkit_free_ids(ids, count);
  return result;
}

Result<std::vector<TokenPiece>> Tokenizer::EncodePieces(std::string_view text,
                                                        bool add_special_tokens) const {
  OwnedString pieces, error;
  const int32_t code =
      textkit_tokenizer_encode_pieces(AsTokenizer(handle_), text.data(), text.size(),
                                      add_special_tokens ? 1 : 0, pieces.out(), error.out());
  HEXPORT_RETURN_IF_ERROR(StatusFromTextkit(code, "Tokenizer::EncodePieces", error));
  std::vector<TokenPiece> result;
  for (const nlohmann::json& piece : nlohmann::json::parse(pieces.Text(), nullptr, false)) {
    result.push_back({piece.at(0).get<int32_t>(), piece.at(1).get<std::string>(),
                      piece.at(2).get<size_t>(), piece.at(3).get<size_t>()});
  }
  return result;
}

Result<std::string> Tokenizer::Decode(std::span<const int32_t> ids,
                                      bool skip_special_tokens) const {
  OwnedString text, error;
  const int32_t code =
      textkit_tokenizer_decode(AsTokenizer(handle_), ids.data(), ids.size(),
                               skip_special_tokens ? 1 : 0, text.out(), error.out());
  HEXPORT_RETURN_IF_ERROR(StatusFromTextkit(code, "Tokenizer::Decode", error));
  return text.Text();
}

int32_t Tokenizer::vocab_size() const { return textkit_tokenizer_vocab_size(AsTokenizer(handle_)); }

int32_t Tokenizer::TokenToId(std::string_view token) const {
  return textkit_tokenizer_token_to_id(AsTokenizer(handle_), token.data(), token.size());
}

Result<std::string> Tokenizer::IdToToken(int32_t id) const {
  OwnedString token, error;
  const int32_t code =
      textkit_tokenizer_id_to_token(AsTokenizer(handle_), id, token.out(), error.out());
  HEXPORT_RETURN_IF_ERROR(StatusFromTextkit(code, "Tokenizer::IdToToken", error));
  return token.Text();
}

}  // namespace hexport
