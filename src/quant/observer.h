// What calibration remembers of one activation, in memory that does not grow with the data.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "quant/encoding.h"
#include "quant/histogram.h"
#include "quant/layer_walker.h"
#include "quant/quant_config.h"

namespace hexport::quant {

// kDataLoss naming the activation, the element and the sample of a NaN or Inf.
Status CheckFinite(const ActivationView& view);

class Observer {
 public:
  // Adds one sample's values, all finite. Of attention scores only what queries see counts: masked
  // ones are left out, so that the mask's floor does not stretch the encoding (codes saturate at
  // its minimum, which after softmax is zero all the same), and so are scores too small to matter.
  void Add(const ActivationView& view, bool first_half, bool with_histogram);
  // A value that holds this one's and the other's.
  void Merge(const Observer& other);

  const Range& minmax() const { return minmax_; }
  // Min and max of the first half of the samples.
  const std::optional<Range>& first_half() const { return first_half_; }
  const std::optional<Histogram>& histogram() const { return histogram_; }
  // The range for `bits`. kMovingAverage: over samples, .9 of the past and .1 of the new one.
  // kPercentile, kMse and kEntropy need a histogram; scores are always min and max.
  Range Choose(RangeMethod method, double percentile, int bits, bool symmetric) const;
  // Of values that are not 0, to within a factor of 2; 0 when there are none. From at most some
  // thousand values a sample.
  double MedianMagnitude() const;
  // Channels of the last dimension that were 0 throughout; none where its size varies.
  std::vector<int64_t> DeadChannels() const;

 private:
  void AddMagnitudes(std::span<const float> values);
  void AddChannels(const ActivationView& view);
  void AddRange(Range range, bool first_half);

  bool seen_ = false, scores_ = false;
  Range minmax_, average_;
  std::optional<Range> first_half_;
  std::optional<Histogram> histogram_;
  std::array<uint64_t, 256> exponents_ = {};  // by float32's exponent bits
  std::vector<float> largest_;                // by channel
  bool channels_vary_ = false;
};

}  // namespace hexport::quant
