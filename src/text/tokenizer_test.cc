#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "base/status_matchers.h"

namespace hexport {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Byte-level BPE over a few letters: "Ġ" is the space. <s> comes from the post-processor.
constexpr char kJson[] = R"({
  "version": "1.0",
  "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
  "padding": {"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
              "pad_type_id": 0, "pad_token": "a"},
  "added_tokens": [
    {"id": 5, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true},
    {"id": 6, "content": "<tool>", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": false}
  ],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}}},
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
    "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
    "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4}, "merges": ["a b", "Ġ ab"]}
})";

class TokenizerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto created = Tokenizer::FromJson(kJson);
    ASSERT_THAT(created, IsOk());
    tokenizer_ = *std::move(created);
  }
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(TokenizerTest, EncodesWithMergesIgnoringTruncationAndPadding) {
  auto ids = tokenizer_->Encode("ab ab ba", false);
  ASSERT_THAT(ids, IsOk());
  EXPECT_THAT(*ids, ElementsAre(3, 4, 2, 1, 0));
}

TEST_F(TokenizerTest, AddsTheBosTokenOnRequest) {
  auto ids = tokenizer_->Encode("a", true);
  ASSERT_THAT(ids, IsOk());
  EXPECT_THAT(*ids, ElementsAre(5, 0));
}

TEST_F(TokenizerTest, RecognisesSpecialTokensWrittenInTheText) {
  auto ids = tokenizer_->Encode("a<s>b<tool>", false);
  ASSERT_THAT(ids, IsOk());
  EXPECT_THAT(*ids, ElementsAre(0, 5, 1, 6));
}

TEST_F(TokenizerTest, EmptyTextHasNoIds) {
  auto ids = tokenizer_->Encode("", false);
  ASSERT_THAT(ids, IsOk());
  EXPECT_THAT(*ids, IsEmpty());
}

TEST_F(TokenizerTest, TextMustBeUtf8) {
  EXPECT_THAT(tokenizer_->Encode("ab\xc3", false),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("invalid byte at offset 2")));
}

TEST_F(TokenizerTest, DecodesAndSkipsOnlySpecialTokens) {
  const std::vector<int32_t> ids = {5, 3, 4, 6};
  auto all = tokenizer_->Decode(ids, false);
  auto skipped = tokenizer_->Decode(ids, true);
  ASSERT_THAT(all, IsOk());
  ASSERT_THAT(skipped, IsOk());
  EXPECT_EQ(*all, "<s>ab ab<tool>");
  EXPECT_EQ(*skipped, "ab ab<tool>");
}

TEST_F(TokenizerTest, DecodeSkipsIdsWithoutAToken) {
  const std::vector<int32_t> ids = {0, 7, 1000, 1};
  auto text = tokenizer_->Decode(ids, false);
  ASSERT_THAT(text, IsOk());
  EXPECT_EQ(*text, "ab");
}

TEST_F(TokenizerTest, DecodeRefusesANegativeId) {
  const std::vector<int32_t> ids = {0, -1};
  EXPECT_THAT(tokenizer_->Decode(ids, false),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("got -1")));
}

TEST_F(TokenizerTest, DecodeOfNothingIsEmpty) {
  auto text = tokenizer_->Decode({}, false);
  ASSERT_THAT(text, IsOk());
  EXPECT_EQ(*text, "");
}

TEST_F(TokenizerTest, VocabSizeIsTheHighestIdPlusOne) { EXPECT_EQ(tokenizer_->vocab_size(), 7); }

TEST_F(TokenizerTest, TokenToIdFindsModelAndAddedTokens) {
  EXPECT_EQ(tokenizer_->TokenToId("Ġab"), 4);
  EXPECT_EQ(tokenizer_->TokenToId("<s>"), 5);
}

TEST_F(TokenizerTest, TokenToIdIsMinusOneForAnAbsentToken) {
  EXPECT_EQ(tokenizer_->TokenToId("zz"), -1);
  EXPECT_EQ(tokenizer_->TokenToId("\xff"), -1);
  EXPECT_EQ(tokenizer_->TokenToId(""), -1);
}

TEST_F(TokenizerTest, IdToTokenSpellsTheVocabulary) {
  auto token = tokenizer_->IdToToken(4);
  ASSERT_THAT(token, IsOk());
  EXPECT_EQ(*token, "Ġab");
}

TEST_F(TokenizerTest, IdToTokenRefusesAnAbsentId) {
  for (int32_t id : {-1, 7, std::numeric_limits<int32_t>::max()}) {
    EXPECT_THAT(tokenizer_->IdToToken(id),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("token id")))
        << id;
  }
}

TEST_F(TokenizerTest, EncodesFromSeveralThreadsAtOnce) {
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([this, &wrong, t] {
      for (int i = 0; i < 200; ++i) {
        auto ids = tokenizer_->Encode("ab ab", false);
        if (!ids.ok() || *ids != std::vector<int32_t>{3, 4}) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

TEST(Tokenizer, BadJsonIsDataLoss) {
  EXPECT_THAT(Tokenizer::FromJson("{\"version\": "),
              StatusIs(StatusCode::kDataLoss, HasSubstr("tokenizer.json: ")));
}

TEST(Tokenizer, EmptyJsonIsDataLoss) {
  EXPECT_THAT(Tokenizer::FromJson(""),
              StatusIs(StatusCode::kDataLoss, HasSubstr("tokenizer.json: ")));
}

// The library's reader of decoders panics on broken JSON; found by fuzz/tokenizer_json_fuzz.cc.
TEST(Tokenizer, WhatTheLibraryPanicsOnIsDataLoss) {
  EXPECT_THAT(Tokenizer::FromJson(R"({"version": "1.0", "decoder": {"typ{"vet,"p"KK})"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("tokenizer.json: ")));
  EXPECT_THAT(Tokenizer::FromJson(R"({"version": "1.0", "decoder": {"a" "b"}})"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("tokenizer.json: ")));
}

TEST(Tokenizer, AnUnknownModelIsDataLoss) {
  EXPECT_THAT(Tokenizer::FromJson(R"({"version": "1.0", "model": {"type": "Oracle"}})"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("tokenizer.json: ")));
}

TEST(Tokenizer, AnAddedTokenThatTheLibraryWouldRenumberIsDataLoss) {
  std::string json = kJson;
  const std::string id = R"("id": 6, "content": "<tool>")";
  json.replace(json.find(id), id.size(), R"("id": 9, "content": "<tool>")");
  EXPECT_THAT(Tokenizer::FromJson(json),
              StatusIs(StatusCode::kDataLoss, HasSubstr("added token '<tool>': expected id 9")));
}

TEST(Tokenizer, ADecoderThatPanicsTheLibraryIsAStatus) {
  // The library's own reader asserts that a decoder is an object.
  std::string json = kJson;
  const std::string decoder = R"("decoder": {"type": "ByteLevel")";
  json.replace(json.find(decoder), decoder.size(), R"("decoder": {"type": ["ByteLevel"])");
  EXPECT_THAT(Tokenizer::FromJson(json), ::testing::Not(IsOk()));
}

TEST(Tokenizer, JsonMustBeUtf8) {
  EXPECT_THAT(Tokenizer::FromJson("{\"a\": \"\xff\"}"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("expected UTF-8")));
}

}  // namespace
}  // namespace hexport
