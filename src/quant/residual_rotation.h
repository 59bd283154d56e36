// R1: an orthogonal rotation of the residual stream, folded into the weights.
//
// Some models (SmolLM2 among them) carry activations of tens of thousands in one or two channels of
// the residual stream at the first token. One 16 bit scale for the whole tensor then leaves other
// tokens a handful of codes. RMSNorm without its gain commutes with a rotation R, so with every
// gain folded into the linear layers after it the model computes the same function when
// embed_tokens, o_proj and down_proj write x R and q, k, v, gate, up and lm_head read it: the peak
// spreads over all channels. QuaRot, arXiv:2404.00456; SpinQuant (R1), arXiv:2405.16406.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace hexport::quant {

// Of every rotation that hexport makes, so that the same checkpoint gives the same bytes.
inline constexpr uint64_t kResidualRotationSeed = 1;

// R = diag(random signs) (Walsh-Hadamard of the largest power of two in `size` (x) Hartley of the
// odd rest), orthonormal. No entry is larger than sqrt(2 / size). Thread-safe.
class ResidualRotation {
 public:
  ResidualRotation(int64_t size, uint64_t seed);
  // Replaces each row x of `rows` ([n, size] row-major) by x R. size * (log2(power) + odd)
  // multiplications a row.
  void ApplyToRows(std::span<float> rows) const;
  int64_t size() const { return size_; }

 private:
  void ApplyToRow(float* row, std::vector<float>& scratch) const;
  int64_t size_, power_, odd_;
  std::vector<float> signs_;    // [size], +-1, with the normalization 1/sqrt(power)
  std::vector<float> hartley_;  // [odd, odd], orthonormal
};

// Whether the rotation can be folded in. A norm between a branch and the residual stream (Gemma)
// stands in its way: its gain would have to come after R, and no linear layer does.
bool CanRotateResidual(const ModelConfig& config);

// A view of `base` (which must outlive it) whose tensors are those of the rotated model. Norm gains
// of the residual stream read as ones; a tied lm_head becomes a tensor of its own. Same function as
// `base` up to float32 rounding. Requires CanRotateResidual.
std::unique_ptr<Checkpoint> RotateResidual(const Checkpoint& base, uint64_t seed);

}  // namespace hexport::quant
