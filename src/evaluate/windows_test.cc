#include "evaluate/windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/status_matchers.h"
#include "base/test_directory.h"

namespace hexport::evaluate {
namespace {

using hexport::testing::IsOk;
using hexport::testing::StatusIs;
using hexport::testing::TestDirectory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Words "a" to "e" are tokens 0 to 4, cut at white space.
TextAssets WordTokenizer() {
  TextAssets text;
  text.tokenizer_json =
      R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
          "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
          "post_processor": null, "decoder": null,
          "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4},
                    "unk_token": "a"}})";
  return text;
}

TEST(CutWindows, DoesNotOverlapAndDropsALoneToken) {
  EXPECT_THAT(CutWindows({{1, 2, 3, 4, 5, 6, 7}}, 3, 100),
              ElementsAre(ElementsAre(1, 2, 3), ElementsAre(4, 5, 6)));
  EXPECT_THAT(CutWindows({{1, 2, 3, 4, 5}}, 3, 100),
              ElementsAre(ElementsAre(1, 2, 3), ElementsAre(4, 5)));
}

TEST(CutWindows, StopsAtTheBudget) {
  EXPECT_THAT(CutWindows({{1, 2, 3, 4, 5, 6}}, 3, 5),
              ElementsAre(ElementsAre(1, 2, 3), ElementsAre(4, 5)));
  EXPECT_THAT(CutWindows({{1, 2, 3, 4, 5, 6}}, 3, 4), ElementsAre(ElementsAre(1, 2, 3)));
  EXPECT_THAT(CutWindows({{1, 2}, {3, 4}, {5, 6}}, 8, 4),
              ElementsAre(ElementsAre(1, 2), ElementsAre(3, 4)));
}

// Calibration takes paragraphs as samples; here the text stays whole.
TEST(LoadWindows, TakesATextFileWhole) {
  const TestDirectory folder;
  const auto path = folder.path() / "text.txt";
  ASSERT_THAT(WriteFileAtomically(path, "a b\n\nc\n\nd e\n"), IsOk());
  const auto windows = LoadWindows(path, WordTokenizer(), 4, 100);
  ASSERT_THAT(windows, IsOk());
  EXPECT_THAT(*windows, ElementsAre(ElementsAre(0, 1, 2, 3)));
}

TEST(LoadWindows, TakesEachLineOfJsonLinesAsAText) {
  const TestDirectory folder;
  const auto path = folder.path() / "text.jsonl";
  ASSERT_THAT(WriteFileAtomically(path, "{\"text\": \"a b c\"}\n{\"text\": \"d e\"}\n"), IsOk());
  const auto windows = LoadWindows(path, WordTokenizer(), 4, 100);
  ASSERT_THAT(windows, IsOk());
  EXPECT_THAT(*windows, ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4)));
}

TEST(LoadWindows, NamesFileAndLineOfABrokenLine) {
  const TestDirectory folder;
  const auto path = folder.path() / "text.jsonl";
  ASSERT_THAT(WriteFileAtomically(path, "{\"text\": \"a b\"}\n{\"words\": 1}\n"), IsOk());
  EXPECT_THAT(LoadWindows(path, WordTokenizer(), 4, 100),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("text.jsonl:2")));
}

TEST(LoadWindows, RefusesWhatHoldsNoWindow) {
  const TestDirectory folder;
  const auto path = folder.path() / "text.txt";
  ASSERT_THAT(WriteFileAtomically(path, "a"), IsOk());
  const TextAssets text = WordTokenizer();
  EXPECT_THAT(LoadWindows(path, text, 4, 100),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("text.txt: expected a text of 2")));
  EXPECT_THAT(LoadWindows(path, text, 1, 100),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("--context")));
  EXPECT_THAT(LoadWindows(path, text, 4, 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("--max-tokens")));
  EXPECT_THAT(LoadWindows(folder.path() / "none.txt", text, 4, 100),
              StatusIs(StatusCode::kNotFound, HasSubstr("none.txt")));
}

}  // namespace
}  // namespace hexport::evaluate
