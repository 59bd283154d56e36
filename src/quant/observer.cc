#include "quant/observer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "quant/attention_scores.h"

namespace hexport::quant {
namespace {

constexpr float kMomentum = 0.9f;
constexpr size_t kMagnitudesPerSample = 4096;
constexpr int64_t kMostChannels = int64_t{1} << 17;

void Widen(Range& range, Range by) {
  range.min = std::min(range.min, by.min);
  range.max = std::max(range.max, by.max);
}

// In lanes that the compiler turns into vectors.
Range MinMax(std::span<const float> values) {
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> low, high;
  low.fill(values[0]);
  high.fill(values[0]);
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float value = values[i + lane];
      low[lane] = value < low[lane] ? value : low[lane];
      high[lane] = value > high[lane] ? value : high[lane];
    }
  }
  Range range{*std::min_element(low.begin(), low.end()),
              *std::max_element(high.begin(), high.end())};
  for (; i < values.size(); ++i) Widen(range, {values[i], values[i]});
  return range;
}

// Exponent bits all ones.
bool AnyNotFinite(std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7f800000u;
  uint32_t any = 0;
  for (const float value : values)
    any |= static_cast<uint32_t>((std::bit_cast<uint32_t>(value) & kExponent) == kExponent);
  return any != 0;
}

// Calls `visit` with the columns of each row that its query sees.
template <typename Visit>
void VisitVisibleValues(const ActivationView& view, const Visit& visit) {
  const auto tokens = static_cast<size_t>(view.columns);
  VisitVisible(view, [&](size_t row, size_t first, size_t count) {
    visit(view.values.subspan(row * tokens + first, count));
  });
}

// Largest and smallest score that a query can see, cut off far below the smallest row maximum.
Range RangeOfScores(const ActivationView& view) {
  Range range{view.values[0], view.values[0]};
  float lowest_row_max = view.values[0];
  VisitVisibleValues(view, [&](std::span<const float> visible) {
    const Range row = MinMax(visible);
    Widen(range, row);
    lowest_row_max = std::min(lowest_row_max, row.max);
  });
  const float floor = lowest_row_max - kScoreDepth;
  const bool masked = view.scores == ActivationView::Scores::kMasked;
  return {masked ? floor : std::max(range.min, floor), range.max};
}

}  // namespace

Status CheckFinite(const ActivationView& view) {
  if (!AnyNotFinite(view.values)) return OkStatus();
  for (size_t i = 0; i < view.values.size(); ++i) {
    if (std::isfinite(view.values[i])) continue;
    return DataLoss(view.name + ": expected finite activations, got " +
                    std::to_string(view.values[i]) + " at element " + std::to_string(i) +
                    " of sample " + std::to_string(view.sample) +
                    "; the checkpoint is broken or was saved after training diverged");
  }
  return OkStatus();
}

void Observer::Add(const ActivationView& view, bool first_half, bool with_histogram) {
  if (view.values.empty()) return;
  scores_ |= view.scores != ActivationView::Scores::kNone;
  if (with_histogram && !histogram_.has_value()) histogram_.emplace();
  if (!scores_) {
    AddRange(MinMax(view.values), first_half);
    AddMagnitudes(view.values);
    AddChannels(view);
    // The caller has looked for NaN and Inf.
    if (with_histogram) (void)histogram_->Add(view.values).ok();
    return;
  }
  channels_vary_ = true;
  AddRange(RangeOfScores(view), first_half);
  VisitVisibleValues(view, [&](std::span<const float> visible) {
    AddMagnitudes(visible);
    if (with_histogram) (void)histogram_->Add(visible).ok();
  });
}

void Observer::AddRange(Range range, bool first_half) {
  if (!seen_) minmax_ = average_ = range;
  Widen(minmax_, range);
  average_.min = kMomentum * average_.min + (1.0f - kMomentum) * range.min;
  average_.max = kMomentum * average_.max + (1.0f - kMomentum) * range.max;
  seen_ = true;
  if (!first_half) return;
  if (!first_half_.has_value()) first_half_ = range;
  Widen(*first_half_, range);
}

void Observer::AddMagnitudes(std::span<const float> values) {
  const size_t stride = values.size() / kMagnitudesPerSample + 1;
  for (size_t i = 0; i < values.size(); i += stride)
    ++exponents_[(std::bit_cast<uint32_t>(values[i]) >> 23) & 255u];
}

void Observer::AddChannels(const ActivationView& view) {
  const auto columns = static_cast<size_t>(view.columns);
  if (view.columns < 1 || view.columns > kMostChannels || view.first_column != 0 ||
      (!largest_.empty() && largest_.size() != columns)) {
    channels_vary_ = true;
  }
  if (channels_vary_) return;
  largest_.resize(columns);
  for (size_t row = 0; row + columns <= view.values.size(); row += columns) {
    for (size_t i = 0; i < columns; ++i)
      largest_[i] = std::max(largest_[i], std::abs(view.values[row + i]));
  }
}

void Observer::Merge(const Observer& other) {
  if (!other.seen_) return;
  if (!seen_) {
    *this = other;
  } else {
    Widen(minmax_, other.minmax_);
    Widen(average_, other.average_);
    if (other.first_half_.has_value() && first_half_.has_value())
      Widen(*first_half_, *other.first_half_);
    if (histogram_.has_value() && other.histogram_.has_value())
      histogram_->Merge(*other.histogram_);
    for (size_t i = 0; i < exponents_.size(); ++i) exponents_[i] += other.exponents_[i];
  }
  channels_vary_ = true;
}

Range Observer::Choose(RangeMethod method, double percentile, int bits, bool symmetric) const {
  if (method == RangeMethod::kMinMax || scores_) return minmax_;
  if (method == RangeMethod::kMovingAverage) return average_;
  if (!histogram_.has_value()) return minmax_;
  if (method == RangeMethod::kPercentile) return PercentileRange(*histogram_, percentile);
  if (method == RangeMethod::kMse) return MseRange(*histogram_, bits, symmetric);
  return EntropyRange(*histogram_, bits);
}

double Observer::MedianMagnitude() const {
  const uint64_t all = std::accumulate(exponents_.begin() + 1, exponents_.end(), uint64_t{0});
  uint64_t seen = 0;
  for (int exponent = 1; exponent < 256; ++exponent) {
    seen += exponents_[static_cast<size_t>(exponent)];
    if (all > 0 && 2 * seen >= all) return std::ldexp(1.0, exponent - 127);
  }
  return 0.0;
}

std::vector<int64_t> Observer::DeadChannels() const {
  std::vector<int64_t> dead;
  for (size_t i = 0; !channels_vary_ && i < largest_.size(); ++i) {
    if (largest_[i] == 0.0f) dead.push_back(static_cast<int64_t>(i));
  }
  return dead;
}

}  // namespace hexport::quant
