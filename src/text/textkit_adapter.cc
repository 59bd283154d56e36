#include "text/textkit_adapter.h"

namespace hexport::text_internal {

Status StatusFromTextkit(int32_t code, std::string_view where, const OwnedString& error) {
  const std::string message = std::string(where) + ": " + error.Text();
  switch (code) {
    case TEXTKIT_OK:
      return OkStatus();
    case TEXTKIT_INVALID_ARGUMENT:
    case TEXTKIT_BAD_TEMPLATE:
    case TEXTKIT_RAISED:
      return InvalidArgument(message);
    case TEXTKIT_BAD_TOKENIZER:
      return DataLoss(message);
    default:
      return Internal(message);
  }
}

}  // namespace hexport::text_internal
