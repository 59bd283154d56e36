#include "checkpoint/sentencepiece.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/tokenizer_parts.h"
#include "sentencepiece.pb.h"

namespace hexport::checkpoint {
namespace {

using nlohmann::json;
using sentencepiece::ModelProto;

constexpr int kNormal = 1, kControl = 3, kUserDefined = 4;
constexpr int kUnigram = 1, kBpe = 2;
// Longer pieces than this are refused: their splits are tried one by one.
constexpr size_t kLongestPiece = 4096;
const char kMark[] = "\xe2\x96\x81";  // U+2581, which stands for a space

using PieceIds = std::unordered_map<std::string_view, int>;

json Replace(const char* kind, const std::string& pattern, const std::string& content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}

json Metaspace(const char* scheme) {
  return {
      {"type", "Metaspace"}, {"replacement", kMark}, {"prepend_scheme", scheme}, {"split", false}};
}

json Sequence(const char* field, json parts) { return {{"type", "Sequence"}, {field, parts}}; }

json Decoder(bool byte_fallback, bool fuse, bool strip) {
  json parts = json::array({Replace("String", kMark, " ")});
  if (byte_fallback) parts.push_back({{"type", "ByteFallback"}});
  if (fuse) parts.push_back({{"type", "Fuse"}});
  if (strip) {
    parts.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return Sequence("decoders", std::move(parts));
}

Result<ModelProto> ParseModel(std::string_view bytes, const std::string& where) {
  ModelProto model;
  if (bytes.size() > size_t{1} << 30 ||
      !model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return DataLoss(where +
                    ": expected a SentencePiece model, got other bytes (a tiktoken vocabulary is "
                    "not read); save the tokenizer as tokenizer.json");
  }
  if (model.pieces_size() == 0) {
    return InvalidArgument(where + ": pieces: expected at least one, got none");
  }
  if (model.trainer_spec().treat_whitespace_as_suffix()) {
    return Unimplemented(where +
                         ": treat_whitespace_as_suffix: expected false, got true; save the "
                         "tokenizer as tokenizer.json");
  }
  return model;
}

Result<PieceIds> ReadPieces(const ModelProto& model, const std::string& where) {
  PieceIds ids;
  for (int id = 0; id < model.pieces_size(); ++id) {
    const std::string& piece = model.pieces(id).piece();
    const std::string name = where + ": pieces[" + std::to_string(id) + "]";
    if (piece.empty() || piece.size() > kLongestPiece) {
      return InvalidArgument(name + ": expected 1 to " + std::to_string(kLongestPiece) +
                             " bytes, got " + std::to_string(piece.size()));
    }
    if (!std::isfinite(model.pieces(id).score())) {
      return InvalidArgument(name + ": expected a finite score, got none");
    }
    if (!ids.emplace(piece, id).second) {
      return InvalidArgument(name + ": '" + piece + "' stands twice; ids would be lost");
    }
  }
  return ids;
}

struct Merge {
  double rank;  // the lower the earlier
  int piece;
  size_t left_bytes;
};

// Every split of a piece into two pieces is a merge; sooner the better its piece. Splits of one
// piece: the shortest left part first. `normal_only`: only pieces of the type normal take part, by
// their scores; else all, by their ids, which in a BPE model is the same order.
json Merges(const ModelProto& model, const PieceIds& ids, bool normal_only) {
  std::vector<Merge> merges;
  const auto takes_part = [&](std::string_view text) {
    const auto found = ids.find(text);
    return found != ids.end() && (!normal_only || model.pieces(found->second).type() == kNormal);
  };
  for (int id = 0; id < model.pieces_size(); ++id) {
    const std::string_view piece = model.pieces(id).piece();
    if (!takes_part(piece)) continue;
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      if ((static_cast<unsigned char>(piece[cut]) & 0xC0U) == 0x80U) continue;
      if (!takes_part(piece.substr(0, cut)) || !takes_part(piece.substr(cut))) continue;
      merges.push_back({normal_only ? -static_cast<double>(model.pieces(id).score()) : 0, id, cut});
    }
  }
  const auto left = [&](const Merge& merge) {
    return std::string_view(model.pieces(merge.piece).piece()).substr(0, merge.left_bytes);
  };
  std::stable_sort(merges.begin(), merges.end(), [&](const Merge& a, const Merge& b) {
    return std::tie(a.rank, a.piece, a.left_bytes) < std::tie(b.rank, b.piece, b.left_bytes);
  });
  json out = json::array();
  for (const Merge& merge : merges) {
    const std::string_view piece = model.pieces(merge.piece).piece();
    out.push_back(json::array({left(merge), piece.substr(merge.left_bytes)}));
  }
  return out;
}

json Bpe(const ModelProto& model, const PieceIds& ids, bool byte_fallback, bool own_settings,
         json unk_token, bool ignore_merges) {
  json vocab = json::object();
  for (const auto& [piece, id] : ids) vocab[std::string(piece)] = id;
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", std::move(unk_token)},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", true},
          {"byte_fallback", byte_fallback},
          {"ignore_merges", ignore_merges},
          {"vocab", std::move(vocab)},
          {"merges", Merges(model, ids, own_settings)}};
}

json Unigram(const ModelProto& model) {
  json vocab = json::array();
  for (const auto& piece : model.pieces()) {
    vocab.push_back(json::array({piece.piece(), piece.score()}));
  }
  return {{"type", "Unigram"},
          {"unk_id", model.trainer_spec().unk_id()},
          {"vocab", std::move(vocab)},
          {"byte_fallback", model.trainer_spec().byte_fallback()}};
}

std::string Base64(std::string_view bytes) {
  static const char kAlphabet[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8U | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (size_t k = 0; k < 4; ++k) {
      out += k <= count ? kAlphabet[group >> (18U - 6U * k) & 63U] : '=';
    }
  }
  return out;
}

// The characters that mean something in a regular expression, escaped.
std::string EscapeRegex(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view(R"(\.^$|()[]{}*+?-#&~ )").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::vector<std::string> UserDefined(const ModelProto& model) {
  std::vector<std::string> pieces;
  for (const auto& piece : model.pieces()) {
    if (piece.type() == kUserDefined) pieces.push_back(piece.piece());
  }
  // As Python sorts by len(): characters.
  const auto characters = [](const std::string& text) {
    return std::count_if(text.begin(), text.end(),
                         [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
  };
  std::stable_sort(pieces.begin(), pieces.end(),
                   [&](const auto& a, const auto& b) { return characters(a) > characters(b); });
  return pieces;
}

// The model's own settings, in SentencePiece's order.
json OwnNormalizer(const ModelProto& model, bool legacy) {
  const auto& spec = model.normalizer_spec();
  json parts = json::array();
  if (!spec.precompiled_charsmap().empty()) {
    parts.push_back(
        {{"type", "Precompiled"}, {"precompiled_charsmap", Base64(spec.precompiled_charsmap())}});
  }
  if (spec.remove_extra_whitespaces()) {
    parts.push_back(Replace("Regex", R"(\A +| +\z)", ""));
    parts.push_back(Replace("Regex", " {2,}", " "));
  }
  if (spec.escape_whitespaces()) parts.push_back(Replace("String", " ", kMark));
  if (spec.add_dummy_prefix() && legacy) {
    // Metaspace leaves the dummy prefix out where the text begins with U+2581; SentencePiece does
    // not.
    parts.push_back(Replace("Regex", std::string(R"(\A)") + kMark, std::string(kMark) + kMark));
  }
  return Sequence("normalizers", std::move(parts));
}

json OwnPreTokenizer(const ModelProto& model, bool legacy) {
  json parts = json::array();
  if (model.normalizer_spec().add_dummy_prefix()) {
    parts.push_back(Metaspace(legacy ? "always" : "first"));
  }
  std::string pattern;
  for (const std::string& piece : UserDefined(model)) {
    pattern += (pattern.empty() ? "" : "|") + EscapeRegex(piece);
  }
  if (!pattern.empty()) {
    parts.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  if (parts.empty()) return nullptr;
  return Sequence("pretokenizers", std::move(parts));
}

json AddedPieces(const ModelProto& model, bool control_only) {
  json added = json::array();
  for (int id = 0; id < model.pieces_size(); ++id) {
    const auto& piece = model.pieces(id);
    if (piece.type() == kControl || (piece.type() == kUserDefined && !control_only)) {
      added.push_back(AddedTokenPart(id, piece.piece(), piece.type() == kControl));
    }
  }
  return added;
}

json Tokenizer(json added, json normalizer, json pre_tokenizer, json decoder, json bpe) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added)},
          {"normalizer", std::move(normalizer)},
          {"pre_tokenizer", std::move(pre_tokenizer)},
          {"post_processor", nullptr},
          {"decoder", std::move(decoder)},
          {"model", std::move(bpe)}};
}

json Llama(const ModelProto& model, const PieceIds& ids, const SentencePieceOptions& options) {
  json normalizer, pre_tokenizer;
  if (options.legacy) {
    json parts = json::array();
    if (options.add_prefix_space) parts.push_back({{"type", "Prepend"}, {"prepend", kMark}});
    parts.push_back(Replace("String", " ", kMark));
    normalizer = Sequence("normalizers", std::move(parts));
  } else {
    pre_tokenizer = Metaspace(options.add_prefix_space ? "first" : "never");
  }
  return Tokenizer(AddedPieces(model, false), std::move(normalizer), std::move(pre_tokenizer),
                   Decoder(true, true, options.add_prefix_space),
                   Bpe(model, ids, true, false, nullptr, false));
}

json Gemma(const ModelProto& model, const PieceIds& ids) {
  return Tokenizer(AddedPieces(model, false), Replace("String", " ", kMark),
                   {{"type", "Split"},
                    {"pattern", {{"String", " "}}},
                    {"behavior", "MergedWithPrevious"},
                    {"invert", false}},
                   Decoder(true, true, false),
                   Bpe(model, ids, true, false, model.trainer_spec().unk_piece(), false));
}

// "unk_token" names a piece: without one the library would drop what it does not know.
Status CheckUnknown(const ModelProto& model, const PieceIds& ids, const std::string& where) {
  const int unk_id = model.trainer_spec().unk_id();
  if (unk_id < 0 || unk_id >= model.pieces_size()) {
    return InvalidArgument(where + ": unk_id: expected 0 to " +
                           std::to_string(model.pieces_size() - 1) + ", got " +
                           std::to_string(unk_id));
  }
  if (!ids.contains(model.trainer_spec().unk_piece())) {
    return InvalidArgument(where + ": unk_piece: expected a piece of the model, got '" +
                           model.trainer_spec().unk_piece() + "'");
  }
  return OkStatus();
}

}  // namespace

Result<json> SentencePieceTokenizer(std::string_view bytes, const SentencePieceOptions& options,
                                    const std::string& where) {
  HEXPORT_ASSIGN_OR_RETURN(const ModelProto model, ParseModel(bytes, where));
  HEXPORT_ASSIGN_OR_RETURN(const PieceIds ids, ReadPieces(model, where));
  HEXPORT_RETURN_IF_ERROR(CheckUnknown(model, ids, where));
  const int type = model.trainer_spec().model_type();
  if (type != kUnigram && type != kBpe) {
    return Unimplemented(where + ": model_type: expected unigram or BPE, got " +
                         (type == 3   ? "word"
                          : type == 4 ? "char"
                                      : std::to_string(type)));
  }
  if (type == kBpe && options.tokenizer_class == "LlamaTokenizer") {
    return Llama(model, ids, options);
  }
  if (type == kBpe && options.tokenizer_class == "GemmaTokenizer") return Gemma(model, ids);
  const bool byte_fallback = model.trainer_spec().byte_fallback();
  const bool prefix = model.normalizer_spec().add_dummy_prefix();
  return Tokenizer(AddedPieces(model, true), OwnNormalizer(model, options.legacy),
                   OwnPreTokenizer(model, options.legacy),
                   Decoder(byte_fallback, prefix || byte_fallback, prefix),
                   type == kUnigram
                       ? Unigram(model)
                       : Bpe(model, ids, byte_fallback, true, model.trainer_spec().unk_piece(),
                             !UserDefined(model).empty()));
}

}  // namespace hexport::checkpoint
