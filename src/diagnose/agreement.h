// How well a quantized tensor agrees with the float one.
#pragma once

#include <cstdint>
#include <span>

namespace hexport::diagnose {

struct Agreement {
  double cosine = 1.0;
  double noise = 0.0;  // squared error as a share of the float tensor's squares

  // Signal to quantization noise, 10 log10(1 / noise), in dB; at most kMostDb.
  double SqnrDb() const;
  // Whether the error is more than that of a tensor of equal length at this cosine, 1 - cosine^2.
  // Unlike the cosine alone this sees a tensor that is right but for its scale.
  bool IsBelow(double threshold) const { return !(noise <= 1.0 - threshold * threshold); }
};

inline constexpr double kMostDb = 150.0;

// Sums over the samples of one tensor.
class AgreementSum {
 public:
  // `expected` and `got`: row-major, of one size, a multiple of `columns`. `weights`: how much an
  // error in each column matters, [columns]; empty: all alike.
  void Add(std::span<const float> expected, std::span<const float> got, size_t columns,
           std::span<const double> weights = {});
  // One element more, with weight 1.
  void AddOne(double expected, double got);
  // Cosine 0 and infinite noise when an element of `got` was NaN or infinite.
  Agreement Get() const;

 private:
  double product_ = 0.0, expected_ = 0.0, got_ = 0.0, error_ = 0.0;
  bool finite_ = true;
};

}  // namespace hexport::diagnose
