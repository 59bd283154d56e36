#include "decoder/logit_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hexport::decoder {
namespace {

double Mean(double sum, int64_t count) { return count == 0 ? 0 : sum / static_cast<double>(count); }

}  // namespace

void OnlineSoftmax::Add(int64_t first, std::span<const float> logits) {
  if (logits.empty()) return;
  for (const float logit : logits) finite_ = finite_ && std::isfinite(logit);
  if (!finite_) return;
  const auto found = std::max_element(logits.begin(), logits.end());
  const double largest = static_cast<double>(*found);
  const int64_t token = first + (found - logits.begin());
  if (best_ < 0) {
    largest_ = largest;
    best_ = token;
  } else if (largest > largest_) {
    sum_ *= std::exp(largest_ - largest);
    largest_ = largest;
    best_ = token;
  } else if (largest == largest_) {
    best_ = std::min(best_, token);
  }
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest_);
  sum_ += sum;
}

double OnlineSoftmax::LogSumExp() const {
  return best_ < 0 ? -std::numeric_limits<double>::infinity() : largest_ + std::log(sum_);
}

void Position::Add(int64_t first, std::span<const float> logits, std::span<const float> reference) {
  engine_.Add(first, logits);
  const int64_t place = next_token_ - first;
  const bool has_next = place >= 0 && place < static_cast<int64_t>(logits.size());
  if (has_next) next_logit_ = static_cast<double>(logits[static_cast<size_t>(place)]);
  if (reference.empty()) return;
  reference_.Add(first, reference);
  if (has_next) next_reference_ = static_cast<double>(reference[static_cast<size_t>(place)]);
  if (!finite()) return;

  const double largest = static_cast<double>(*std::max_element(reference.begin(), reference.end()));
  if (!started_ || largest > largest_) {
    weighted_ *= started_ ? std::exp(largest_ - largest) : 0;
    largest_ = largest;
    started_ = true;
  }
  for (size_t i = 0; i < reference.size(); ++i) {
    const double a = static_cast<double>(reference[i]), b = static_cast<double>(logits[i]);
    weighted_ += std::exp(a - largest_) * (a - b);
    dot_ += a * b;
    reference_squares_ += a * a;
    engine_squares_ += b * b;
  }
}

double Position::Divergence() const {
  const double sum = reference_.LogSumExp() - largest_;  // ln of sum of exp(reference - largest)
  const double mean_difference = weighted_ * std::exp(-sum);
  return std::max(0.0, mean_difference - reference_.LogSumExp() + engine_.LogSumExp());
}

double Position::Cosine() const {
  const double norms = std::sqrt(engine_squares_) * std::sqrt(reference_squares_);
  return norms > 0 ? dot_ / norms : 0;
}

void TextMetrics::Add(const Position& position, bool compared) {
  ++tokens_;
  loss_ += position.Loss();
  if (!compared) return;
  ++compared_;
  reference_loss_ += position.ReferenceLoss();
  divergence_ += position.Divergence();
  same_ += position.SameBest() ? 1 : 0;
  cosine_ += position.Cosine();
}

double TextMetrics::Perplexity() const { return tokens_ == 0 ? 0 : std::exp(Mean(loss_, tokens_)); }
double TextMetrics::ReferencePerplexity() const {
  return compared_ == 0 ? 0 : std::exp(Mean(reference_loss_, compared_));
}
double TextMetrics::Divergence() const { return Mean(divergence_, compared_); }
double TextMetrics::Top1() const { return Mean(static_cast<double>(same_), compared_); }
double TextMetrics::Cosine() const { return Mean(cosine_, compared_); }

}  // namespace hexport::decoder
