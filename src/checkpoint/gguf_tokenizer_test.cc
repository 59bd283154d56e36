#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/status_matchers.h"
#include "checkpoint/gguf_builder.h"
#include "checkpoint/gguf_model.h"

namespace hexport::checkpoint {
namespace {

using ::hexport::checkpoint::testing::Bytes;
using ::hexport::checkpoint::testing::GgufBuilder;
using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using nlohmann::json;
using ::testing::HasSubstr;

// Tokens: 0 <s> control, 1 a, 2 b, 3 ab, 4 <tool> user defined, 5 [PAD] unused.
GgufBuilder Tokenizer(const std::string& pre = "smollm") {
  GgufBuilder builder;
  builder.String("tokenizer.ggml.model", "gpt2")
      .String("tokenizer.ggml.pre", pre)
      .Strings("tokenizer.ggml.tokens", {"<s>", "a", "b", "ab", "<tool>", "[PAD]"})
      .Numbers<int32_t>("tokenizer.ggml.token_type", GgufType::kInt32, {3, 1, 1, 1, 4, 5})
      .Strings("tokenizer.ggml.merges", {"a b"})
      .Uint32("tokenizer.ggml.bos_token_id", 0)
      .Uint32("tokenizer.ggml.eos_token_id", 3);
  return builder;
}

Result<TextAssets> Text(const GgufBuilder& builder) {
  const std::string file = builder.Build();
  const auto contents = ParseGguf(Bytes(file), "file");
  if (!contents.ok()) return contents.status();
  return GgufText(*contents, "file");
}

json TokenizerJson(const GgufBuilder& builder) {
  const auto text = Text(builder);
  EXPECT_THAT(text, IsOk());
  return text.ok() ? json::parse(text->tokenizer_json) : json();
}

TEST(GgufTokenizerTest, RebuildsVocabularyAndMerges) {
  const json tokenizer = TokenizerJson(Tokenizer());
  EXPECT_EQ(tokenizer["model"]["type"], "BPE");
  EXPECT_EQ(tokenizer["model"]["vocab"], json::parse(R"({"<s>":0,"a":1,"b":2,"ab":3,"<tool>":4})"));
  EXPECT_EQ(tokenizer["model"]["merges"], json::parse(R"([["a","b"]])"));
  EXPECT_EQ(tokenizer["decoder"]["type"], "ByteLevel");
}

TEST(GgufTokenizerTest, AddsControlTokensAsSpecialAndUserDefinedOnesAsPlain) {
  const json added = TokenizerJson(Tokenizer())["added_tokens"];
  ASSERT_EQ(added.size(), 2u);
  EXPECT_EQ(added[0]["id"], 0);
  EXPECT_EQ(added[0]["content"], "<s>");
  EXPECT_EQ(added[0]["special"], true);
  EXPECT_EQ(added[1]["content"], "<tool>");
  EXPECT_EQ(added[1]["special"], false);
}

TEST(GgufTokenizerTest, SmollmSplitsSingleDigits) {
  const json steps = TokenizerJson(Tokenizer("smollm"))["pre_tokenizer"]["pretokenizers"];
  EXPECT_EQ(steps[0], json::parse(R"({"type":"Digits","individual_digits":true})"));
  EXPECT_EQ(steps[1]["use_regex"], true);
  EXPECT_EQ(steps[1]["add_prefix_space"], false);
}

TEST(GgufTokenizerTest, Qwen2NormalizesAndSplitsSingleDigits) {
  const json tokenizer = TokenizerJson(Tokenizer("qwen2"));
  EXPECT_EQ(tokenizer["normalizer"]["type"], "NFC");
  const json steps = tokenizer["pre_tokenizer"]["pretokenizers"];
  EXPECT_THAT(steps[0]["pattern"]["Regex"].get<std::string>(), HasSubstr(R"(|\p{N}| ?)"));
  EXPECT_EQ(steps[1]["use_regex"], false);
  EXPECT_EQ(tokenizer["model"]["ignore_merges"], false);
}

TEST(GgufTokenizerTest, Llama3GroupsDigitsIgnoresMergesAndBegins) {
  const auto text = Text(Tokenizer("llama-bpe"));
  ASSERT_THAT(text, IsOk());
  const json tokenizer = json::parse(text->tokenizer_json);
  EXPECT_THAT(tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"].get<std::string>(),
              HasSubstr(R"(\p{N}{1,3})"));
  EXPECT_EQ(tokenizer["model"]["ignore_merges"], true);
  EXPECT_TRUE(text->add_bos_token);
  EXPECT_EQ(tokenizer["post_processor"]["type"], "TemplateProcessing");
  EXPECT_EQ(tokenizer["post_processor"]["special_tokens"]["<s>"]["ids"], json::array({0}));
}

TEST(GgufTokenizerTest, AddBosTokenOfTheFileWins) {
  EXPECT_FALSE(
      Text(Tokenizer("llama-bpe").Bool("tokenizer.ggml.add_bos_token", false))->add_bos_token);
  EXPECT_TRUE(Text(Tokenizer("qwen2").Bool("tokenizer.ggml.add_bos_token", true))->add_bos_token);
}

TEST(GgufTokenizerTest, ReadsTokenTextsAndChatTemplate) {
  const auto text = Text(Tokenizer().String("tokenizer.chat_template", "{{ messages }}"));
  ASSERT_THAT(text, IsOk());
  EXPECT_EQ(text->bos_token, "<s>");
  EXPECT_EQ(text->eos_token, "ab");
  EXPECT_EQ(text->chat_template, "{{ messages }}");
  EXPECT_FALSE(text->add_bos_token);
}

TEST(GgufTokenizerTest, NamesWhatItDoesNotKnow) {
  EXPECT_THAT(Text(Tokenizer("tekken")), StatusIs(StatusCode::kUnimplemented, HasSubstr("tekken")));
  GgufBuilder llama;
  llama.String("tokenizer.ggml.model", "llama");
  EXPECT_THAT(Text(llama), StatusIs(StatusCode::kUnimplemented, HasSubstr("got llama")));
  EXPECT_THAT(Text(GgufBuilder()),
              StatusIs(StatusCode::kNotFound, HasSubstr("tokenizer.ggml.model")));
  EXPECT_THAT(Text(Tokenizer().Bool("tokenizer.ggml.add_eos_token", true)),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("add_eos_token")));
}

GgufBuilder Broken(const std::vector<std::string>& tokens, const std::vector<std::string>& merges,
                   uint32_t bos) {
  GgufBuilder builder;
  builder.String("tokenizer.ggml.model", "gpt2")
      .Strings("tokenizer.ggml.tokens", tokens)
      .Strings("tokenizer.ggml.merges", merges)
      .Uint32("tokenizer.ggml.bos_token_id", bos);
  return builder;
}

TEST(GgufTokenizerTest, RefusesMergesOutsideTheVocabulary) {
  for (const char* merge : {"a c", "ab", "", " ", "a ", "b a"}) {
    EXPECT_THAT(Text(Broken({"a", "b", "ab"}, {"a b", merge}, 0)),
                StatusIs(StatusCode::kDataLoss, HasSubstr("merges[1]")))
        << merge;
  }
}

TEST(GgufTokenizerTest, RefusesATokenIdOutsideTheVocabulary) {
  EXPECT_THAT(Text(Broken({"a"}, {}, 1)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("got 1")));
}

TEST(GgufTokenizerTest, RefusesTextThatIsNotUtf8) {
  EXPECT_THAT(Text(Broken({"a", "\xff"}, {}, 0)),
              StatusIs(StatusCode::kDataLoss, HasSubstr("UTF-8")));
}

TEST(GgufTokenizerTest, RefusesTypesThatDoNotFitTheTokens) {
  EXPECT_THAT(Text(Broken({"a", "b"}, {}, 0)
                       .Numbers<int32_t>("tokenizer.ggml.token_type", GgufType::kInt32, {1})),
              StatusIs(StatusCode::kDataLoss, HasSubstr("expected 2")));
}

}  // namespace
}  // namespace hexport::checkpoint
