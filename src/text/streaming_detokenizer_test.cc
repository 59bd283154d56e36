#include <gtest/gtest.h>

#include <random>

#include "base/status_matchers.h"
#include "text/tokenizer.h"

namespace hexport {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A WordLevel model whose ids are the positions in `vocabulary` (JSON strings), with the given
// decoder.
std::unique_ptr<Tokenizer> Make(const std::vector<std::string>& vocabulary,
                                const std::string& decoder) {
  std::string vocab;
  for (size_t id = 0; id < vocabulary.size(); ++id) {
    vocab += (id == 0 ? "" : ", ") + ("\"" + vocabulary[id] + "\": ") + std::to_string(id);
  }
  const std::string special = std::to_string(vocabulary.size());
  auto tokenizer = Tokenizer::FromJson(
      R"({"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
      "post_processor": null, "added_tokens": [{"id": )" +
      special +
      R"(, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
      "special": true}], "decoder": )" +
      decoder + R"(, "model": {"type": "WordLevel", "unk_token": "a", "vocab": {)" + vocab + "}}}");
  EXPECT_THAT(tokenizer, IsOk());
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// The pieces of Push, then what Finish gives.
std::vector<std::string> Stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                                bool skip_special_tokens = false) {
  StreamingDetokenizer stream(tokenizer, skip_special_tokens);
  std::vector<std::string> pieces;
  for (int32_t id : ids) {
    auto piece = stream.Push(id);
    EXPECT_THAT(piece, IsOk());
    pieces.push_back(piece.ok() ? *piece : "error");
  }
  auto rest = stream.Finish();
  EXPECT_THAT(rest, IsOk());
  pieces.push_back(rest.ok() ? *rest : "error");
  return pieces;
}

std::string Joined(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

constexpr char kByteLevel[] =
    R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})";
// Llama 2's: mark to space, bytes, one text, one leading space less.
constexpr char kLlama[] = R"({"type": "Sequence", "decoders": [
  {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
  {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})";

// In the byte-level alphabet F0 9F 98 80 is "ðŁĺĢ", FF is "ÿ", E2 is "â", 82 is "Ĥ", AC is "¬".
const std::vector<std::string> kByteVocabulary = {"a", "Ġb", "ðŁ", "ĺĢ", "ÿ", "â", "Ĥ", "¬", "日"};

TEST(StreamingDetokenizer, HoldsAnEmojiUntilItsLastByte) {
  auto tokenizer = Make(kByteVocabulary, kByteLevel);
  EXPECT_THAT(Stream(*tokenizer, {0, 2, 3, 1}), ElementsAre("a", "", "\U0001F600", " b", ""));
}

TEST(StreamingDetokenizer, AnInvalidByteBecomesAReplacementAtOnce) {
  auto tokenizer = Make(kByteVocabulary, kByteLevel);
  EXPECT_THAT(Stream(*tokenizer, {4, 0}), ElementsAre("\uFFFD", "a", ""));
}

TEST(StreamingDetokenizer, ACharacterCutByAnotherIsReplacedWhenTheOtherComes) {
  auto tokenizer = Make(kByteVocabulary, kByteLevel);
  EXPECT_THAT(Stream(*tokenizer, {5, 6, 0}), ElementsAre("", "",
                                                         "\uFFFD"
                                                         "a",
                                                         ""));
}

TEST(StreamingDetokenizer, ATruncatedEndIsReplacedByFinish) {
  auto tokenizer = Make(kByteVocabulary, kByteLevel);
  EXPECT_THAT(Stream(*tokenizer, {0, 5, 6}), ElementsAre("a", "", "", "\uFFFD"));
}

TEST(StreamingDetokenizer, ATokenOutsideTheByteAlphabetStandsForItself) {
  auto tokenizer = Make(kByteVocabulary, kByteLevel);
  EXPECT_THAT(Stream(*tokenizer, {8, 0}), ElementsAre("日", "a", ""));
}

TEST(StreamingDetokenizer, SpecialTokensAreSkippedOnRequest) {
  auto tokenizer = Make(kByteVocabulary, kByteLevel);
  EXPECT_THAT(Stream(*tokenizer, {0, 9, 1}, true), ElementsAre("a", "", " b", ""));
  EXPECT_THAT(Stream(*tokenizer, {0, 9}, false), ElementsAre("a", "<|end|>", ""));
}

TEST(StreamingDetokenizer, ASkippedTokenDoesNotCutACharacter) {
  auto tokenizer = Make(kByteVocabulary, kByteLevel);
  EXPECT_THAT(Stream(*tokenizer, {2, 9, 3}, true), ElementsAre("", "", "\U0001F600", ""));
}

TEST(StreamingDetokenizer, IdsWithoutATokenAreSkipped) {
  auto tokenizer = Make(kByteVocabulary, kByteLevel);
  EXPECT_THAT(Stream(*tokenizer, {0, 12345, 1}), ElementsAre("a", "", " b", ""));
}

TEST(StreamingDetokenizer, OnlyTheFirstSpaceOfTheTextIsStripped) {
  auto tokenizer = Make({"a", "▁b", "▁"}, kLlama);
  EXPECT_THAT(Stream(*tokenizer, {1, 1, 2, 0}), ElementsAre("b", " b", " ", "a", ""));
  EXPECT_THAT(Stream(*tokenizer, {2, 1, 0}), ElementsAre("", " b", "a", ""));
}

TEST(StreamingDetokenizer, FallbackBytesComeOutWhenTheirRunEnds) {
  auto tokenizer = Make({"a", "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>"}, kLlama);
  EXPECT_THAT(Stream(*tokenizer, {0, 1, 2, 3, 0}), ElementsAre("a", "", "", "", "€a", ""));
  EXPECT_THAT(Stream(*tokenizer, {1, 2, 3}), ElementsAre("", "", "", "€"));
}

TEST(StreamingDetokenizer, ABrokenRunOfFallbackBytesIsReplacedAtOnce) {
  auto tokenizer = Make({"a", "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>"}, kLlama);
  EXPECT_THAT(Stream(*tokenizer, {4, 1, 0}), ElementsAre("\uFFFD", "\uFFFD", "a", ""));
  EXPECT_THAT(Stream(*tokenizer, {1, 2}), ElementsAre("", "", "\uFFFD\uFFFD"));
}

TEST(StreamingDetokenizer, MetaspaceDropsTheMarkOfTheFirstTokenOnly) {
  auto tokenizer =
      Make({"a", "▁b"}, R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
                                          "split": true})");
  EXPECT_THAT(Stream(*tokenizer, {1, 1, 0}), ElementsAre("b", " b", "a", ""));
  EXPECT_THAT(Stream(*tokenizer, {2, 1}, true), ElementsAre("", "b", ""));
}

TEST(StreamingDetokenizer, WithoutADecoderTokensAreJoinedBySpaces) {
  auto tokenizer = Make({"a", "b"}, "null");
  EXPECT_THAT(Stream(*tokenizer, {0, 1}), ElementsAre("a", " b", ""));
}

TEST(StreamingDetokenizer, PushAfterFinishIsRefused) {
  auto tokenizer = Make({"a", "b"}, "null");
  StreamingDetokenizer stream(*tokenizer, false);
  ASSERT_THAT(stream.Finish(), IsOk());
  EXPECT_THAT(stream.Push(0),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("the stream has ended")));
}

TEST(StreamingDetokenizer, ANegativeIdIsRefused) {
  auto tokenizer = Make({"a", "b"}, "null");
  StreamingDetokenizer stream(*tokenizer, false);
  EXPECT_THAT(stream.Push(-7), StatusIs(StatusCode::kInvalidArgument, HasSubstr("got -7")));
}

// Every decoder of the library, over random ids: the pieces equal the whole.
class EqualsDecode : public ::testing::TestWithParam<const char*> {};

TEST_P(EqualsDecode, OnRandomIds) {
  auto tokenizer =
      Make({"a", "▁b", "▁", "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>", "<0x41>", "ðŁ", "ĺĢ", "ÿ",
            "â", "Ĥ",  "¬", "Ġ",      "##c",    "d</w>",  " ",      "b▁▁",    "日", "|",  "."},
           GetParam());
  std::mt19937 random(20240607);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids(random() % 12);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 24);
    const bool skip = round % 2 == 0;
    auto whole = tokenizer->Decode(ids, skip);
    ASSERT_THAT(whole, IsOk());
    ASSERT_EQ(Joined(Stream(*tokenizer, ids, skip)), *whole) << ::testing::PrintToString(ids);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Decoders, EqualsDecode,
    ::testing::Values(
        kByteLevel, kLlama, "null",
        R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}]})",
        R"({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁",
            "prepend_scheme": "first", "split": false}]})",
        R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})",
        R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": true})",
        R"({"type": "WordPiece", "prefix": "##", "cleanup": true})",
        R"({"type": "BPEDecoder", "suffix": "</w>"})",
        R"({"type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": true})",
        R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "▁▁"},
            "content": " "}]})",
        R"({"type": "Sequence", "decoders": [{"type": "Strip", "content": "▁", "start": 1, "stop": 0},
            {"type": "Fuse"}]})"));

}  // namespace
}  // namespace hexport
