#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <ctime>

#include "base/status_matchers.h"

namespace hexport {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kHi[] = R"([{"role": "user", "content": "hi"}])";

// The rendered text, or the status as text.
std::string Render(std::string_view source, std::string_view messages,
                   bool add_generation_prompt = false, std::string_view extra = "",
                   std::string_view bos = "<s>") {
  auto chat_template = ChatTemplate::Create(source, bos, "</s>");
  if (!chat_template.ok()) return chat_template.status().ToString();
  auto text = (*chat_template)->Render(messages, add_generation_prompt, extra);
  return text.ok() ? *text : text.status().ToString();
}

Status RenderStatus(std::string_view source, std::string_view messages,
                    std::string_view extra = "") {
  auto chat_template = ChatTemplate::Create(source, "<s>", "</s>");
  if (!chat_template.ok()) return chat_template.status();
  return (*chat_template)->Render(messages, false, extra).status();
}

TEST(ChatTemplate, EmptySourceIsUnimplementedNotADefault) {
  EXPECT_THAT(ChatTemplate::Create("", "<s>", "</s>"),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("--chat-template")));
}

TEST(ChatTemplate, BlocksAreTrimmedAndOneTrailingNewlineGoes) {
  EXPECT_EQ(Render("{% for m in messages %}\n  {{ m.content }}\n  {% endfor %}\nend\n", kHi),
            "  hi\nend");
}

TEST(ChatTemplate, NullContentRendersAsEmptyText) {
  const char* messages = R"([{"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]}])";
  EXPECT_EQ(Render("{{ messages[0].content[:5] }}|{{ messages[0].content is string }}", messages),
            "|True");
}

TEST(ChatTemplate, MissingContentRendersAsEmptyText) {
  EXPECT_EQ(Render("{{ '[' + messages[0].content + ']' }}", R"([{"role": "assistant"}])"), "[]");
}

TEST(ChatTemplate, NullToolCallsAreAbsent) {
  EXPECT_EQ(Render("{{ messages[0].tool_calls is defined }}",
                   R"([{"role": "assistant", "content": "x", "tool_calls": null}])"),
            "False");
}

TEST(ChatTemplate, PartsAreJoinedForATemplateOfStrings) {
  const char* parts = R"([{"role": "user", "content": [{"type": "text", "text": "a"},
                                                       {"type": "text", "text": "b"}]}])";
  EXPECT_EQ(Render("{% for m in messages %}<{{ m.content }}>{% endfor %}", parts), "<ab>");
}

TEST(ChatTemplate, PartsStayAListForATemplateThatWalksThem) {
  const char* parts =
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}])";
  EXPECT_EQ(
      Render("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
             "{% for part in m.content %}({{ part.type }}:{{ part.text }}){% endfor %}{% endif %}"
             "{% endfor %}",
             parts),
      "(text:a)(image:)");
}

TEST(ChatTemplate, AnImagePartForATemplateOfStringsIsRefused) {
  const char* parts = R"([{"role": "user", "content": [{"type": "image", "url": "x"}]}])";
  EXPECT_THAT(RenderStatus("{{ messages[0].content }}", parts),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("messages[0].content"), HasSubstr("text only"))));
}

constexpr char kThinking[] =
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}go";

TEST(ChatTemplate, JsonFalseIsFalse) {
  EXPECT_EQ(Render(kThinking, kHi, true, R"({"enable_thinking": false})"), "<think></think>go");
}

TEST(ChatTemplate, ZeroIsNotFalse) {
  EXPECT_EQ(Render(kThinking, kHi, true, R"({"enable_thinking": 0})"), "go");
}

TEST(ChatTemplate, AbsentVariableIsUndefined) { EXPECT_EQ(Render(kThinking, kHi, true), "go"); }

TEST(ChatTemplate, DictItemsKeepTheirOrder) {
  EXPECT_EQ(Render("{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", kHi, false,
                   R"({"d": {"zeta": 1, "alpha": 2, "mid": 3}})"),
            "zeta=1;alpha=2;mid=3;");
}

TEST(ChatTemplate, ReversedSliceWalksBackwards) {
  EXPECT_EQ(
      Render(
          "{% for m in messages[::-1] %}{{ m.content }}{% endfor %}{{ messages[1:][0].content }}",
          R"([{"role": "user", "content": "1"}, {"role": "user", "content": "2"}])"),
      "212");
}

TEST(ChatTemplate, NamespaceCarriesStateOutOfALoop) {
  EXPECT_EQ(Render("{% set ns = namespace(n=0) %}{% for i in range(5) %}{% set ns.n = ns.n + i "
                   "%}{% endfor %}"
                   "{{ ns.n }}",
                   kHi),
            "10");
}

TEST(ChatTemplate, LoopControlsBreakAndContinue) {
  EXPECT_EQ(Render("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
                   "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
                   kHi),
            "023");
}

TEST(ChatTemplate, GenerationTagPrintsItsBody) {
  EXPECT_EQ(Render("a{%- generation -%} b {%- endgeneration %}\nc", kHi), "abc");
}

TEST(ChatTemplate, RaiseExceptionGivesItsOwnText) {
  EXPECT_THAT(RenderStatus("{{ raise_exception('System role not supported') }}", kHi),
              StatusIs(StatusCode::kInvalidArgument, "chat template: System role not supported"));
}

TEST(ChatTemplate, StrftimeNowIsLocalTime) {
  const std::time_t before = std::time(nullptr);
  const std::string text = Render("{{ strftime_now('%d %b %Y') }}", kHi);
  const std::time_t after = std::time(nullptr);
  char first[64], second[64];
  std::strftime(first, sizeof(first), "%d %b %Y", std::localtime(&before));
  std::strftime(second, sizeof(second), "%d %b %Y", std::localtime(&after));
  EXPECT_TRUE(text == first || text == second) << text;
}

TEST(ChatTemplate, PythonStringMethodsChain) {
  EXPECT_EQ(Render("{{ messages[0].content.split('</think>')[-1].lstrip('\\n') }}",
                   R"([{"role": "assistant", "content": "<think>x</think>\n\nanswer"}])"),
            "answer");
}

TEST(ChatTemplate, ToJsonIsPythonsDump) {
  EXPECT_EQ(Render("{{ d | tojson }}", kHi, false, R"({"d": {"b": [1, 2.0, "é<&'>"], "a": null}})"),
            "{\"b\": [1, 2.0, \"é<&'>\"], \"a\": null}");
}

constexpr char kSystem[] =
    "{% if messages[0].role == 'system' %}[{{ messages[0].content }}]{% else %}[default]{% endif "
    "%}";

TEST(ChatTemplate, AbsentSystemMessageGivesTheTemplatesDefault) {
  EXPECT_EQ(Render(kSystem, kHi), "[default]");
}

TEST(ChatTemplate, EmptySystemMessageIsNotAbsent) {
  EXPECT_EQ(
      Render(kSystem, R"([{"role": "system", "content": ""}, {"role": "user", "content": "hi"}])"),
      "[]");
}

TEST(ChatTemplate, TokensAreVariables) {
  EXPECT_EQ(Render("{{ bos_token }}x{{ eos_token }}", kHi), "<s>x</s>");
}

TEST(ChatTemplate, AnEmptyBosTokenIsUndefined) {
  EXPECT_EQ(Render("{{ bos_token is defined }}", kHi, false, "", ""), "False");
}

TEST(ChatTemplate, GenerationPromptFollowsItsFlag) {
  const char* source = "{% if add_generation_prompt %}yes{% else %}no{% endif %}";
  EXPECT_EQ(Render(source, kHi, true), "yes");
  EXPECT_EQ(Render(source, kHi, false), "no");
}

TEST(ChatTemplate, TemplateTextInAMessageStaysText) {
  EXPECT_EQ(Render("{{ messages[0].content }}",
                   R"([{"role": "user", "content": "{{ 1 + 1 }}{% if %}"}])"),
            "{{ 1 + 1 }}{% if %}");
}

TEST(ChatTemplate, SyntaxErrorNamesLineAndColumn) {
  EXPECT_THAT(ChatTemplate::Create("ok\n{% if x %}\n  {{ y ! }}\n{% endif %}", "", ""),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("chat template: 3:")));
}

TEST(ChatTemplate, UnknownFilterFailsAtLoadWithItsLine) {
  EXPECT_THAT(ChatTemplate::Create("ok\n{% if x %}{{ y | shout }}{% endif %}", "", ""),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("chat template: 2:18: no filter named 'shout'")));
}

TEST(ChatTemplate, UnknownTestFailsAtLoad) {
  EXPECT_THAT(ChatTemplate::Create("{{ y is loud }}", "", ""),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("no test named 'loud'")));
}

TEST(ChatTemplate, RunTimeErrorNamesTheLine) {
  EXPECT_THAT(RenderStatus("a\nb\n{{ messages[0].content + 1 }}", kHi),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("chat template: 3:")));
}

TEST(ChatTemplate, AnEndlessTemplateEnds) {
  EXPECT_THAT(
      RenderStatus("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                   kHi),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("fuel")));
}

// Fuel bounds the instructions; a budget bounds what each of them makes.
TEST(ChatTemplate, DoublingATextInALoopEndsInAnError) {
  for (const char* body :
       {"{% set ns.s = ns.s + ns.s %}", "{% set ns.s = ns.s ~ ns.s %}",
        "{% set ns.s = ns.s | replace('a', 'aa') %}", "{% set ns.s = 'aa'.join([ns.s, ns.s]) %}",
        "{% set ns.s = [ns.s, ns.s] | join %}", "{% set ns.s = ns.s * 2 %}",
        "{% set ns.s = (ns.s ~ '%s') | format(ns.s) | replace('%', '') %}",
        "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"}) {
    EXPECT_THAT(RenderStatus("{% set ns = namespace(s='a') %}{% for i in range(90) %}" +
                                 std::string(body) + "{% endfor %}{{ ns.s | length }}",
                             kHi),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("makes too much text")))
        << body;
  }
}

TEST(ChatTemplate, DoublingAListInALoopEndsInAnError) {
  for (const char* body : {"{% set ns.s = ns.s + ns.s %}", "{% set ns.s = ns.s * 2 %}"}) {
    EXPECT_THAT(RenderStatus("{% set ns = namespace(s=[1]) %}{% for i in range(90) %}" +
                                 std::string(body) + "{% endfor %}{{ ns.s | length }}",
                             kHi),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("a list of more than")));
  }
  // Each list holds the one before it twice: 2^90 items when printed.
  for (const char* print : {"{{ ns.s }}", "{{ ns.s | tojson }}", "{{ 'x' ~ ns.s }}"}) {
    EXPECT_THAT(RenderStatus("{% set ns = namespace(s=[1]) %}{% for i in range(90) %}"
                             "{% set ns.s = [ns.s, ns.s] %}{% endfor %}" +
                                 std::string(print),
                             kHi),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("makes too much text")));
  }
}

TEST(ChatTemplate, AHugeWidthIsAnError) {
  for (const char* source :
       {"{{ 'a' * 9999999999 }}", "{{ [1] * 9999999999 }}", "{{ 'a'.ljust(9999999999) }}",
        "{{ 'a' | center(9999999999) }}", "{{ '%999999999d' | format(1) }}",
        "{{ 'a\nb' | indent(9999999999) }}", "{{ [1] | tojson(indent=9999999999) }}",
        "{{ [1] | batch(9999999999, 'x') | list }}", "{{ '{:999999999}'.format(1) }}"}) {
    EXPECT_THAT(RenderStatus(source, kHi), StatusIs(StatusCode::kInvalidArgument, HasSubstr("")))
        << source;
  }
}

TEST(ChatTemplate, ManySmallTextsEndInAnErrorToo) {
  EXPECT_THAT(RenderStatus("{% set s = 'a' * 10000000 %}{% set ns = namespace(l=[]) %}"
                           "{% for i in range(9999) %}{% set ns.l = ns.l + [s ~ i] %}{% endfor %}",
                           kHi),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("512 MiB in one rendering")));
}

TEST(ChatTemplate, CountingAnEmptyTextEnds) {
  EXPECT_EQ(Render("{{ 'abc'.count('') }}", kHi), "4");
}

TEST(ChatTemplate, ReadsTellsWhichVariablesHaveAnEffect) {
  auto chat_template = ChatTemplate::Create(
      "{% macro m() %}{{ inner }}{% endmacro %}{% if enable_thinking is false "
      "%}{{ m() }}{% endif %}{{ messages[0].tools }}",
      "", "");
  ASSERT_THAT(chat_template, IsOk());
  EXPECT_TRUE((*chat_template)->Reads("enable_thinking"));
  EXPECT_TRUE((*chat_template)->Reads("inner"));
  EXPECT_TRUE((*chat_template)->Reads("messages"));
  EXPECT_FALSE((*chat_template)->Reads("tools"));  // a field, not the variable
  EXPECT_FALSE((*chat_template)->Reads("thinking"));
}

TEST(ChatTemplate, ErrorsNameTheFileThatTheSourceCameFrom) {
  EXPECT_THAT(ChatTemplate::Create("\n {{ x | nope }}", "", "", "my/chat.jinja"),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("my/chat.jinja: 2:9: no filter named 'nope'")));
}

TEST(ChatTemplate, C07UnknownConstructsFailAtLoadWithTheirPlace) {
  EXPECT_THAT(ChatTemplate::Create("a\n{{ 'x'.shout() }}", "", ""),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("2:7: no method named 'shout'")));
  EXPECT_THAT(ChatTemplate::Create("{% include 'other' %}", "", ""),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("a chat template is one file")));
  EXPECT_THAT(ChatTemplate::Create("{% trans %}x{% endtrans %}", "", ""),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("chat template: 1:")));
}

TEST(ChatTemplate, T08LiteralBackslashNStaysTwoCharacters) {
  EXPECT_EQ(Render("{{ messages[0].content }}", R"([{"role": "user", "content": "a\nb"}])"),
            "a\nb");
}

TEST(ChatTemplate, C09ALateSystemMessageRaisesTheTemplatesText) {
  const char* source =
      "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
      "{{ raise_exception('System message must be first') }}{% endif %}{% endfor %}";
  EXPECT_THAT(
      RenderStatus(source, R"([{"role": "user", "content": "a"},
                                       {"role": "system", "content": "b"}])"),
      StatusIs(StatusCode::kInvalidArgument, "chat template: System message must be first"));
}

constexpr char kDeepList[] =
    "{% set ns = namespace(x=1) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}";

TEST(ChatTemplate, PrintingADeepListIsCutShort) {
  EXPECT_THAT(Render(std::string(kDeepList) + "{{ ns.x }}", kHi), HasSubstr("[...]"));
}

TEST(ChatTemplate, DumpingADeepListIsAnError) {
  EXPECT_THAT(RenderStatus(std::string(kDeepList) + "{{ ns.x | tojson }}", kHi),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("nested too deeply")));
}

TEST(ChatTemplate, MessagesMustBeJson) {
  EXPECT_THAT(RenderStatus("x", "[{"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("messages: expected JSON")));
}

TEST(ChatTemplate, MessagesMustBeAnArray) {
  EXPECT_THAT(RenderStatus("x", "{}"), StatusIs(StatusCode::kInvalidArgument,
                                                HasSubstr("expected a JSON array, got an object")));
}

TEST(ChatTemplate, EachMessageMustBeAnObject) {
  EXPECT_THAT(RenderStatus("x", R"([{"role": "user"}, 5])"),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("messages[1]: expected an object, got a number")));
}

TEST(ChatTemplate, MessagesMustBeUtf8) {
  EXPECT_THAT(RenderStatus("x", "[\"\xff\"]"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("invalid byte at offset 2")));
}

TEST(ChatTemplate, SourceMustBeUtf8) {
  EXPECT_THAT(ChatTemplate::Create("a\xc3", "", ""),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("expected UTF-8")));
}

TEST(ChatTemplate, ExtraMustBeAnObject) {
  EXPECT_THAT(
      RenderStatus("x", kHi, "[]"),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("extra variables: expected a JSON object")));
}

TEST(ChatTemplate, ExtraMayNotReplaceMessages) {
  EXPECT_THAT(
      RenderStatus("x", kHi, R"({"messages": []})"),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("messages is an argument of its own")));
}

}  // namespace
}  // namespace hexport
