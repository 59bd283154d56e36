// The likely meaning of a misspelt name, for messages. Private to src/quant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace hexport::quant {

// "; did you mean \"x\"?" with the candidate of the smallest edit distance, or "" when none is
// within a third of the name's length (at least 2). Costs |name| * |candidate| each; names longer
// than 200 bytes get no suggestion.
std::string DidYouMean(std::string_view name, std::span<const std::string> candidates);

}  // namespace hexport::quant
