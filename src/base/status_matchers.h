// gMock matchers for Status and Result<T>; tests only.
#pragma once

#include <gmock/gmock.h>

#include <string>

#include "base/status.h"

namespace hexport::testing {

inline const Status& StatusOf(const Status& status) { return status; }
template <typename T>
const Status& StatusOf(const Result<T>& result) {
  return result.status();
}

MATCHER(IsOk, "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return arg.ok();
}

// StatusIs(code, HasSubstr("where"))
MATCHER_P2(StatusIs, code, message, "has the status code and message") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code && ::testing::Matches(message)(StatusOf(arg).message());
}

}  // namespace hexport::testing
