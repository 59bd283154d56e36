#include "quant/near_name.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace hexport::quant {
namespace {

constexpr size_t kLongest = 200;

// Levenshtein's distance, one row at a time.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

const std::string* NearName(std::string_view name, std::span<const std::string> candidates) {
  if (name.size() > kLongest) return nullptr;
  const std::string* best = nullptr;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongest) continue;
    const size_t distance = EditDistance(name, candidate);
    if (distance >= least) continue;
    least = distance;
    best = &candidate;
  }
  return best;
}

std::string DidYouMean(std::string_view near) {
  return "; did you mean \"" + std::string(near) + "\"?";
}

std::string DidYouMean(std::string_view name, std::span<const std::string> candidates) {
  const std::string* near = NearName(name, candidates);
  return near == nullptr ? "" : DidYouMean(*near);
}

}  // namespace hexport::quant
