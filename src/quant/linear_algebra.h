// The dense algebra of weight quantization, on OpenBLAS: both cores, the machine's widest vectors.
// All matrices are row-major. Private to src/quant.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"

namespace hexport::quant {

// gram [n, n] += rows^T rows; rows [tokens, n]. Only the lower triangle counts: what is above it is
// written in part, until Symmetrize.
void AddGram(std::span<const float> rows, size_t n, std::span<float> gram);
// Copies the lower triangle to the upper one.
void Symmetrize(std::span<float> matrix, size_t n);
// out [n, m] += a^T b; a [tokens, n], b [tokens, m].
void AddCross(std::span<const float> a, size_t n, std::span<const float> b, size_t m,
              std::span<float> out);
// out [m, n] = beta * out + alpha * a b; a [m, k], b [k, n].
void Multiply(std::span<const float> a, std::span<const float> b, size_t m, size_t k, size_t n,
              float alpha, float beta, std::span<float> out);

// Upper triangular U, float32 [n, n] (zeros below), with H^-1 = U^T U for the symmetric `h` plus
// `ridge` on its diagonal; in double up to 8192 features, in float beyond (memory). Reversed, H = L
// L^T gives H = R R^T for an upper triangular R, and U = R^-1. Errors: kInvalidArgument when not
// positive definite.
Result<std::vector<float>> InverseFactor(std::span<const float> h, size_t n, double ridge);

// x [n, m] with (h + ridge I) x = b, in the same precision. Errors: InverseFactor's.
Result<std::vector<float>> SolveRidge(std::span<const float> h, size_t n, double ridge,
                                      std::span<const float> b, size_t m);

// Calls task(0) .. task(count - 1), each on whichever core is free.
void ParallelTasks(size_t count, const std::function<void(size_t)>& task);

// Calls body(first, last) for parts of [0, count), one a core.
void ParallelFor(size_t count, const std::function<void(size_t first, size_t last)>& body);

}  // namespace hexport::quant
