// Chat templates against transformers' own rendering: tests/generate/template_golden.py and
// tests/generate/template_corpus.py.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/sha256.h"
#include "base/status_matchers.h"
#include "text/chat_template.h"

namespace hexport {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using nlohmann::ordered_json;
using ::testing::HasSubstr;

const ordered_json& Golden() {
  static const ordered_json golden = [] {
    auto text = ReadTextFile(HEXPORT_TEST_DATA "/text/template_golden.json");
    EXPECT_THAT(text, IsOk());
    return text.ok() ? ordered_json::parse(*text, nullptr, false) : ordered_json();
  }();
  return golden;
}

class ChatTemplateGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(ChatTemplateGolden, RendersWhatTransformersRenders) {
  const ordered_json& golden = Golden();
  const ordered_json* entry = nullptr;
  for (const ordered_json& candidate : golden["templates"]) {
    if (candidate["name"] == GetParam()) entry = &candidate;
  }
  ASSERT_NE(entry, nullptr);
  auto chat_template = ChatTemplate::Create((*entry)["source"].get<std::string>(),
                                            golden["bos_token"].get<std::string>(),
                                            golden["eos_token"].get<std::string>());
  ASSERT_THAT(chat_template, IsOk());
  ASSERT_EQ((*entry)["rendered"].size(), golden["conversations"].size());
  for (size_t i = 0; i < golden["conversations"].size(); ++i) {
    SCOPED_TRACE("conversation " + std::to_string(i));
    const ordered_json& conversation = golden["conversations"][i];
    const ordered_json& expected = (*entry)["rendered"][i];
    auto text = (*chat_template)
                    ->Render(conversation["messages"].dump(),
                             conversation.value("add_generation_prompt", false),
                             conversation.contains("extra") ? conversation["extra"].dump() : "");
    if (expected.contains("error")) {
      EXPECT_THAT(text, StatusIs(StatusCode::kInvalidArgument,
                                 HasSubstr(expected["error"].get<std::string>())));
    } else {
      ASSERT_THAT(text, IsOk());
      EXPECT_EQ(*text, expected["text"].get<std::string>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ChatTemplateGolden,
                         ::testing::Values("smollm2", "llama3_style", "qwen2_style", "qwen3_style",
                                           "mistral_style", "gemma_style", "features"),
                         [](const auto& instance) { return instance.param; });

const ordered_json& Corpus() {
  static const ordered_json corpus = [] {
    auto text = ReadTextFile(HEXPORT_TEST_DATA "/text/template_corpus.json");
    EXPECT_THAT(text, IsOk());
    return text.ok() ? ordered_json::parse(*text, nullptr, false) : ordered_json();
  }();
  return corpus;
}

std::vector<std::string> CorpusNames() {
  std::vector<std::string> names;
  for (const auto& [name, rows] : Corpus()["rendered"].items()) names.push_back(name);
  return names;
}

Result<std::string> CorpusSource(const std::string& name) {
  if (Corpus()["sources"].contains(name)) return Corpus()["sources"][name].get<std::string>();
  return ReadTextFile(HEXPORT_TEST_DATA "/text/templates/" + name + ".jinja");
}

void ExpectRendering(const Result<std::string>& text, const ordered_json& expected) {
  if (expected.contains("raised")) {
    EXPECT_THAT(text, StatusIs(StatusCode::kInvalidArgument,
                               "chat template: " + expected["raised"].get<std::string>()));
  } else if (expected.contains("error")) {
    // Python refuses an operation: so does hexport, in its own words.
    EXPECT_THAT(text, StatusIs(StatusCode::kInvalidArgument, HasSubstr("chat template: ")))
        << expected.dump();
  } else if (expected.contains("sha256")) {
    ASSERT_THAT(text, IsOk());
    EXPECT_EQ(text->size(), expected["bytes"].get<size_t>());
    EXPECT_EQ(Sha256Hex(*text), expected["sha256"].get<std::string>()) << *text;
  } else {
    ASSERT_THAT(text, IsOk());
    EXPECT_EQ(*text, expected["text"].get<std::string>());
  }
}

// C01 to C09: no, empty and late system messages, null content, parts, tools, reasoning, the
// thinking switch, in the constructs of real templates.
class TemplateCorpus : public ::testing::TestWithParam<std::string> {};

void ExpectCorpusRow(const ordered_json& corpus, const std::string& name,
                     const std::string& source) {
  auto chat_template = ChatTemplate::Create(source, "<s>", "</s>");
  ASSERT_THAT(chat_template, IsOk());
  const ordered_json& rendered = corpus["rendered"][name];
  ASSERT_EQ(rendered.size(), corpus["conversations"].size());
  for (size_t i = 0; i < rendered.size(); ++i) {
    const ordered_json& conversation = corpus["conversations"][i];
    SCOPED_TRACE("conversation " + std::to_string(i) + ": " + conversation.dump().substr(0, 300));
    ExpectRendering(
        (*chat_template)
            ->Render(conversation["messages"].dump(),
                     conversation.value("add_generation_prompt", false),
                     conversation.contains("extra") ? conversation["extra"].dump() : ""),
        rendered[i]);
  }
}

TEST_P(TemplateCorpus, C07EveryConversationIsByteEqualToTransformers) {
  auto source = CorpusSource(GetParam());
  ASSERT_THAT(source, IsOk());
  ExpectCorpusRow(Corpus(), GetParam(), *source);
}

// Templates that may not be kept here: template_corpus.py --package makes such a file.
TEST(TemplateCorpus, RealTemplatesOfAPackage) {
  const char* path = std::getenv("HEXPORT_TEMPLATE_CORPUS");
  if (path == nullptr) GTEST_SKIP() << "HEXPORT_TEMPLATE_CORPUS is not set";
  auto text = ReadTextFile(path);
  ASSERT_THAT(text, IsOk());
  const ordered_json corpus = ordered_json::parse(*text, nullptr, false);
  for (const auto& [name, source] : corpus["sources"].items()) {
    SCOPED_TRACE(name);
    ExpectCorpusRow(corpus, name, source.get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Templates, TemplateCorpus, ::testing::ValuesIn(CorpusNames()),
                         [](const auto& instance) { return instance.param; });

// A construct that hexport does not have may be refused when the template is loaded, with its
// place; nothing may come out different.
TEST(TemplateCorpus, C07EveryExpressionIsEqualOrRefusedAtLoadWithItsPlace) {
  const ordered_json& corpus = Corpus();
  const ordered_json& conversation = corpus["conversations"][3];
  int equal = 0, refused = 0;
  for (const ordered_json& expression : corpus["expressions"]) {
    const std::string source = expression["source"].get<std::string>();
    SCOPED_TRACE(source);
    auto chat_template = ChatTemplate::Create(source, "<s>", "</s>");
    if (!chat_template.ok()) {
      EXPECT_THAT(chat_template.status().message(),
                  ::testing::ContainsRegex("template: 1:([0-9]+:)? "));
      if (!expression.contains("error")) {
        ++refused;
      }
      continue;
    }
    ExpectRendering((*chat_template)->Render(conversation["messages"].dump(), true, ""),
                    expression);
    ++equal;
  }
  EXPECT_GE(equal, 200);
  EXPECT_LE(refused, 18);
}

// C06: reasoning of finished turns goes; that of the tool chain since the last user message stays;
// no empty block is put into the history. The construct is Qwen3's.
TEST(TemplateCorpus, C06OldReasoningGoesAndTheCurrentStays) {
  auto source = CorpusSource("qwen3");
  ASSERT_THAT(source, IsOk());
  auto chat_template = ChatTemplate::Create(*source, "<s>", "</s>");
  ASSERT_THAT(chat_template, IsOk());
  const auto finished = (*chat_template)
                            ->Render(R"([
      {"role": "user", "content": "1+1"},
      {"role": "assistant", "content": "<think>\nold\n</think>\n\n2"},
      {"role": "user", "content": "2+2"}])",
                                     true, "");
  ASSERT_THAT(finished, IsOk());
  EXPECT_EQ(finished->find("old"), std::string::npos) << *finished;
  EXPECT_EQ(finished->find("<think>"), std::string::npos) << *finished;
  EXPECT_NE(finished->find("<|im_start|>assistant\n2<|im_end|>"), std::string::npos) << *finished;
  const auto chain = (*chat_template)
                         ->Render(R"([
      {"role": "user", "content": "1+1"},
      {"role": "assistant", "content": "<think>\nold\n</think>\n\n2"},
      {"role": "user", "content": "weather?"},
      {"role": "assistant", "content": "", "reasoning_content": "now", "tool_calls": [
        {"type": "function", "function": {"name": "f", "arguments": {}}}]},
      {"role": "tool", "content": "rain"}])",
                                  true, "");
  ASSERT_THAT(chain, IsOk());
  EXPECT_EQ(chain->find("old"), std::string::npos) << *chain;
  EXPECT_NE(chain->find("<think>\nnow\n</think>"), std::string::npos) << *chain;
}

TEST(TemplateCorpus, HoldsTwentyFiveTemplatesAndThirtyConversations) {
  EXPECT_GE(Corpus()["rendered"].size(), 25U);
  EXPECT_GE(Corpus()["conversations"].size(), 30U);
}

}  // namespace
}  // namespace hexport
