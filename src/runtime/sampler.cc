#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace hexport::runtime {
namespace {

struct Candidate {
  int32_t id;
  double weight;
};

// Best first; ties go to the lower id.
bool Better(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}

double LogitOf(float value) {
  return std::isnan(value) ? -std::numeric_limits<double>::infinity() : static_cast<double>(value);
}

int32_t Greedy(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (LogitOf(logits[i]) > LogitOf(logits[best])) best = i;
  }
  return static_cast<int32_t>(best);
}

// Keeps the shortest prefix of the sorted candidates that holds `top_p` of the weight, at least
// one.
void KeepNucleus(std::vector<Candidate>& candidates, double top_p) {
  double total = 0, kept = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  size_t count = 0;
  while (count < candidates.size()) {
    kept += candidates[count++].weight;
    if (kept >= top_p * total) break;
  }
  candidates.resize(count);
}

}  // namespace

Sampler::Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {}

int32_t Sampler::Sample(std::span<const float> logits, int64_t valid_ids) {
  const size_t count =
      std::min(logits.size(), static_cast<size_t>(std::max<int64_t>(valid_ids, 0)));
  logits = logits.first(count);
  if (count == 0) return 0;
  const int32_t best = Greedy(logits);
  const double top = LogitOf(logits[static_cast<size_t>(best)]);
  if (!(options_.temperature > 0) || !std::isfinite(top)) return best;

  std::vector<Candidate> candidates(count);
  for (size_t i = 0; i < count; ++i) {
    candidates[i] = {static_cast<int32_t>(i),
                     std::exp((LogitOf(logits[i]) - top) / options_.temperature)};
  }
  size_t keep = count;
  if (options_.top_k > 0) keep = std::min(keep, static_cast<size_t>(options_.top_k));
  const bool nucleus = options_.top_p < 1.0;
  if (keep < count || nucleus) {
    std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(keep),
                      candidates.end(), Better);
    candidates.resize(keep);
  }
  if (nucleus) KeepNucleus(candidates, options_.top_p);

  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  // 53 random bits, the same on every standard library (std::uniform_real_distribution is not)
  double left = static_cast<double>(random_() >> 11) * 0x1.0p-53 * total;
  for (const Candidate& candidate : candidates) {
    left -= candidate.weight;
    if (left < 0) return candidate.id;
  }
  return best;  // rounding ate the last weight
}

}  // namespace hexport::runtime
