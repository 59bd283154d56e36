#include "text/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "base/status_matchers.h"

namespace hexport {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// A byte-level BPE without merges over some letters; `h` and `e` are the ids of those letters.
std::unique_ptr<Tokenizer> Toy(int h, int e, const std::string& added = "") {
  const std::string json =
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)" + added +
      R"(],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,)"
      R"("trim_offsets":true,"use_regex":true},"post_processor":null,"decoder":{"type":"ByteLevel",)"
      R"("add_prefix_space":true,"trim_offsets":true,"use_regex":true},"model":{"type":"BPE",)"
      R"("dropout":null,"unk_token":"?","continuing_subword_prefix":null,"end_of_word_suffix":null,)"
      R"("fuse_unk":false,"vocab":{"?":0,"h":)" +
      std::to_string(h) + R"(,"e":)" + std::to_string(e) + R"(,"l":3,"o":4},"merges":[]}})";
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromJson(json);
  EXPECT_THAT(tokenizer, IsOk());
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(FingerprintTest, TwoHundredDifferentProbes) {
  const auto probes = TokenizerProbes();
  EXPECT_THAT(probes, SizeIs(200));
  EXPECT_EQ(std::set(probes.begin(), probes.end()).size(), 200u);
}

TEST(FingerprintTest, SameTokenizerSameHash) {
  const Result<TokenizerFingerprint> a = Fingerprint(*Toy(1, 2)), b = Fingerprint(*Toy(1, 2));
  ASSERT_THAT(a, IsOk());
  ASSERT_THAT(b, IsOk());
  EXPECT_EQ(a->sha256, b->sha256);
  EXPECT_THAT(a->sha256, SizeIs(64));
  EXPECT_EQ(a->highest_id, 4);
}

// T09: a tokenizer with one swapped id.
TEST(FingerprintTest, T09SwappedIdIsFoundAndListed) {
  const auto a = Toy(1, 2), b = Toy(2, 1);
  ASSERT_THAT(Fingerprint(*a), IsOk());
  EXPECT_NE(Fingerprint(*a)->sha256, Fingerprint(*b)->sha256);
  const Result<std::vector<DifferingProbe>> differing = CompareTokenizers(*a, *b);
  ASSERT_THAT(differing, IsOk());
  ASSERT_FALSE(differing->empty());
  EXPECT_EQ(differing->front().text, "hello");
  EXPECT_THAT(differing->front().ids_a, Eq(std::vector<int32_t>{1, 2, 3, 3, 4}));
  EXPECT_THAT(differing->front().ids_b, Eq(std::vector<int32_t>{2, 1, 3, 3, 4}));
  for (const DifferingProbe& probe : *differing)
    EXPECT_THAT(probe.text, ::testing::AnyOf(HasSubstr("h"), HasSubstr("e")));
}

// T09, L10: a token without a row.
TEST(FingerprintTest, T09IdsBeyondTheRowsAreNamed) {
  const auto tokenizer =
      Toy(1, 2,
          R"({"id":5,"content":"<extra>","single_word":false,"lstrip":false,"rstrip":false,)"
          R"("normalized":false,"special":true})");
  if (tokenizer == nullptr) GTEST_FAIL();
  EXPECT_THAT(CheckIdsWithin(*tokenizer, tokenizer->vocab_size()), IsOk());
  EXPECT_THAT(CheckIdsWithin(*tokenizer, 1000), IsOk());
  EXPECT_THAT(
      CheckIdsWithin(*tokenizer, 5),
      StatusIs(StatusCode::kFailedPrecondition, AllOf(HasSubstr("<extra>"), HasSubstr("5 rows"))));
}

TEST(FirstDifferenceTest, IndexOrLengthOrNothing) {
  const std::vector<int32_t> a = {1, 2, 3}, b = {1, 9, 3}, prefix = {1, 2};
  EXPECT_EQ(FirstDifference(a, a), std::nullopt);
  EXPECT_EQ(FirstDifference(a, b), 1u);
  EXPECT_EQ(FirstDifference(a, prefix), 2u);
  EXPECT_EQ(FirstDifference(prefix, a), 2u);
  EXPECT_EQ(FirstDifference({}, {}), std::nullopt);
}

}  // namespace
}  // namespace hexport
