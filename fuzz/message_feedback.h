// Coverage for parsers that are not instrumented (Rust): every new error message counts as new
// code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace hexport::fuzz {

constexpr size_t kCounters = 512;  // few, as some messages quote the input in odd ways
// libFuzzer reads this section as it reads the compiler's counters.
__attribute__((section("__libfuzzer_extra_counters"))) inline uint8_t extra_counters[kCounters];

// Call at the start of an input.
inline void ForgetMessages() { std::memset(extra_counters, 0, kCounters); }

// Digits and quoted parts are the input's own; without them a message names its place in the code.
inline void CountMessage(std::string_view message) {
  constexpr size_t kLooked = 80;
  uint32_t hash = 2166136261u;
  bool quoted = false;
  for (const char c : message.substr(0, kLooked)) {
    if (c == '\'' || c == '"' || c == '`') quoted = !quoted;
    if (quoted || (c >= '0' && c <= '9')) continue;
    hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  }
  extra_counters[hash % kCounters] = 1;
}

}  // namespace hexport::fuzz
