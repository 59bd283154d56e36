// Known faults of tokenizers, one small tokenizer each, against Hugging Face's library:
// tests/generate/tokenizer_cases.py.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/status_matchers.h"
#include "base/test_directory.h"
#include "checkpoint/checkpoint.h"
#include "text/chat_template.h"
#include "text/fingerprint.h"
#include "text/tokenizer.h"

namespace hexport {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::map<std::string, json>& Cases() {
  static const std::map<std::string, json> cases = [] {
    std::map<std::string, json> named;
    auto text = ReadTextFile(HEXPORT_TEST_DATA "/text/tokenizer_cases.json");
    EXPECT_THAT(text, IsOk());
    if (!text.ok()) return named;
    for (const json& one : json::parse(*text, nullptr, false)) {
      named[one["name"].get<std::string>()] = one;
    }
    return named;
  }();
  return cases;
}

std::unique_ptr<Tokenizer> Open(const std::string& name) {
  auto tokenizer = Tokenizer::FromJson(Cases().at(name)["tokenizer"].dump());
  EXPECT_THAT(tokenizer, IsOk());
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// Ids, with and without the post-processor's tokens, and offsets of every row.
void ExpectRows(const std::string& name) {
  const auto tokenizer = Open(name);
  ASSERT_NE(tokenizer, nullptr);
  for (const json& row : Cases().at(name)["rows"]) {
    const std::string text = row["text"].get<std::string>();
    SCOPED_TRACE(name + ": " + row["text"].dump());
    auto pieces = tokenizer->EncodePieces(text, true);
    ASSERT_THAT(pieces, IsOk());
    json ids = json::array(), offsets = json::array();
    for (const TokenPiece& piece : *pieces) {
      ids.push_back(piece.id);
      offsets.push_back(json::array({piece.begin, piece.end}));
    }
    EXPECT_EQ(ids, row["ids"]);
    EXPECT_EQ(offsets, row["offsets"]);
    EXPECT_EQ(*tokenizer->Encode(text, true), row["ids"].get<std::vector<int32_t>>());
    EXPECT_EQ(*tokenizer->Encode(text, false),
              row["ids_without_special"].get<std::vector<int32_t>>());
  }
}

TEST(TokenizerCases, T01MergesAsStringsAndAsPairsGiveTheSameIds) {
  ExpectRows("T01 pairs");
  ExpectRows("T01 strings");
  EXPECT_EQ(Cases().at("T01 pairs")["rows"], Cases().at("T01 strings")["rows"]);
  ExpectRows("T01 a piece with a space");
}

TEST(TokenizerCases, T01AVocabularyWithoutMergesIsAnErrorNotBytes) {
  json tokenizer = Cases().at("T01 pairs")["tokenizer"];
  for (int i = 0; i < 600; ++i) {
    tokenizer["model"]["vocab"]["word" + std::to_string(i)] = 20 + i;
  }
  tokenizer["model"]["merges"] = json::array();
  testing::TestDirectory folder;
  ASSERT_THAT(WriteFileAtomically(folder / "tokenizer.json", tokenizer.dump()), IsOk());
  EXPECT_THAT(
      OpenText(folder.path()),
      StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("model.merges"), HasSubstr("byte by byte"))));
}

TEST(TokenizerCases, T02SplitsByThePatternOfTheFile) {
  ExpectRows("T02 qwen2");
  ExpectRows("T02 llama3");
}

TEST(TokenizerCases, T02DigitsStandAloneInQwen2AndByThreesInLlama3) {
  const auto qwen2 = Open("T02 qwen2"), llama3 = Open("T02 llama3");
  ASSERT_TRUE(qwen2 != nullptr && llama3 != nullptr);
  EXPECT_EQ(qwen2->Encode("12345678", false)->size(), 8U);
  EXPECT_EQ(llama3->Encode("12345678", false)->size(), 3U);
  EXPECT_EQ(qwen2->Encode("->", false)->size(), 1U);
}

TEST(TokenizerCases, T02AnUnknownPatternIsAnError) {
  json tokenizer = Cases().at("T02 qwen2")["tokenizer"];
  tokenizer["pre_tokenizer"]["pattern"]["Regex"] = "(?<";
  EXPECT_THAT(Tokenizer::FromJson(tokenizer.dump()),
              StatusIs(StatusCode::kDataLoss, HasSubstr("")));
  tokenizer["pre_tokenizer"] = {{"type", "Telepathy"}};
  EXPECT_THAT(Tokenizer::FromJson(tokenizer.dump()),
              StatusIs(StatusCode::kDataLoss, HasSubstr("")));
}

TEST(TokenizerCases, T05FlagsOfAddedTokensSwallowSpaceAndKeepOffsets) { ExpectRows("T05 flags"); }

TEST(TokenizerCases, T07ExactlyOneBosWhateverAddsIt) {
  ExpectRows("T07 bos");
  const auto tokenizer = Open("T07 bos");
  ASSERT_NE(tokenizer, nullptr);
  const int32_t bos = tokenizer->TokenToId("<|begin_of_text|>");
  auto chat_template = ChatTemplate::Create(
      "{{ bos_token }}<|start_header_id|>{{ messages[0].content }}", "<|begin_of_text|>", "");
  ASSERT_THAT(chat_template, IsOk());
  auto text = (*chat_template)->Render(R"([{"role": "user", "content": "hi"}])", true, "");
  ASSERT_THAT(text, IsOk());
  // A rendered chat: the template's own BOS only.
  const std::vector<int32_t> chat = *tokenizer->Encode(*text, false);
  EXPECT_EQ(std::count(chat.begin(), chat.end(), bos), 1);
  EXPECT_EQ(chat[1], tokenizer->TokenToId("<|start_header_id|>"));
  // A raw completion: the post-processor's.
  const std::vector<int32_t> raw = *tokenizer->Encode("hi", true);
  EXPECT_EQ(std::count(raw.begin(), raw.end(), bos), 1);
  EXPECT_EQ(raw[0], bos);
}

TEST(TokenizerCases, T09ASwappedIdAndAChangedPatternShowInTheProbes) {
  const json base = Cases().at("T02 qwen2")["tokenizer"];
  json swapped = base, other = base;
  std::swap(swapped["model"]["vocab"]["x"], swapped["model"]["vocab"]["->"]);
  other["pre_tokenizer"]["pattern"] =
      Cases().at("T02 llama3")["tokenizer"]["pre_tokenizer"]["pattern"];
  auto tokenizer = Tokenizer::FromJson(base.dump());
  ASSERT_THAT(tokenizer, IsOk());
  for (const json& changed : {swapped, other}) {
    auto second = Tokenizer::FromJson(changed.dump());
    ASSERT_THAT(second, IsOk());
    auto differing = CompareTokenizers(**tokenizer, **second);
    ASSERT_THAT(differing, IsOk());
    ASSERT_FALSE(differing->empty());
    EXPECT_NE(differing->front().ids_a, differing->front().ids_b);
    EXPECT_NE(Fingerprint(**tokenizer)->sha256, Fingerprint(**second)->sha256);
  }
  EXPECT_THAT(CheckIdsWithin(**tokenizer, (*tokenizer)->vocab_size()), IsOk());
  EXPECT_THAT(CheckIdsWithin(**tokenizer, (*tokenizer)->vocab_size() - 1),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("rows")));
}

TEST(TokenizerCases, C08TheFirstDifferingTokenIsTold) {
  const auto tokenizer = Open("T07 bos");
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<int32_t> trained = *tokenizer->Encode("<|begin_of_text|>abc", false);
  const std::vector<int32_t> served = *tokenizer->Encode("<|begin_of_text|>abd", false);
  EXPECT_EQ(FirstDifference(trained, served), 3U);
  EXPECT_EQ(FirstDifference(trained, trained), std::nullopt);
}

}  // namespace
}  // namespace hexport
