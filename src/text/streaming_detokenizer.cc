// The C++ face of textkit's stream, which runs the tokenizer's decoder chain one token at a time.
#include "text/textkit_adapter.h"
#include "text/tokenizer.h"

namespace hexport {

using text_internal::OwnedString;
using text_internal::StatusFromTextkit;

struct StreamingDetokenizer::Impl {
  textkit_stream* stream = nullptr;
  Status creation;  // a constructor cannot fail: Push and Finish report it
  bool finished = false;

  Status Usable(std::string_view where) const {
    HEXPORT_RETURN_IF_ERROR(creation);
    if (!finished) return OkStatus();
    return FailedPrecondition(std::string(where) +
                              ": the stream has ended; make a new one for each answer");
  }
};

StreamingDetokenizer::StreamingDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : impl_(std::make_unique<Impl>()) {
  OwnedString error;
  const int32_t code = textkit_stream_new(static_cast<const textkit_tokenizer*>(tokenizer.handle_),
                                          skip_special_tokens ? 1 : 0, &impl_->stream, error.out());
  impl_->creation = StatusFromTextkit(code, "StreamingDetokenizer", error);
}

StreamingDetokenizer::~StreamingDetokenizer() { textkit_stream_free(impl_->stream); }

Result<std::string> StreamingDetokenizer::Push(int32_t id) {
  HEXPORT_RETURN_IF_ERROR(impl_->Usable("StreamingDetokenizer::Push"));
  OwnedString text, error;
  const int32_t code = textkit_stream_push(impl_->stream, id, text.out(), error.out());
  HEXPORT_RETURN_IF_ERROR(StatusFromTextkit(code, "StreamingDetokenizer::Push", error));
  return text.Text();
}

Result<std::string> StreamingDetokenizer::Finish() {
  HEXPORT_RETURN_IF_ERROR(impl_->Usable("StreamingDetokenizer::Finish"));
  impl_->finished = true;
  OwnedString text, error;
  const int32_t code = textkit_stream_finish(impl_->stream, text.out(), error.out());
  HEXPORT_RETURN_IF_ERROR(StatusFromTextkit(code, "StreamingDetokenizer::Finish", error));
  return text.Text();
}

}  // namespace hexport
