// Crossing into textkit: its strings and codes as std::string and Status. Private to this folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "textkit.h"

namespace hexport::text_internal {

// A textkit_string that frees itself. Not copyable.
class OwnedString {
 public:
  OwnedString() = default;
  ~OwnedString() { textkit_free_string(&string_); }
  OwnedString(const OwnedString&) = delete;
  OwnedString& operator=(const OwnedString&) = delete;
  textkit_string* out() { return &string_; }
  // Empty when nothing was written.
  std::string Text() const {
    return string_.data == nullptr ? std::string() : std::string(string_.data, string_.size);
  }

 private:
  textkit_string string_ = {nullptr, 0};
};

// OK, or the status of a textkit_code with "where: message".
Status StatusFromTextkit(int32_t code, std::string_view where, const OwnedString& error);

}  // namespace hexport::text_internal
