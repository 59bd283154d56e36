#include "text/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/status_matchers.h"

namespace hexport {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

bool Matches(std::string_view pattern, RegexMode mode, std::string_view text) {
  const auto regex = Regex::Compile(pattern, mode);
  EXPECT_THAT(regex, IsOk());
  const Result<bool> matches = (*regex)->Matches(text);
  EXPECT_THAT(matches, IsOk());
  return *matches;
}

// The expected values are what Python 3.11's re answers.
TEST(RegexTest, FullMatchTakesTheWholeText) {
  EXPECT_TRUE(Matches("a|ab", RegexMode::kFullMatch, "ab"));
  EXPECT_FALSE(Matches("a|b", RegexMode::kFullMatch, "ab"));
  EXPECT_FALSE(Matches("q_proj", RegexMode::kFullMatch, "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(Matches(R"(.*\.layers\.[01]\..*(q|v)_proj)", RegexMode::kFullMatch,
                      "model.layers.1.self_attn.v_proj"));
  EXPECT_FALSE(Matches("a", RegexMode::kFullMatch, "a\n"));
  EXPECT_TRUE(Matches("", RegexMode::kFullMatch, ""));
}

TEST(RegexTest, MatchTakesABeginning) {
  EXPECT_TRUE(Matches("ab?", RegexMode::kMatch, "abc"));
  EXPECT_FALSE(Matches("b", RegexMode::kMatch, "abc"));
  EXPECT_TRUE(Matches(R"((.*\.)?(q_proj)$)", RegexMode::kMatch, "model.q_proj"));
  EXPECT_FALSE(Matches(R"((.*\.)?(q_proj)$)", RegexMode::kMatch, "model.q_proj2"));
  EXPECT_FALSE(Matches(R"((.*\.)?(proj)$)", RegexMode::kMatch, "model.q_proj"));
}

TEST(RegexTest, PythonOnlySyntax) {
  EXPECT_TRUE(
      Matches(R"(^(?!.*vision).*layers.*q_proj$)", RegexMode::kFullMatch, "model.layers.0.q_proj"));
  EXPECT_FALSE(Matches(R"(^(?!.*vision).*layers.*q_proj$)", RegexMode::kFullMatch,
                       "vision.layers.0.q_proj"));
  EXPECT_TRUE(Matches(R"((?P<half>ab)(?P=half))", RegexMode::kFullMatch, "abab"));
  EXPECT_TRUE(Matches("(?i)Q_PROJ", RegexMode::kFullMatch, "q_proj"));
  EXPECT_TRUE(Matches("(?x) q _proj # the query", RegexMode::kFullMatch, "q_proj"));
}

TEST(RegexTest, RefusesABadPatternAndNamesIt) {
  EXPECT_THAT(Regex::Compile("(q_proj", RegexMode::kMatch),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("(q_proj")));
  EXPECT_THAT(Regex::Compile("\xff", RegexMode::kMatch),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("UTF-8")));
  EXPECT_THAT(Regex::Compile(std::string(70000, 'a'), RegexMode::kMatch),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("65536")));
}

TEST(RegexTest, GivesUpOnEndlessBacktracking) {
  // The look-ahead keeps this from the engine that cannot backtrack.
  const auto regex = Regex::Compile(R"((?=x)(x+x+)+y)", RegexMode::kFullMatch);
  ASSERT_THAT(regex, IsOk());
  EXPECT_THAT((*regex)->Matches(std::string(64, 'x')),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("(x+x+)+y")));
}

}  // namespace
}  // namespace hexport
