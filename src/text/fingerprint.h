// Is this the same tokenizer? What 200 probe strings become, as one hash and one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace hexport {

// The probes: 200 strings of code, digits, white space, contractions, many scripts, emoji and text
// that looks like special tokens. Fixed: a change of one changes every fingerprint.
std::span<const std::string_view> TokenizerProbes();

struct TokenizerFingerprint {
  std::string sha256;                     // of `ids`, lower-case hex
  std::vector<std::vector<int32_t>> ids;  // of each probe, without the post-processor's tokens
  int32_t highest_id = -1;                // over all probes
};

// Errors: those of Tokenizer::Encode, with the probe.
Result<TokenizerFingerprint> Fingerprint(const Tokenizer& tokenizer);

struct DifferingProbe {
  size_t index = 0;  // in TokenizerProbes()
  std::string text;
  std::vector<int32_t> ids_a, ids_b;
};

// Probes that the two encode differently. Errors: those of Fingerprint.
Result<std::vector<DifferingProbe>> CompareTokenizers(const Tokenizer& a, const Tokenizer& b);

// Every token must have a row of the embedding. Fewer tokens than rows are fine. Errors:
// kFailedPrecondition naming the first tokens without a row.
Status CheckIdsWithin(const Tokenizer& tokenizer, int64_t embedding_rows);

// Index of the first token at which two texts differ, the shorter one's length if it begins the
// longer one; nullopt when they are equal.
std::optional<size_t> FirstDifference(std::span<const int32_t> a, std::span<const int32_t> b);

}  // namespace hexport
