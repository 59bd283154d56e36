// Which attention scores matter: those that a query sees, down to a depth below which softmax is
// zero.
#pragma once

#include <cstddef>
#include <span>

#include "quant/part_runner.h"

namespace hexport::quant {

// How far below a row's largest score another may be cut off: exp(-25) of 4096 columns together
// weighs less than one step of the 16 bit probabilities.
inline constexpr float kScoreDepth = 25.0f;

// Calls `visit(row, first, count)` for each row of scores: it sees columns [first, first + count).
template <typename Visit>
void VisitVisible(const ActivationView& view, const Visit& visit) {
  const auto tokens = static_cast<size_t>(view.columns);
  for (size_t row = 0; row < view.values.size() / tokens; ++row) {
    const size_t end = row % tokens + 1, window = static_cast<size_t>(view.window);
    const size_t first = window > 0 && end > window ? end - window : 0;
    visit(row, first, end - first);
  }
}

}  // namespace hexport::quant
