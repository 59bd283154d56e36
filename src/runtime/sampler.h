// Greedy and seeded temperature / top-k / top-p sampling.
#pragma once

#include <cstdint>
#include <random>
#include <span>

namespace hexport::runtime {

struct SamplingOptions {
  double temperature = 0.0;  // 0: greedy; ties go to the lower id
  int64_t top_k = 0;         // 0: off
  double top_p = 1.0;        // 1: off. Nucleus sampling: arXiv:1904.09751
  uint64_t seed = 42;
};

// Seeded once; not reseeded per token. Not thread-safe.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  // logits: [vocab_size]; ids >= valid_ids (padded rows) are never chosen. NaN counts as -inf.
  int32_t Sample(std::span<const float> logits, int64_t valid_ids);

 private:
  SamplingOptions options_;
  std::mt19937_64 random_;
};

}  // namespace hexport::runtime
