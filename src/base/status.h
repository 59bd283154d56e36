// Status and Result<T>: how every fallible function of hexport reports failure.
//
// No exception crosses a library's edge; third-party throws are caught in their adapter. A message
// says where, what was expected, what was found, and what to do. Callers prepend context; only apps
// print.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace hexport {

// A subset of Abseil's canonical codes, with their numbers; frozen.
enum class StatusCode : int32_t {
  kOk = 0,
  kCancelled = 1,
  kInvalidArgument = 3,  // bad input or options
  kDeadlineExceeded = 4,
  kNotFound = 5,  // a file or tensor that should be there is not
  kPermissionDenied = 7,
  kResourceExhausted = 8,   // memory, disk, context length
  kFailedPrecondition = 9,  // right call, wrong state (output exists, wrong SoC)
  kUnimplemented = 12,      // architecture, operator or SoC that hexport does not support
  kInternal = 13,           // a fault of hexport or of a vendor library, a crashed child
  kUnavailable = 14,        // the environment lacks a library or tool
  kDataLoss = 15,           // corrupt or truncated file
};

// "kDataLoss" -> "data loss". Never empty.
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same code with "context: message". OK stays OK.
  Status WithContext(std::string_view context) const;
  // "data loss: model.gguf@24: ..." or "ok".
  std::string ToString() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return Status(); }
inline Status InvalidArgument(std::string m) {
  return {StatusCode::kInvalidArgument, std::move(m)};
}
inline Status NotFound(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status PermissionDenied(std::string m) {
  return {StatusCode::kPermissionDenied, std::move(m)};
}
inline Status ResourceExhausted(std::string m) {
  return {StatusCode::kResourceExhausted, std::move(m)};
}
inline Status FailedPrecondition(std::string m) {
  return {StatusCode::kFailedPrecondition, std::move(m)};
}
inline Status Unimplemented(std::string m) { return {StatusCode::kUnimplemented, std::move(m)}; }
inline Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }
inline Status Unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
inline Status DataLoss(std::string m) { return {StatusCode::kDataLoss, std::move(m)}; }
inline Status Cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }

// kPermissionDenied, kNotFound, kResourceExhausted (ENOSPC, EDQUOT, EFBIG, ENOMEM) or kInternal
// from an errno value; message "context: strerror".
Status ErrnoStatus(int error, std::string_view context);

// A value or the Status that says why there is none. Reading the value of a failed Result is a
// programming error and ends the process with the status on stderr.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (status_.ok()) status_ = Internal("Result built from an OK status without a value");
  }
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return Checked(), *value_; }
  const T& value() const& { return Checked(), *value_; }
  T&& value() && { return Checked(), std::move(*value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void Checked() const;
  Status status_;
  std::optional<T> value_;
};

[[noreturn]] void DieOnBadResult(const Status& status);

template <typename T>
void Result<T>::Checked() const {
  if (!value_.has_value()) DieOnBadResult(status_);
}

}  // namespace hexport

#define HEXPORT_CONCAT_INNER(a, b) a##b
#define HEXPORT_CONCAT(a, b) HEXPORT_CONCAT_INNER(a, b)
#define HEXPORT_RETURN_IF_ERROR(expr)                                                           \
  do {                                                                                          \
    if (::hexport::Status hexport_status = (expr); !hexport_status.ok()) return hexport_status; \
  } while (false)
#define HEXPORT_ASSIGN_OR_RETURN(lhs, expr) \
  HEXPORT_ASSIGN_OR_RETURN_INNER(HEXPORT_CONCAT(hexport_result_, __LINE__), lhs, expr)
#define HEXPORT_ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                                   \
  if (!result.ok()) return result.status();               \
  lhs = *std::move(result)
