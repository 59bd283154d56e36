#include "checkpoint/hf_text.h"

#include <charconv>
#include <string>
#include <utility>

#include "base/file.h"
#include "checkpoint/json_fields.h"

namespace hexport::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";

// An absent file is an empty object.
Result<json> ReadOptionalObject(const std::filesystem::path& path) {
  HEXPORT_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadIfPresent(path));
  if (!text.has_value()) return json(json::object());
  return ParseJsonObject(*text, path.string());
}

// A special token is written as its text or as {"content": text, ...}.
Result<std::string> TokenText(const JsonFields& fields, std::string_view name) {
  const json* value = fields.Find(name);
  if (value == nullptr) return std::string();
  if (value->is_string()) return value->get<std::string>();
  const auto content = value->find("content");
  if (content == value->end() || !content->is_string()) {
    return fields.Mismatch(name, "a string or an object with content");
  }
  return content->get<std::string>();
}

// Id of the added token with this text in tokenizer_config.json's added_tokens_decoder.
std::optional<int64_t> IdInDecoder(const JsonFields& config, const std::string& text) {
  const json* decoder = config.Find("added_tokens_decoder");
  if (decoder == nullptr || !decoder->is_object()) return std::nullopt;
  for (const auto& item : decoder->items()) {
    if (!item.value().is_object()) continue;
    const auto content = item.value().find("content");
    if (content == item.value().end() || *content != text) continue;
    int64_t id = 0;
    const char* end = item.key().data() + item.key().size();
    const auto parsed = std::from_chars(item.key().data(), end, id);
    if (parsed.ec == std::errc() && parsed.ptr == end) return id;
  }
  return std::nullopt;
}

std::optional<int64_t> IdInTokenizer(const json& tokenizer, const std::string& text) {
  const auto added = tokenizer.find("added_tokens");
  if (added != tokenizer.end() && added->is_array()) {
    for (const json& token : *added) {
      if (!token.is_object()) continue;
      const auto content = token.find("content");
      const auto id = token.find("id");
      if (content != token.end() && *content == text && id != token.end() &&
          id->is_number_integer()) {
        return id->get<int64_t>();
      }
    }
  }
  const auto model = tokenizer.find("model");
  if (model == tokenizer.end() || !model->is_object()) return std::nullopt;
  const auto vocab = model->find("vocab");
  if (vocab == model->end() || !vocab->is_object()) return std::nullopt;
  const auto id = vocab->find(text);
  if (id == vocab->end() || !id->is_number_integer()) return std::nullopt;
  return id->get<int64_t>();
}

}  // namespace

Result<std::optional<std::string>> ReadIfPresent(const std::filesystem::path& path) {
  Result<std::string> text = ReadTextFile(path);
  if (text.ok()) return std::optional<std::string>(*std::move(text));
  if (text.status().code() == StatusCode::kNotFound) return std::optional<std::string>();
  return text.status();
}

Result<TextAssets> HfText(const std::filesystem::path& folder, bool tokenizer_required) {
  TextAssets assets;
  HEXPORT_ASSIGN_OR_RETURN(const json config, ReadOptionalObject(folder / kTokenizerConfig));
  const JsonFields fields(config, (folder / kTokenizerConfig).string());
  HEXPORT_ASSIGN_OR_RETURN(assets.bos_token, TokenText(fields, "bos_token"));
  HEXPORT_ASSIGN_OR_RETURN(assets.eos_token, TokenText(fields, "eos_token"));
  const Status tokenizer = HfTokenizer(folder, fields, assets);
  if (!tokenizer.ok() && (tokenizer_required || tokenizer.code() != StatusCode::kNotFound)) {
    return tokenizer;
  }
  HEXPORT_RETURN_IF_ERROR(HfTemplates(folder, fields, assets));
  return assets;
}

Result<std::optional<int64_t>> HfEosTokenId(const std::filesystem::path& folder) {
  HEXPORT_ASSIGN_OR_RETURN(const json config, ReadOptionalObject(folder / kTokenizerConfig));
  const JsonFields fields(config, (folder / kTokenizerConfig).string());
  HEXPORT_ASSIGN_OR_RETURN(const std::string text, TokenText(fields, "eos_token"));
  if (text.empty()) return std::optional<int64_t>();
  if (const std::optional<int64_t> id = IdInDecoder(fields, text); id.has_value()) return id;
  HEXPORT_ASSIGN_OR_RETURN(const json tokenizer, ReadOptionalObject(folder / kTokenizer));
  return IdInTokenizer(tokenizer, text);
}

}  // namespace hexport::checkpoint
