// Components of a tokenizer.json that several sources of a tokenizer build. Shapes of the JSON:
// https://github.com/huggingface/tokenizers (serialization of its components). Private to
// checkpoint's .cc files.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace hexport::checkpoint {

inline nlohmann::json ByteLevelPart(bool trim_offsets, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", trim_offsets},
          {"use_regex", use_regex}};
}

// One entry of added_tokens with no flag but `special`.
inline nlohmann::json AddedTokenPart(int64_t id, std::string_view text, bool special) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

// A post-processor that puts `bos` before and `eos` after each sequence; an empty text puts
// nothing.
inline nlohmann::json TemplatePart(const std::string& bos, int64_t bos_id, const std::string& eos,
                                   int64_t eos_id) {
  using nlohmann::json;
  json single = json::array(), pair = json::array(), tokens = json::object();
  const auto add = [&](const std::string& text, int64_t id, int type, json& out) {
    if (text.empty()) return;
    out.push_back({{"SpecialToken", {{"id", text}, {"type_id", type}}}});
    tokens[text] = {{"id", text}, {"ids", json::array({id})}, {"tokens", json::array({text})}};
  };
  for (const auto& [name, type] : {std::pair("A", 0), std::pair("B", 1)}) {
    json out = json::array();
    add(bos, bos_id, type, out);
    out.push_back({{"Sequence", {{"id", name}, {"type_id", type}}}});
    add(eos, eos_id, type, out);
    if (type == 0) single = out;
    pair.insert(pair.end(), out.begin(), out.end());
  }
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(tokens)}};
}

}  // namespace hexport::checkpoint
