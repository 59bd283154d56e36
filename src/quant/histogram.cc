#include "quant/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

namespace hexport::quant {
namespace {

constexpr int kHalf = Histogram::kBins / 2;
constexpr size_t kReportBins = 64;
constexpr int kShares = 100;  // of the searched clip range

// Counts, sums and sums of squares of the bins above (or below) a place.
struct Moments {
  double count = 0.0, sum = 0.0, squares = 0.0;
  void Add(double n, double x) {
    count += n;
    sum += n * x;
    squares += n * x * x;
  }
  // Sum of (x - edge)^2.
  double AroundOf(double edge) const { return squares - 2.0 * edge * sum + edge * edge * count; }
};

// Moments of everything above each bin's center, and below.
class Tails {
 public:
  explicit Tails(const Histogram& histogram)
      : histogram_(histogram), below_(Histogram::kBins + 1), above_(Histogram::kBins + 1) {
    for (size_t i = 0; i < Histogram::kBins; ++i) {
      below_[i + 1] = below_[i];
      Count(i, below_[i + 1]);
    }
    for (size_t i = Histogram::kBins; i-- > 0;) {
      above_[i] = above_[i + 1];
      Count(i, above_[i]);
    }
  }
  double Error(Range range, int bits, bool symmetric) const {
    const Encoding encoding = MakeEncoding(range, bits, symmetric);
    const double scale = encoding.scale;
    double low = std::min(0.0, static_cast<double>(range.min));
    double high = std::max(0.0, static_cast<double>(range.max));
    if (symmetric) {
      high = std::max(-low, high);
      low = -high - scale;  // one code more
    }
    const Moments& above = above_[FirstAbove(high)];
    const Moments& below = below_[FirstAbove(low)];
    const double all = static_cast<double>(histogram_.count());
    const double inside = std::max(0.0, all - above.count - below.count);
    return (std::max(0.0, above.AroundOf(high)) + std::max(0.0, below.AroundOf(low)) +
            inside * scale * scale / 12.0) /
           std::max(1.0, all);
  }

 private:
  void Count(size_t bin, Moments& moments) const {
    const uint64_t count = histogram_.bins()[bin];
    if (count > 0)
      moments.Add(static_cast<double>(count), histogram_.Center(static_cast<int>(bin)));
  }
  // The first bin whose center is above `value`; centers do not fall.
  size_t FirstAbove(double value) const {
    size_t low = 0, high = Histogram::kBins;
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (histogram_.Center(static_cast<int>(middle)) > value) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  const Histogram& histogram_;
  std::vector<Moments> below_, above_;  // [i]: bins before i; bins from i on
};

// Divergence of the first `kept` magnitude bins, with what is beyond in the last, from the same
// merged into `levels` groups and spread again over the bins that were not empty.
double Divergence(const std::vector<double>& magnitudes, size_t kept, size_t levels,
                  double beyond) {
  double total = beyond;
  for (size_t i = 0; i < kept; ++i) total += magnitudes[i];
  double divergence = 0.0, quantized_total = total - beyond;
  if (quantized_total <= 0.0) return std::numeric_limits<double>::infinity();
  for (size_t level = 0; level < levels; ++level) {
    const size_t begin = level * kept / levels, end = (level + 1) * kept / levels;
    double sum = 0.0, filled = 0.0;
    for (size_t i = begin; i < end; ++i) {
      sum += magnitudes[i];
      filled += magnitudes[i] > 0.0 ? 1.0 : 0.0;
    }
    for (size_t i = begin; i < end; ++i) {
      const double p = (magnitudes[i] + (i + 1 == kept ? beyond : 0.0)) / total;
      if (p <= 0.0) continue;
      // An empty last bin that takes the outliers has no mass to compare with.
      if (magnitudes[i] <= 0.0) return std::numeric_limits<double>::infinity();
      divergence += p * std::log(p / (sum / filled / quantized_total));
    }
  }
  return divergence;
}

double PercentileAt(const Histogram& histogram, double share) {
  const double wanted = share * static_cast<double>(histogram.count());
  double seen = 0.0;
  for (int i = 0; i < Histogram::kBins; ++i) {
    const auto count = static_cast<double>(histogram.bins()[static_cast<size_t>(i)]);
    if (count > 0.0 && seen + count >= wanted) {
      const double place = (i - kHalf + (wanted - seen) / count) * histogram.bin_width();
      return std::clamp(place, static_cast<double>(histogram.min()),
                        static_cast<double>(histogram.max()));
    }
    seen += count;
  }
  return static_cast<double>(histogram.max());
}

}  // namespace

Status Histogram::Add(std::span<const float> values) {
  if (values.empty()) return OkStatus();
  float low = values[0], high = values[0];
  bool finite = true;
  for (const float value : values) {
    low = std::min(low, value);
    high = std::max(high, value);
    finite &= std::abs(value) <= std::numeric_limits<float>::max();
  }
  for (size_t i = 0; !finite && i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    return InvalidArgument("histogram: expected finite values, got " + std::to_string(values[i]) +
                           " at element " + std::to_string(i));
  }
  GrowTo(std::max(std::abs(low), std::abs(high)));
  min_ = count_ == 0 ? low : std::min(min_, low);
  max_ = count_ == 0 ? high : std::max(max_, high);
  count_ += values.size();
  const double per_width = 1.0 / bin_width();
  for (const float value : values) {
    const double place = static_cast<double>(value) * per_width;  // within +-kHalf
    const int toward_zero = static_cast<int>(place);
    const int bin = toward_zero - (place < toward_zero ? 1 : 0) + kHalf;
    ++bins_[static_cast<size_t>(std::min(bin, kBins - 1))];
  }
  return OkStatus();
}

void Histogram::Merge(const Histogram& other) {
  if (other.count_ == 0) return;
  Histogram copy = other;
  const double limit = std::max(limit_, copy.limit_);
  for (Histogram* one : {this, &copy}) {
    if (one->limit_ > 0.0) one->Shift(static_cast<int>(std::log2(limit / one->limit_)));
    one->limit_ = limit;
  }
  for (size_t i = 0; i < kBins; ++i) bins_[i] += copy.bins_[i];
  min_ = count_ == 0 ? copy.min_ : std::min(min_, copy.min_);
  max_ = count_ == 0 ? copy.max_ : std::max(max_, copy.max_);
  count_ += copy.count_;
}

void Histogram::GrowTo(float largest) {
  int exponent = -100;
  if (largest > 0.0f) std::frexp(static_cast<double>(largest), &exponent);
  const double limit = std::ldexp(1.0, std::max(exponent, -100));
  if (limit <= limit_) return;
  if (limit_ > 0.0) Shift(static_cast<int>(std::log2(limit / limit_)));
  limit_ = limit;
}

// Bins of 2^doublings times the width; bin kHalf begins at 0, so zero stays an edge.
void Histogram::Shift(int doublings) {
  if (doublings <= 0) return;
  std::array<uint64_t, kBins> merged = {};
  const int by = std::min(doublings, 31);
  for (int i = 0; i < kBins; ++i)
    merged[static_cast<size_t>(((i - kHalf) >> by) + kHalf)] += bins_[static_cast<size_t>(i)];
  bins_ = merged;
}

double Histogram::Center(int bin) const {
  const double low = (bin - kHalf) * bin_width(), high = low + bin_width();
  return std::clamp(0.5 * (low + high), static_cast<double>(min_), static_cast<double>(max_));
}

Range PercentileRange(const Histogram& histogram, double percentile) {
  if (percentile >= 100.0 || histogram.count() == 0) return {histogram.min(), histogram.max()};
  return {static_cast<float>(PercentileAt(histogram, 1.0 - percentile / 100.0)),
          static_cast<float>(PercentileAt(histogram, percentile / 100.0))};
}

double ExpectedSquaredError(const Histogram& histogram, Range range, int bits, bool symmetric) {
  return Tails(histogram).Error(range, bits, symmetric);
}

Range MseRange(const Histogram& histogram, int bits, bool symmetric) {
  const Range whole{histogram.min(), histogram.max()};
  const Tails tails(histogram);
  Range best = whole;
  double least = tails.Error(whole, bits, symmetric);
  for (int low = 1; low <= kShares; ++low) {
    if (whole.min >= 0.0f && low < kShares) continue;  // nothing to cut off
    for (int high = 1; high <= kShares; ++high) {
      if (whole.max <= 0.0f && high < kShares) continue;
      const Range range{whole.min * static_cast<float>(low) / kShares,
                        whole.max * static_cast<float>(high) / kShares};
      const double error = tails.Error(range, bits, symmetric);
      if (error >= least) continue;
      least = error;
      best = range;
    }
  }
  return best;
}

Range EntropyRange(const Histogram& histogram, int bits) {
  const Range whole{histogram.min(), histogram.max()};
  const size_t levels = size_t{1} << (bits - 1);
  if (histogram.count() == 0 || levels >= kHalf) return whole;
  std::vector<double> magnitudes(kHalf);
  for (size_t i = 0; i < kHalf; ++i) {
    magnitudes[i] = static_cast<double>(histogram.bins()[kHalf + i]) +
                    static_cast<double>(histogram.bins()[kHalf - 1 - i]);
  }
  double beyond = 0.0, least = std::numeric_limits<double>::infinity();
  size_t best = kHalf;
  for (size_t kept = kHalf; kept >= levels; --kept) {
    const double divergence = Divergence(magnitudes, kept, levels, beyond);
    if (divergence < least) {
      least = divergence;
      best = kept;
    }
    beyond += magnitudes[kept - 1];
  }
  const auto threshold = static_cast<float>(static_cast<double>(best) * histogram.bin_width());
  return {std::max(whole.min, -threshold), std::min(whole.max, threshold)};
}

std::string HistogramToJson(const Histogram& histogram) {
  std::vector<uint64_t> bins(kReportBins);
  const double low = static_cast<double>(histogram.min());
  const double width = static_cast<double>(histogram.max()) - low;
  for (int i = 0; i < Histogram::kBins; ++i) {
    const double place = width > 0.0 ? (histogram.Center(i) - low) / width : 0.0;
    const auto bin = static_cast<size_t>(place * static_cast<double>(kReportBins));
    bins[std::min(bin, kReportBins - 1)] += histogram.bins()[static_cast<size_t>(i)];
  }
  return nlohmann::json{{"min", histogram.min()},
                        {"max", histogram.max()},
                        {"count", histogram.count()},
                        {"bins", bins}}
      .dump();
}

}  // namespace hexport::quant
