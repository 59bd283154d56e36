#include "checkpoint/hf_text.h"

#include <gtest/gtest.h>

#include <string>

#include "base/file.h"
#include "base/status_matchers.h"
#include "base/test_directory.h"

namespace hexport {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kList[] =
    R"({"chat_template": [{"name": "default", "template": "D"},
                          {"name": "tool_use", "template": "T"}]})";

// A folder with a chat template where the test puts it, and no weights.
class HfTextTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    ASSERT_THAT(WriteFileAtomically(folder_ / name, text), IsOk());
  }
  // What would be rendered: "name=source".
  std::string Chosen(const std::string& name = "", bool tools = false) {
    auto text = OpenText(folder_.path());
    if (!text.ok()) return text.status().ToString();
    auto chosen = SelectTemplate(*text, name, tools);
    return chosen.ok() ? chosen->name + "=" + chosen->source : chosen.status().ToString();
  }
  testing::TestDirectory folder_;
};

TEST_F(HfTextTest, C01TheFileComesBeforeTheString) {
  Write("tokenizer_config.json", R"({"chat_template": "S"})");
  EXPECT_EQ(Chosen(), "default=S");
  Write("chat_template.jinja", "F");
  EXPECT_EQ(Chosen(), "default=F");
}

TEST_F(HfTextTest, C01TheFileComesBeforeTheList) {
  Write("tokenizer_config.json", kList);
  Write("chat_template.jinja", "F");
  EXPECT_EQ(Chosen("", true), "default=F");
}

TEST_F(HfTextTest, C01ToolUseIsPickedWhenToolsAreGiven) {
  Write("tokenizer_config.json", kList);
  EXPECT_EQ(Chosen(), "default=D");
  EXPECT_EQ(Chosen("", true), "tool_use=T");
  EXPECT_EQ(Chosen("default", true), "default=D");
}

TEST_F(HfTextTest, C01AdditionalFilesAreNamedAfterThemselves) {
  Write("chat_template.jinja", "F");
  Write("additional_chat_templates/tool_use.jinja", "A");
  Write("additional_chat_templates/rag.jinja", "R");
  EXPECT_EQ(Chosen("", true), "tool_use=A");
  EXPECT_EQ(Chosen("rag"), "rag=R");
  auto text = OpenText(folder_.path());
  ASSERT_THAT(text, IsOk());
  EXPECT_THAT(SelectTemplate(*text, "rag", false)->where, HasSubstr("rag.jinja"));
}

TEST_F(HfTextTest, C01NoTemplateIsAnErrorNotChatMl) {
  EXPECT_THAT(SelectTemplate(TextAssets(), "", false),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("--chat-template")));
}

TEST_F(HfTextTest, AnUnknownNameListsTheKnown) {
  Write("tokenizer_config.json", kList);
  auto text = OpenText(folder_.path());
  ASSERT_THAT(text, IsOk());
  EXPECT_THAT(
      SelectTemplate(*text, "rag", false),
      StatusIs(StatusCode::kNotFound, AllOf(HasSubstr("default, tool_use"), HasSubstr("'rag'"))));
}

TEST_F(HfTextTest, AListOfOtherThingsIsRefused) {
  Write("tokenizer_config.json", R"({"chat_template": ["x"]})");
  EXPECT_THAT(OpenText(folder_.path()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("chat_template")));
}

constexpr char kVocab[] = R"({"a": 0, "b": 1, "ab": 2})";

TEST_F(HfTextTest, ByteLevelFilesBecomeATokenizer) {
  Write("vocab.json", kVocab);
  Write("merges.txt", "#version: 0.2\na b\n");
  Write("tokenizer_config.json", R"({"tokenizer_class": "Qwen2TokenizerFast",
      "eos_token": "<end>", "added_tokens_decoder": {"3": {"content": "<tool>"}}})");
  auto text = OpenText(folder_.path());
  ASSERT_THAT(text, IsOk());
  EXPECT_THAT(text->tokenizer_json, AllOf(HasSubstr(R"(["a","b"])"), HasSubstr("<tool>")));
  // eos_token is not in any file's vocabulary: it gets the next id.
  EXPECT_THAT(text->tokenizer_json, HasSubstr(R"("content":"<end>","id":4)"));
}

TEST_F(HfTextTest, AnAddedTokenMayNotTakeAnotherIdThanTheVocabularys) {
  Write("vocab.json", kVocab);
  Write("merges.txt", "a b\n");
  Write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer",
      "added_tokens_decoder": {"7": {"content": "ab"}}})");
  EXPECT_THAT(OpenText(folder_.path()),
              StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("'ab'"), HasSubstr("got 7"))));
}

TEST_F(HfTextTest, ABrokenMergesLineNamesItsNumber) {
  Write("vocab.json", kVocab);
  Write("merges.txt", "a b\nab\n");
  Write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})");
  EXPECT_THAT(OpenText(folder_.path()),
              StatusIs(StatusCode::kDataLoss, HasSubstr("merges.txt:2: expected two tokens")));
}

}  // namespace
}  // namespace hexport
