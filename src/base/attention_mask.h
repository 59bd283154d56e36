// Additive attention masks for graphs with a left-aligned past.
#pragma once

#include <cstdint>
#include <vector>

namespace hexport {

// The mask of one call, [ar, cl] row-major: 0 where a token may look, `floor` elsewhere. The past
// is left-aligned in columns [0, cl-ar) with `past` valid ones; the `count` new tokens sit from
// column cl-ar on and each sees itself and those before it. Rows of padding (>= count) are all
// `floor`. window > 0: a token sees itself and the window - 1 tokens before it (sliding window
// attention, arXiv:2004.05150). Requires 0 <= past <= cl-ar and 0 <= count <= ar; values beyond are
// cut.
std::vector<float> AttentionMask(int64_t ar, int64_t cl, int64_t past, int64_t count, float floor,
                                 int64_t window = 0);

// AttentionMask of a whole text without past: [n, n].
std::vector<float> CausalMask(int64_t n, float floor, int64_t window = 0);

}  // namespace hexport
