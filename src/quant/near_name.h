// The likely meaning of a misspelt name, for messages. Private to src/quant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace hexport::quant {

// The candidate of the smallest edit distance, or null when none is within a third of the name's
// length (at least 2). Costs |name| * |candidate| each; names longer than 200 bytes get none.
const std::string* NearName(std::string_view name, std::span<const std::string> candidates);
// "; did you mean \"near\"?".
std::string DidYouMean(std::string_view near);
// The same with NearName's candidate, or "".
std::string DidYouMean(std::string_view name, std::span<const std::string> candidates);

}  // namespace hexport::quant
