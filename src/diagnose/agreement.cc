#include "diagnose/agreement.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hexport::diagnose {

double Agreement::SqnrDb() const {
  if (!std::isfinite(noise)) return -kMostDb;
  return std::clamp(-10.0 * std::log10(std::max(noise, 1e-300)), -kMostDb, kMostDb);
}

void AgreementSum::Add(std::span<const float> expected, std::span<const float> got, size_t columns,
                       std::span<const double> weights) {
  for (size_t first = 0; first < expected.size(); first += columns) {
    for (size_t c = 0; c < columns; ++c) {
      const double weight = weights.empty() ? 1.0 : weights[c];
      const double e = expected[first + c], g = got[first + c];
      finite_ = finite_ && std::isfinite(g);
      product_ += weight * e * g;
      expected_ += weight * e * e;
      got_ += weight * g * g;
      error_ += weight * (e - g) * (e - g);
    }
  }
}

void AgreementSum::AddOne(double expected, double got) {
  finite_ = finite_ && std::isfinite(got);
  product_ += expected * got;
  expected_ += expected * expected;
  got_ += got * got;
  error_ += (expected - got) * (expected - got);
}

Agreement AgreementSum::Get() const {
  if (!finite_) return {0.0, std::numeric_limits<double>::infinity()};
  if (error_ == 0.0) return {1.0, 0.0};
  if (expected_ == 0.0) return {0.0, std::numeric_limits<double>::infinity()};
  const double length = std::sqrt(expected_) * std::sqrt(got_);
  return {length > 0.0 ? std::clamp(product_ / length, -1.0, 1.0) : 0.0, error_ / expected_};
}

}  // namespace hexport::diagnose
