// Chat templates against transformers' own rendering: tests/generate/template_golden.py.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
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

}  // namespace
}  // namespace hexport
