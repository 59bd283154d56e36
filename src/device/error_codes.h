// What the numbers mean that QNN and Genie give on phones, and what to do about them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hexport::device {

struct ErrorAdvice {
  int64_t code = 0;
  std::string_view meaning;  // what most likely happened
  std::string_view action;   // what to do
};

// Advice for a code as it appears in a vendor's log. `log_text` (may be empty) decides where one
// number has several meanings: 0x138d (5005) beside "vtcm" is about VTCM, else about the binary's
// version. Nothing for an unknown code.
std::optional<ErrorAdvice> ExplainErrorCode(int64_t code, std::string_view log_text);

// First known code in a line of log: a decimal or 0x number that stands beside the word "error",
// "err", "code", "status" or "failed". Other numbers (sizes, addresses, times) are not taken for
// codes.
std::optional<ErrorAdvice> ExplainLog(std::string_view log_text);

// "error 1002: meaning; action".
std::string FormatAdvice(const ErrorAdvice& advice);

}  // namespace hexport::device
