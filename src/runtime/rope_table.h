// cos and sin of rotary position embeddings, computed outside the graph.
#pragma once

#include <cstdint>
#include <vector>

#include "bundle/manifest.h"

namespace hexport::runtime {

// RoPE: arXiv:2104.09864; llama3 and linear scaling as in transformers' rope_scaling. Phases in
// double.
class RopeTable {
 public:
  explicit RopeTable(const bundle::ModelFacts& model);
  // Positions [first, first + count): cos and sin become [count, head_dim / 2] row-major.
  void Fill(int64_t first, int64_t count, std::vector<float>& cos, std::vector<float>& sin) const;
  // Radians a token, head_dim / 2 of them.
  const std::vector<double>& frequencies() const { return frequencies_; }

 private:
  std::vector<double> frequencies_;
};

}  // namespace hexport::runtime
