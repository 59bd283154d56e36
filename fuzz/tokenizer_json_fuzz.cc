// Any bytes as tokenizer.json: refused with a Status, or a tokenizer whose ids lie in the
// vocabulary it tells, and whose decoder takes them. Time and memory are libFuzzer's -timeout and
// -rss_limit_mb: the text it encodes is short.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "fuzz/json_mutator.h"
#include "fuzz/message_feedback.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = hexport::Tokenizer::FromJson(json);
  hexport::fuzz::ForgetMessages();
  if (!tokenizer.ok()) {
    hexport::fuzz::CountMessage(tokenizer.status().message());
    // A panic in the library comes as kInternal.
    if (tokenizer.status().code() == hexport::StatusCode::kInternal) std::abort();
    return 0;
  }
  for (const std::string_view text :
       {"", "ab  abc <s>x\n\n\t1234",
        "don't \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80\xe2\x96\x81"}) {
    for (const bool special : {false, true}) {
      const auto ids = (*tokenizer)->Encode(text, special);
      if (!ids.ok()) {
        hexport::fuzz::CountMessage(ids.status().message());
        continue;
      }
      for (const int32_t id : *ids) {
        if (id < 0 || id >= (*tokenizer)->vocab_size()) std::abort();
      }
      (void)(*tokenizer)->Decode(*ids, special).ok();
      hexport::StreamingDetokenizer stream(**tokenizer, special);
      for (const int32_t id : *ids) (void)stream.Push(id).ok();
      (void)stream.Finish().ok();
    }
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return hexport::fuzz::MutateJson(data, size, max_size, seed);
}
