#include "evaluate/task_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "base/status_matchers.h"

namespace hexport::evaluate {
namespace {

using hexport::testing::IsOk;
using hexport::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Tokenizer> WordTokenizer() {
  auto tokenizer = Tokenizer::FromJson(
      R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
          "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
          "post_processor": null, "decoder": null,
          "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4},
                    "unk_token": "a"}})");
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

Question Ask(const std::string& context, std::vector<std::string> choices, size_t answer) {
  return {context, std::move(choices), answer, 7};
}

TEST(ParseTasks, ReadsQuestionsAndContexts) {
  const auto questions = ParseTasks(
      "{\"question\": \"a?\", \"choices\": [\"b\", \"c\"], \"answer\": 1}\n\n"
      "{\"context\": \"d\", \"choices\": [\"a\", \"b\", \"e\"], \"answer\": 0}",
      "t.jsonl");
  ASSERT_THAT(questions, IsOk());
  ASSERT_EQ(questions->size(), 2U);
  EXPECT_EQ((*questions)[0].context, "a?");
  EXPECT_EQ((*questions)[0].answer, 1U);
  EXPECT_THAT((*questions)[1].choices, ElementsAre("a", "b", "e"));
  EXPECT_EQ((*questions)[1].line, 3);
}

TEST(ParseTasks, NamesFileLineAndField) {
  const std::string good = "{\"question\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 1}\n";
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"{\"question\": ", "got broken JSON"},
      {"[1]", "got something else"},
      {R"({"choices": ["b", "c"], "answer": 1})", "\"question\" or \"context\""},
      {R"({"question": 3, "choices": ["b", "c"], "answer": 1})", "\"question\" or \"context\""},
      {R"({"question": "a", "choices": ["b"], "answer": 0})", "two texts or more"},
      {R"({"question": "a", "choices": ["b", ""], "answer": 0})", "none of them empty"},
      {R"({"question": "a", "choices": ["b", 1], "answer": 0})", "none of them empty"},
      {R"({"question": "a", "choices": ["b", "c"]})", "from 0 to 1, got none"},
      {R"({"question": "a", "choices": ["b", "c"], "answer": 2})", "from 0 to 1, got 2"},
      {R"({"question": "a", "choices": ["b", "c"], "answer": -1})", "got -1"},
      {R"({"question": "a", "choices": ["b", "c"], "answer": 18446744073709551615})", "got 184"},
      {R"({"question": "a", "choices": ["b", "c"], "answer": [[1]]})", "got something nested"},
      {R"({"question": "a", "choices": ["b", "c"], "answer": "b"})", "got \"b\""}};
  for (const auto& [line, message] : bad) {
    EXPECT_THAT(ParseTasks(good + line, "t.jsonl"),
                StatusIs(StatusCode::kInvalidArgument,
                         ::testing::AllOf(HasSubstr("t.jsonl:2: "), HasSubstr(message))))
        << line;
  }
  EXPECT_THAT(ParseTasks("\n \n", "t.jsonl"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("t.jsonl: expected a question")));
}

TEST(MakeCandidates, PutsASpaceBetweenAndFindsTheChoice) {
  const auto candidates =
      MakeCandidates({Ask("a b", {"c", "d e"}, 0)}, *WordTokenizer(), 16, "t.jsonl");
  ASSERT_THAT(candidates, IsOk());
  ASSERT_EQ(candidates->size(), 2U);
  EXPECT_THAT((*candidates)[1].ids, ElementsAre(0, 1, 3, 4));
  EXPECT_EQ((*candidates)[1].first, 2U);
  EXPECT_EQ((*candidates)[1].choice, 1U);
  EXPECT_EQ((*candidates)[1].characters, 3);
}

TEST(MakeCandidates, CutsTheBeginningOfALongContext) {
  const auto candidates =
      MakeCandidates({Ask("a b c d", {"e", "e a"}, 0)}, *WordTokenizer(), 3, "t.jsonl");
  ASSERT_THAT(candidates, IsOk());
  EXPECT_THAT((*candidates)[0].ids, ElementsAre(2, 3, 4));
  EXPECT_EQ((*candidates)[0].first, 2U);
  EXPECT_THAT((*candidates)[1].ids, ElementsAre(3, 4, 0));
  EXPECT_EQ((*candidates)[1].first, 1U);
}

TEST(MakeCandidates, RefusesWhatCannotBeScored) {
  EXPECT_THAT(MakeCandidates({Ask("a", {"b", "c d e"}, 0)}, *WordTokenizer(), 3, "t.jsonl"),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("t.jsonl:7: choice 1: expected at most 2 tokens")));
  EXPECT_THAT(MakeCandidates({Ask("", {"b", "c"}, 0)}, *WordTokenizer(), 16, "t.jsonl"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("expected a context")));
}

// The long choice has the lower likelihood in all and the higher one a character.
TEST(ScoreTasks, CountsRawAndNormalisedLikelihood) {
  const std::vector<Question> questions = {Ask("a", {"b", "c d e a"}, 1), Ask("a", {"b", "c"}, 0)};
  std::vector<Candidate> candidates(4);
  for (size_t i = 0; i < 4; ++i) {
    candidates[i].question = i / 2;
    candidates[i].choice = i % 2;
    candidates[i].characters = i == 1 ? 7 : 1;
  }
  const TaskScores scores = ScoreTasks(questions, candidates, {-2, -3, -1, -4});
  EXPECT_EQ(scores.questions, 2);
  EXPECT_DOUBLE_EQ(scores.acc, 0.5);
  EXPECT_DOUBLE_EQ(scores.acc_norm, 1.0);
}

}  // namespace
}  // namespace hexport::evaluate
