// Any bytes as a chat template, rendered with the messages of one chat: refused with a Status, or
// rendered in bounded time and memory (libFuzzer's -timeout and -rss_limit_mb).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "fuzz/message_feedback.h"
#include "text/chat_template.h"

namespace {

constexpr std::string_view kMessages = R"([
  {"role": "system", "content": "Be brief."},
  {"role": "user", "content": "What is 2+2?"},
  {"role": "assistant", "content": null, "tool_calls": [
    {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2.5}}}]},
  {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "4"},
  {"role": "assistant", "content": "<think>easy</think>4"},
  {"role": "user", "content": [{"type": "text", "text": "Thanks \u00e9\ud83d\ude00"}]}])";
constexpr std::string_view kExtra = R"({"enable_thinking": false, "tools": [{"type": "function",
  "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using hexport::StatusCode;
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto created = hexport::ChatTemplate::Create(source, "<s>", "</s>");
  hexport::fuzz::ForgetMessages();
  if (!created.ok()) {
    hexport::fuzz::CountMessage(created.status().message());
    // A panic in the template engine comes as kInternal.
    if (created.status().code() == StatusCode::kInternal) std::abort();
    return 0;
  }
  const bool prompt = size % 2 == 0;
  const auto text = (*created)->Render(kMessages, prompt, prompt ? kExtra : "");
  if (!text.ok()) {
    hexport::fuzz::CountMessage(text.status().message());
    if (text.status().code() == StatusCode::kInternal) std::abort();
  }
  return 0;
}
