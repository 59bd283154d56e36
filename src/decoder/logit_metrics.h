// How well logits predict a text, and how far they are from a reference's: one row of the
// vocabulary at a time, in pieces.
#pragma once

#include <cstdint>
#include <span>

namespace hexport::decoder {

// The logits of one position, seen piece by piece over the vocabulary; sums in float64.
class OnlineSoftmax {
 public:
  // Logits of tokens [first, first + logits.size()); each token once, in any order of pieces.
  void Add(int64_t first, std::span<const float> logits);
  double LogSumExp() const;               // natural logarithm; -infinity before the first piece
  int64_t best() const { return best_; }  // lowest id of the largest logit; -1: none seen
  // False when a NaN or an infinity was among them; the other figures mean nothing then.
  bool finite() const { return finite_; }

 private:
  double largest_ = 0, sum_ = 0;  // sum of exp(logit - largest)
  int64_t best_ = -1;
  bool finite_ = true;
};

// One position of a text: the engine's logits against the next token and against the reference's
// logits.
class Position {
 public:
  explicit Position(int32_t next_token) : next_token_(next_token) {}
  // As OnlineSoftmax::Add; `reference` is empty (in every call) or as long as `logits`.
  void Add(int64_t first, std::span<const float> logits, std::span<const float> reference);
  bool finite() const { return engine_.finite() && reference_.finite(); }
  // -ln p(next token), in nats.
  double Loss() const { return engine_.LogSumExp() - next_logit_; }
  double ReferenceLoss() const { return reference_.LogSumExp() - next_reference_; }
  // KL(reference || engine), in nats: sum of p (ln p - ln q). Never below 0.
  double Divergence() const;
  bool SameBest() const { return engine_.best() == reference_.best(); }
  double Cosine() const;  // of the two rows of logits; 0 when one is all zeros

 private:
  int32_t next_token_;
  OnlineSoftmax engine_, reference_;
  double next_logit_ = 0, next_reference_ = 0;
  double largest_ = 0, weighted_ = 0;  // sum of exp(reference - largest) (reference - engine)
  bool started_ = false;
  double dot_ = 0, engine_squares_ = 0, reference_squares_ = 0;
};

// Means over positions.
class TextMetrics {
 public:
  // `compared`: the position has seen the reference's logits too.
  void Add(const Position& position, bool compared);
  int64_t tokens() const { return tokens_; }
  double Perplexity() const;           // exp of the mean loss; 0 before the first position
  double ReferencePerplexity() const;  // these four over compared positions; 0: none
  double Divergence() const;
  double Top1() const;  // share of positions with the same best token
  double Cosine() const;

 private:
  int64_t tokens_ = 0, compared_ = 0, same_ = 0;
  double loss_ = 0, reference_loss_ = 0, divergence_ = 0, cosine_ = 0;
};

}  // namespace hexport::decoder
