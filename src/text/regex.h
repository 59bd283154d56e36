// Regular expressions as Python's `re` reads them, as yes or no.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"

namespace hexport {

// How much of the text a match must take.
enum class RegexMode {
  kFullMatch,  // all of it: re.fullmatch
  kMatch,      // a beginning of it: re.match
};

// A compiled pattern. Python's syntax with look-around and back references (the engine is Rust's
// fancy-regex); `\Z`, `$` and set operators inside brackets keep that engine's meaning.
// Thread-safe.
class Regex {
 public:
  // Errors: kInvalidArgument with the pattern (syntax, longer than 64 KiB, not UTF-8).
  static Result<std::unique_ptr<Regex>> Compile(std::string_view pattern, RegexMode mode);
  virtual ~Regex() = default;
  // Errors: kInvalidArgument with the pattern when a match would take more than a million steps,
  // or `text` is not UTF-8.
  virtual Result<bool> Matches(std::string_view text) const = 0;
};

}  // namespace hexport
