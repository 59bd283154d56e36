// The tokenizer of a Hugging Face folder as the text of a tokenizer.json: that file, or built from
// tokenizer.model, or from vocab.json and merges.txt, as transformers does.
#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file.h"
#include "checkpoint/hf_text.h"
#include "checkpoint/json_fields.h"
#include "checkpoint/sentencepiece.h"
#include "checkpoint/tokenizer_parts.h"

namespace hexport::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The split of Qwen 2 and 3: every digit stands alone.
constexpr std::string_view kQwen2Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// "LlamaTokenizerFast" -> "LlamaTokenizer"; by the model's type where the config names no class.
Result<std::string> TokenizerClass(const fs::path& folder, const JsonFields& config) {
  HEXPORT_ASSIGN_OR_RETURN(std::string name, config.String("tokenizer_class", ""));
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  if (!name.empty() && name != "PreTrainedTokenizer") return name;
  HEXPORT_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                           ReadIfPresent(folder / "config.json"));
  if (!text.has_value()) return name;
  HEXPORT_ASSIGN_OR_RETURN(const json model,
                           ParseJsonObject(*text, (folder / "config.json").string()));
  const JsonFields fields(model, (folder / "config.json").string());
  HEXPORT_ASSIGN_OR_RETURN(const std::string type, fields.String("model_type", ""));
  static const std::map<std::string, std::string> kClasses = {
      {"llama", "LlamaTokenizer"},       {"mistral", "LlamaTokenizer"},
      {"phi3", "LlamaTokenizer"},        {"gemma", "GemmaTokenizer"},
      {"gemma2", "GemmaTokenizer"},      {"gemma3", "GemmaTokenizer"},
      {"gemma3_text", "GemmaTokenizer"}, {"gpt2", "GPT2Tokenizer"},
      {"qwen2", "Qwen2Tokenizer"},       {"qwen3", "Qwen2Tokenizer"}};
  const auto found = kClasses.find(type);
  return found == kClasses.end() ? name : found->second;
}

// An added token's flags; absent ones are false, as in tokenizer_config.json they rarely are.
Result<json> AddedFromConfig(int64_t id, const json& value, const std::string& where) {
  if (value.is_string()) return AddedTokenPart(id, value.get<std::string>(), false);
  if (!value.is_object() || !value.contains("content") || !value["content"].is_string()) {
    return InvalidArgument(where + ": expected an object with content, got " + Excerpt(value));
  }
  const JsonFields fields(value, where);
  HEXPORT_ASSIGN_OR_RETURN(const bool special, fields.Bool("special", false));
  json token = AddedTokenPart(id, value["content"].get<std::string>(), special);
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) {
    HEXPORT_ASSIGN_OR_RETURN(const bool set, fields.Bool(flag, false));
    token[flag] = set;
  }
  return token;
}

using IdsToTokens = std::map<int64_t, json>;

Result<IdsToTokens> AddedTokens(const fs::path& folder, const JsonFields& config) {
  IdsToTokens added;
  const fs::path file = folder / "added_tokens.json";
  HEXPORT_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadIfPresent(file));
  if (text.has_value()) {
    HEXPORT_ASSIGN_OR_RETURN(const json tokens, ParseJsonObject(*text, file.string()));
    for (const auto& item : tokens.items()) {
      if (!item.value().is_number_integer()) {
        return InvalidArgument(file.string() + ": " + item.key() + ": expected an id, got " +
                               Excerpt(item.value()));
      }
      const int64_t id = item.value().get<int64_t>();
      added[id] = AddedTokenPart(id, item.key(), false);
    }
  }
  const json* decoder = config.Find("added_tokens_decoder");
  if (decoder == nullptr) return added;
  if (!decoder->is_object()) return config.Mismatch("added_tokens_decoder", "an object by id");
  for (const auto& item : decoder->items()) {
    int64_t id = 0;
    const char* end = item.key().data() + item.key().size();
    const auto parsed = std::from_chars(item.key().data(), end, id);
    if (parsed.ec != std::errc() || parsed.ptr != end || id < 0) {
      return config.Mismatch("added_tokens_decoder", "ids as keys");
    }
    HEXPORT_ASSIGN_OR_RETURN(
        added[id], AddedFromConfig(id, item.value(),
                                   config.where() + ": added_tokens_decoder[" + item.key() + "]"));
  }
  return added;
}

// bos_token and its like, texts of config or special_tokens_map.json, in transformers' order.
Result<std::vector<std::string>> SpecialTexts(const fs::path& folder, const JsonFields& config) {
  const fs::path file = folder / "special_tokens_map.json";
  HEXPORT_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadIfPresent(file));
  json map = json::object();
  if (text.has_value()) {
    HEXPORT_ASSIGN_OR_RETURN(map, ParseJsonObject(*text, file.string()));
  }
  const JsonFields mapped(map, file.string());
  std::vector<std::string> texts;
  const auto add = [&](const json& value) {
    const json* content =
        value.is_object() && value.contains("content") ? &value["content"] : &value;
    if (content->is_string() && !content->get<std::string>().empty()) {
      texts.push_back(content->get<std::string>());
    }
  };
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token", "additional_special_tokens"}) {
    const json* value = config.Find(name);
    if (value == nullptr) value = mapped.Find(name);
    if (value == nullptr) continue;
    if (value->is_array()) {
      for (const json& entry : *value) add(entry);
    } else {
      add(*value);
    }
  }
  return texts;
}

// Ids of the model's own vocabulary, by text.
std::map<std::string, int64_t> VocabularyIds(const json& tokenizer) {
  std::map<std::string, int64_t> ids;
  const json& vocab = tokenizer["model"]["vocab"];
  if (vocab.is_array()) {
    for (size_t i = 0; i < vocab.size(); ++i) {
      ids.emplace(vocab[i][0].get<std::string>(), static_cast<int64_t>(i));
    }
  } else {
    for (const auto& item : vocab.items()) ids.emplace(item.key(), item.value().get<int64_t>());
  }
  return ids;
}

// Puts the folder's added and special tokens into tokenizer["added_tokens"] and fills `ids`.
Status AddTokens(const fs::path& folder, const JsonFields& config, json& tokenizer,
                 std::map<std::string, int64_t>& ids) {
  HEXPORT_ASSIGN_OR_RETURN(IdsToTokens added, AddedTokens(folder, config));
  for (json& token : tokenizer["added_tokens"]) {
    added.emplace(token["id"].get<int64_t>(), std::move(token));
  }
  int64_t next = static_cast<int64_t>(ids.size());
  for (const auto& [id, token] : added) {
    const auto [known, fresh] = ids.emplace(token["content"].get<std::string>(), id);
    if (known->second != id) {
      return InvalidArgument(config.where() + ": added token '" + known->first + "': expected id " +
                             std::to_string(known->second) + " as in the vocabulary, got " +
                             std::to_string(id));
    }
    next = std::max(next, id + 1);
  }
  HEXPORT_ASSIGN_OR_RETURN(const std::vector<std::string> special, SpecialTexts(folder, config));
  for (const std::string& text : special) {
    const auto [known, fresh] = ids.emplace(text, next);
    if (fresh) ++next;
    const auto [place, absent] =
        added.emplace(known->second, AddedTokenPart(known->second, text, true));
    place->second["special"] = true;
  }
  json list = json::array();
  for (auto& [id, token] : added) list.push_back(std::move(token));
  tokenizer["added_tokens"] = std::move(list);
  return OkStatus();
}

Result<json> ReadVocabulary(const fs::path& path) {
  HEXPORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  HEXPORT_ASSIGN_OR_RETURN(json vocab, ParseJsonObject(text, path.string()));
  for (const auto& item : vocab.items()) {
    if (!item.value().is_number_unsigned()) {
      return InvalidArgument(path.string() + ": " + item.key() + ": expected an id, got " +
                             Excerpt(item.value()));
    }
  }
  return vocab;
}

// Lines of "left right", below an optional "#version" line.
Result<json> ReadMergesFile(const fs::path& path) {
  HEXPORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  json merges = json::array();
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const size_t space = line.find(' ');
    if (space == 0 || space == std::string::npos || space + 1 == line.size()) {
      return DataLoss(path.string() + ":" + std::to_string(number) +
                      ": expected two tokens, got '" + line + "'");
    }
    merges.push_back(json::array({line.substr(0, space), line.substr(space + 1)}));
  }
  return merges;
}

// GPT-2's and Qwen 2's byte-level BPE from vocab.json and merges.txt.
Result<json> ByteLevelBpe(const fs::path& folder, const std::string& name,
                          const JsonFields& config) {
  if (name != "GPT2Tokenizer" && name != "Qwen2Tokenizer") {
    return Unimplemented((folder / "vocab.json").string() +
                         ": tokenizer_class: expected GPT2Tokenizer or Qwen2Tokenizer where no "
                         "tokenizer.json stands, got " +
                         (name.empty() ? "none" : name) + "; save the tokenizer as tokenizer.json");
  }
  HEXPORT_ASSIGN_OR_RETURN(json vocab, ReadVocabulary(folder / "vocab.json"));
  HEXPORT_ASSIGN_OR_RETURN(json merges, ReadMergesFile(folder / "merges.txt"));
  HEXPORT_ASSIGN_OR_RETURN(const bool prefix, config.Bool("add_prefix_space", false));
  json normalizer, pre_tokenizer = ByteLevelPart(true, true);
  if (name == "Qwen2Tokenizer") {
    normalizer = {{"type", "NFC"}};
    json bytes = ByteLevelPart(false, false);
    bytes["add_prefix_space"] = prefix;
    pre_tokenizer = {{"type", "Sequence"},
                     {"pretokenizers", json::array({{{"type", "Split"},
                                                     {"pattern", {{"Regex", kQwen2Split}}},
                                                     {"behavior", "Isolated"},
                                                     {"invert", false}},
                                                    bytes})}};
  } else {
    pre_tokenizer["add_prefix_space"] = prefix;
  }
  return json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", json::array()},
              {"normalizer", std::move(normalizer)},
              {"pre_tokenizer", std::move(pre_tokenizer)},
              {"post_processor", ByteLevelPart(false, true)},
              {"decoder", ByteLevelPart(true, true)},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", ""},
                {"end_of_word_suffix", ""},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", false},
                {"vocab", std::move(vocab)},
                {"merges", std::move(merges)}}}};
}

Result<json> FromSentencePiece(const fs::path& path, const std::string& name,
                               const JsonFields& config) {
  HEXPORT_ASSIGN_OR_RETURN(const std::string model, ReadTextFile(path));
  SentencePieceOptions options;
  options.tokenizer_class = name;
  HEXPORT_ASSIGN_OR_RETURN(options.legacy, config.Bool("legacy", true));
  HEXPORT_ASSIGN_OR_RETURN(options.add_prefix_space, config.Bool("add_prefix_space", true));
  return SentencePieceTokenizer(model, options, path.string());
}

// add_bos_token and add_eos_token as a post-processor.
Status AddPostProcessor(const JsonFields& config, const TextAssets& assets, bool add_bos,
                        const std::map<std::string, int64_t>& ids, json& tokenizer) {
  HEXPORT_ASSIGN_OR_RETURN(const bool add_eos, config.Bool("add_eos_token", false));
  const auto id_of = [&](bool add, const std::string& text) -> Result<int64_t> {
    if (!add) return int64_t{-1};
    const auto found = ids.find(text);
    if (found == ids.end()) {
      return InvalidArgument(config.where() +
                             ": add_bos_token or add_eos_token: expected its token among the "
                             "vocabulary, got '" +
                             text + "'");
    }
    return found->second;
  };
  HEXPORT_ASSIGN_OR_RETURN(const int64_t bos, id_of(add_bos, assets.bos_token));
  HEXPORT_ASSIGN_OR_RETURN(const int64_t eos, id_of(add_eos, assets.eos_token));
  if (!add_bos && !add_eos) return OkStatus();
  tokenizer["post_processor"] =
      TemplatePart(add_bos ? assets.bos_token : "", bos, add_eos ? assets.eos_token : "", eos);
  return OkStatus();
}

// A vocabulary of longer tokens without merges would come out byte by byte.
Status CheckMerges(const json& tokenizer, const std::string& where) {
  const auto model = tokenizer.find("model");
  if (model == tokenizer.end() || !model->is_object()) return OkStatus();
  if (model->value("type", "BPE") != "BPE" || model->value("ignore_merges", false))
    return OkStatus();
  const auto merges = model->find("merges");
  const auto vocab = model->find("vocab");
  if (merges == model->end() || !merges->empty()) return OkStatus();
  if (vocab == model->end() || vocab->size() <= 512) return OkStatus();
  return DataLoss(where + ": model.merges: expected the merges of " +
                  std::to_string(vocab->size()) +
                  " tokens, got none; every text would come out byte by byte");
}

}  // namespace

Status HfTokenizer(const fs::path& folder, const JsonFields& config, TextAssets& assets) {
  std::error_code error;
  const fs::path ready = folder / "tokenizer.json";
  if (fs::exists(ready, error)) {
    HEXPORT_ASSIGN_OR_RETURN(assets.tokenizer_json, ReadTextFile(ready));
    HEXPORT_ASSIGN_OR_RETURN(const json parsed,
                             ParseJsonObject(assets.tokenizer_json, ready.string()));
    HEXPORT_ASSIGN_OR_RETURN(assets.add_bos_token, config.Bool("add_bos_token", false));
    return CheckMerges(parsed, ready.string());
  }
  HEXPORT_ASSIGN_OR_RETURN(const std::string name, TokenizerClass(folder, config));
  json tokenizer;
  bool sentencepiece_class = name == "LlamaTokenizer" || name == "GemmaTokenizer";
  const fs::path model = folder / "tokenizer.model";
  if (fs::exists(model, error)) {
    HEXPORT_ASSIGN_OR_RETURN(tokenizer, FromSentencePiece(model, name, config));
  } else if (fs::exists(folder / "vocab.json", error)) {
    HEXPORT_ASSIGN_OR_RETURN(tokenizer, ByteLevelBpe(folder, name, config));
    sentencepiece_class = false;
  } else {
    return NotFound(ready.string() +
                    ": expected it, or tokenizer.model, or vocab.json with merges.txt, got none");
  }
  std::map<std::string, int64_t> ids = VocabularyIds(tokenizer);
  HEXPORT_RETURN_IF_ERROR(AddTokens(folder, config, tokenizer, ids));
  HEXPORT_ASSIGN_OR_RETURN(assets.add_bos_token, config.Bool("add_bos_token", sentencepiece_class));
  if (sentencepiece_class && assets.bos_token.empty()) assets.bos_token = "<s>";
  if (sentencepiece_class && assets.eos_token.empty()) assets.eos_token = "</s>";
  HEXPORT_RETURN_IF_ERROR(AddPostProcessor(config, assets, assets.add_bos_token, ids, tokenizer));
  HEXPORT_RETURN_IF_ERROR(CheckMerges(tokenizer, folder.string()));
  try {
    assets.tokenizer_json = tokenizer.dump();
  } catch (const json::exception& bad) {
    return DataLoss(folder.string() + ": tokenizer: expected UTF-8, got bytes that are not (" +
                    bad.what() + ")");
  }
  return OkStatus();
}

}  // namespace hexport::checkpoint
