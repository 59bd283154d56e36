// A streaming histogram of fixed size, and ranges for quantization chosen from it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "quant/encoding.h"

namespace hexport::quant {

// Equal bins over [-limit, limit), limit a power of two. A value beyond it doubles the limit as
// often as needed, and neighbouring bins are merged; so the result does not depend on the order of
// the values. Memory is the same whatever the count.
class Histogram {
 public:
  static constexpr int kBins = 2048;

  // kInvalidArgument (NaN or Inf, with its index); nothing is added then.
  Status Add(std::span<const float> values);
  void Merge(const Histogram& other);

  // Exact. min and max are 0 while count is 0.
  float min() const { return min_; }
  float max() const { return max_; }
  uint64_t count() const { return count_; }
  const std::array<uint64_t, kBins>& bins() const { return bins_; }
  double bin_width() const { return limit_ * 2.0 / kBins; }
  // The middle of what a bin can hold, given min and max.
  double Center(int bin) const;

 private:
  void GrowTo(float largest);
  void Shift(int doublings);
  std::array<uint64_t, kBins> bins_ = {};
  double limit_ = 0.0;
  float min_ = 0.0f, max_ = 0.0f;
  uint64_t count_ = 0;
};

// The range between the (100 - percentile)-th and the percentile-th percentile, interpolated within
// bins; `percentile` in (50, 100]. 100 gives min and max.
Range PercentileRange(const Histogram& histogram, double percentile);

// Expected squared error of one value under MakeEncoding(range, bits, symmetric): what is cut off,
// by the bins' centers, and scale^2 / 12 for what lies within.
double ExpectedSquaredError(const Histogram& histogram, Range range, int bits, bool symmetric);
// The range of the least ExpectedSquaredError, out of 100 x 100 shares of min and max. Never worse
// than min and max themselves.
Range MseRange(const Histogram& histogram, int bits, bool symmetric);

// The threshold on |value| whose clipped and quantized distribution has the least Kullback-Leibler
// divergence from the clipped one; S. Migacz, "8-bit Inference with TensorRT", GTC 2017. Above 10
// bits there are more codes than bins, and min and max are left.
Range EntropyRange(const Histogram& histogram, int bits);

// {"min": .., "max": .., "count": .., "bins": [64 counts over [min, max]]} for reports.
std::string HistogramToJson(const Histogram& histogram);

}  // namespace hexport::quant
