// Rebuilds a Hugging Face tokenizer.json from the vocabulary, merges and pre-tokenizer name of a
// GGUF file. Shapes of the JSON: https://github.com/huggingface/tokenizers (serialization of its
// components); the pre-tokenizers are those of the models' published tokenizer.json files.
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf_model.h"
#include "checkpoint/tokenizer_parts.h"

namespace hexport::checkpoint {
namespace {

using nlohmann::json;

// Values of tokenizer.ggml.token_type.
constexpr int64_t kControl = 3;
constexpr int64_t kUserDefined = 4;
constexpr int64_t kUnused = 5;

// Digits stay together by up to three in Llama 3, and stand alone in Qwen 2.
constexpr std::string_view kLlama3Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

json SplitThenBytes(std::string_view regex) {
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", regex}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"type", "Sequence"},
          {"pretokenizers", json::array({split, ByteLevelPart(false, false)})}};
}

struct Style {
  json normalizer, pre_tokenizer;
  bool ignore_merges = false;
  bool add_bos = false;  // when the file does not say
};

Result<Style> StyleOf(std::string_view pre, const std::string& where) {
  Style style;
  if (pre == "smollm") {
    const json digits = {{"type", "Digits"}, {"individual_digits", true}};
    style.pre_tokenizer = {{"type", "Sequence"},
                           {"pretokenizers", json::array({digits, ByteLevelPart(true, true)})}};
  } else if (pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3") {
    style.pre_tokenizer = SplitThenBytes(kLlama3Split);
    style.ignore_merges = true;
    style.add_bos = true;
  } else if (pre == "qwen2" || pre == "deepseek-r1-qwen") {
    style.normalizer = {{"type", "NFC"}};
    style.pre_tokenizer = SplitThenBytes(kQwen2Split);
  } else if (pre == "gpt-2" || pre == "default") {
    style.pre_tokenizer = ByteLevelPart(true, true);
  } else {
    return Unimplemented(where +
                         ": tokenizer.ggml.pre: expected smollm, llama-bpe, qwen2, gpt-2 or "
                         "default, got " +
                         std::string(pre));
  }
  return style;
}

struct Vocabulary {
  json ids = json::object();            // text -> id
  json added = json::array();           // added_tokens
  std::vector<std::string_view> texts;  // by id
};

Result<Vocabulary> ReadVocabulary(const GgufMetadata& metadata) {
  HEXPORT_ASSIGN_OR_RETURN(const GgufArray* tokens,
                           metadata.Array("tokenizer.ggml.tokens", GgufType::kString));
  Vocabulary vocabulary;
  vocabulary.texts = tokens->strings;
  std::vector<int64_t> types(tokens->strings.size(), 1);
  if (metadata.Find("tokenizer.ggml.token_type") != nullptr) {
    HEXPORT_ASSIGN_OR_RETURN(const GgufArray* stored,
                             metadata.Array("tokenizer.ggml.token_type", GgufType::kInt32));
    if (stored->integers.size() != types.size()) {
      return DataLoss(metadata.where() + ": tokenizer.ggml.token_type: expected " +
                      std::to_string(types.size()) + " as there are tokens, got " +
                      std::to_string(stored->integers.size()));
    }
    types = stored->integers;
  }
  for (size_t id = 0; id < types.size(); ++id) {
    const std::string_view text = tokens->strings[id];
    if (types[id] == kUnused) continue;
    // Of two tokens with one text, text can only become the first.
    vocabulary.ids.emplace(std::string(text), id);
    if (types[id] == kControl || types[id] == kUserDefined) {
      vocabulary.added.push_back(
          AddedTokenPart(static_cast<int64_t>(id), text, types[id] == kControl));
    }
  }
  return vocabulary;
}

// "left right" -> ["left", "right"]; both and their join must be tokens.
Result<json> ReadMerges(const GgufMetadata& metadata, const Vocabulary& vocabulary) {
  HEXPORT_ASSIGN_OR_RETURN(const GgufArray* merges,
                           metadata.Array("tokenizer.ggml.merges", GgufType::kString));
  json pairs = json::array();
  for (size_t i = 0; i < merges->strings.size(); ++i) {
    const std::string_view merge = merges->strings[i];
    const size_t space = merge.find(' ', 1);
    const std::string left(merge.substr(0, space));
    const std::string right(space == std::string_view::npos ? "" : merge.substr(space + 1));
    for (const std::string& token : {left, right, left + right}) {
      if (token.empty() || !vocabulary.ids.contains(token)) {
        return DataLoss(
            metadata.where() + ": tokenizer.ggml.merges[" + std::to_string(i) +
            "]: expected two tokens that join to a token, got what the vocabulary lacks");
      }
    }
    pairs.push_back(json::array({left, right}));
  }
  return pairs;
}

// The text of the token that `key` names; empty when the key is absent.
Result<std::string> TokenText(const GgufMetadata& metadata, const Vocabulary& vocabulary,
                              std::string_view key) {
  HEXPORT_ASSIGN_OR_RETURN(const int64_t id, metadata.Int(key, -1));
  if (id == -1) return std::string();
  if (id < 0 || static_cast<uint64_t>(id) >= vocabulary.texts.size()) {
    return InvalidArgument(metadata.where() + ": " + std::string(key) + ": expected 0 to " +
                           std::to_string(static_cast<int64_t>(vocabulary.texts.size()) - 1) +
                           ", got " + std::to_string(id));
  }
  return std::string(vocabulary.texts[static_cast<size_t>(id)]);
}

Result<std::string> Serialize(const json& tokenizer, const std::string& where) {
  try {
    return tokenizer.dump();
  } catch (const json::exception& error) {
    return DataLoss(where + ": tokenizer.ggml.tokens: expected UTF-8, got bytes that are not (" +
                    error.what() + ")");
  }
}

// tokenizer.chat_templates lists the names of further templates, each under its own key.
Status AddNamedTemplates(const GgufMetadata& metadata, const std::string& where,
                         TextAssets& assets) {
  if (metadata.Find("tokenizer.chat_templates") == nullptr) return OkStatus();
  HEXPORT_ASSIGN_OR_RETURN(const GgufArray* names,
                           metadata.Array("tokenizer.chat_templates", GgufType::kString));
  for (const std::string_view name : names->strings) {
    const std::string key = "tokenizer.chat_template." + std::string(name);
    HEXPORT_ASSIGN_OR_RETURN(const std::string_view source, metadata.String(key, ""));
    if (!source.empty()) {
      assets.chat_templates[std::string(name)] = source;
      assets.template_places[std::string(name)] = where + ": " + key;
    }
  }
  return OkStatus();
}

}  // namespace

Result<TextAssets> GgufText(const GgufContents& contents, const std::string& where) {
  const GgufMetadata metadata(contents, where);
  if (metadata.Find("tokenizer.ggml.model") == nullptr) {
    return NotFound(where + ": tokenizer.ggml.model: expected a tokenizer in the file, got none");
  }
  HEXPORT_ASSIGN_OR_RETURN(const std::string_view model, metadata.String("tokenizer.ggml.model"));
  if (model != "gpt2") {
    return Unimplemented(where + ": tokenizer.ggml.model: expected gpt2 (byte-level BPE), got " +
                         std::string(model));
  }
  HEXPORT_ASSIGN_OR_RETURN(const std::string_view pre,
                           metadata.String("tokenizer.ggml.pre", "default"));
  HEXPORT_ASSIGN_OR_RETURN(const Style style, StyleOf(pre, where));
  HEXPORT_ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(metadata));
  HEXPORT_ASSIGN_OR_RETURN(json merges, ReadMerges(metadata, vocabulary));
  HEXPORT_ASSIGN_OR_RETURN(const bool add_eos,
                           metadata.Bool("tokenizer.ggml.add_eos_token", false));
  if (add_eos) {
    return Unimplemented(where + ": tokenizer.ggml.add_eos_token: expected false, got true");
  }
  TextAssets assets;
  HEXPORT_ASSIGN_OR_RETURN(assets.bos_token,
                           TokenText(metadata, vocabulary, "tokenizer.ggml.bos_token_id"));
  HEXPORT_ASSIGN_OR_RETURN(assets.eos_token,
                           TokenText(metadata, vocabulary, "tokenizer.ggml.eos_token_id"));
  HEXPORT_ASSIGN_OR_RETURN(const bool add_bos,
                           metadata.Bool("tokenizer.ggml.add_bos_token", style.add_bos));
  assets.add_bos_token = add_bos && vocabulary.ids.contains(assets.bos_token);
  HEXPORT_ASSIGN_OR_RETURN(const std::string_view chat_template,
                           metadata.String("tokenizer.chat_template", ""));
  assets.chat_template = chat_template;
  if (!chat_template.empty()) {
    assets.chat_templates["default"] = assets.chat_template;
    assets.template_places["default"] = where + ": tokenizer.chat_template";
  }
  HEXPORT_RETURN_IF_ERROR(AddNamedTemplates(metadata, where, assets));
  const json bpe = {{"type", "BPE"},
                    {"dropout", nullptr},
                    {"unk_token", nullptr},
                    {"continuing_subword_prefix", nullptr},
                    {"end_of_word_suffix", nullptr},
                    {"fuse_unk", false},
                    {"byte_fallback", false},
                    {"ignore_merges", style.ignore_merges},
                    {"vocab", vocabulary.ids},
                    {"merges", std::move(merges)}};
  const json tokenizer = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", vocabulary.added},
      {"normalizer", style.normalizer},
      {"pre_tokenizer", style.pre_tokenizer},
      {"post_processor",
       assets.add_bos_token
           ? TemplatePart(assets.bos_token, vocabulary.ids.at(assets.bos_token).get<int64_t>(), "",
                          -1)
           : ByteLevelPart(true, true)},
      {"decoder", ByteLevelPart(true, true)},
      {"model", bpe}};
  HEXPORT_ASSIGN_OR_RETURN(assets.tokenizer_json, Serialize(tokenizer, where));
  return assets;
}

}  // namespace hexport::checkpoint
