#include "quant/linear_algebra.h"

#include <cblas.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

extern "C" {
// LAPACK (column-major), which OpenBLAS holds.
void dpotrf_(const char* uplo, const int* n, double* a, const int* lda, int* info);
void spotrf_(const char* uplo, const int* n, float* a, const int* lda, int* info);
void dtrtri_(const char* uplo, const char* diag, const int* n, double* a, const int* lda,
             int* info);
void strtri_(const char* uplo, const char* diag, const int* n, float* a, const int* lda, int* info);
void dpotrs_(const char* uplo, const int* n, const int* nrhs, const double* a, const int* lda,
             double* b, const int* ldb, int* info);
void spotrs_(const char* uplo, const int* n, const int* nrhs, const float* a, const int* lda,
             float* b, const int* ldb, int* info);
}

namespace hexport::quant {
namespace {

constexpr size_t kLargestInDouble = 8192;

void Potrf(const int* n, double* a, int* info) { dpotrf_("L", n, a, n, info); }
void Potrf(const int* n, float* a, int* info) { spotrf_("L", n, a, n, info); }
void Trtri(const int* n, double* a, int* info) { dtrtri_("L", "N", n, a, n, info); }
void Trtri(const int* n, float* a, int* info) { strtri_("L", "N", n, a, n, info); }
void Potrs(const int* n, const int* m, const double* a, double* b, int* info) {
  dpotrs_("L", n, m, a, n, b, n, info);
}
void Potrs(const int* n, const int* m, const float* a, float* b, int* info) {
  spotrs_("L", n, m, a, n, b, n, info);
}

// Rows of a product that one task computes.
constexpr size_t kPanel = 128;

// Calls task(0) .. task(count - 1) on all cores. OpenBLAS's own threads wait for each other by
// spinning, which costs most of the time when something else runs too; with one thread a call it is
// left to this.
void RunTasks(size_t count, const std::function<void(size_t)>& task) {
  static const bool single = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(single);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) task(i);
  };
  const size_t workers = std::min<size_t>(count, std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (size_t worker = 1; worker < workers; ++worker) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

Status NotPositive(size_t n) {
  return InvalidArgument("the hessian of " + std::to_string(n) +
                         " features is not positive definite");
}

// The reversed matrix is symmetric, so that row-major and column-major are one.
template <typename T>
Result<std::vector<float>> InverseFactorIn(std::span<const float> h, size_t n, double ridge) {
  std::vector<T> a(n * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) a[i * n + j] = static_cast<T>(h[(n - 1 - i) * n + (n - 1 - j)]);
    a[i * n + i] += static_cast<T>(ridge);
  }
  const int size = static_cast<int>(n);
  int info = 0;
  Potrf(&size, a.data(), &info);
  if (info == 0) Trtri(&size, a.data(), &info);
  if (info != 0) return NotPositive(n);
  // Column-major lower L^-1: element (row i, column j) at a[j * n + i]. Reversed it is upper.
  std::vector<float> upper(n * n, 0.0f);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i; j < n; ++j) {
      upper[i * n + j] = static_cast<float>(a[(n - 1 - j) * n + (n - 1 - i)]);
    }
  }
  return upper;
}

template <typename T>
Result<std::vector<float>> SolveRidgeIn(std::span<const float> h, size_t n, double ridge,
                                        std::span<const float> b, size_t m) {
  std::vector<T> a(h.begin(), h.end());
  for (size_t i = 0; i < n; ++i) a[i * n + i] += static_cast<T>(ridge);
  std::vector<T> x(n * m);  // column-major
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < m; ++j) x[j * n + i] = static_cast<T>(b[i * m + j]);
  }
  const int size = static_cast<int>(n), columns = static_cast<int>(m);
  int info = 0;
  Potrf(&size, a.data(), &info);
  if (info == 0) Potrs(&size, &columns, a.data(), x.data(), &info);
  if (info != 0) return NotPositive(n);
  std::vector<float> out(n * m);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < m; ++j) out[i * m + j] = static_cast<float>(x[j * n + i]);
  }
  return out;
}

}  // namespace

void AddGram(std::span<const float> rows, size_t n, std::span<float> gram) {
  const int size = static_cast<int>(n), tokens = static_cast<int>(rows.size() / n);
  RunTasks((n + kPanel - 1) / kPanel, [&](size_t task) {
    // Rows of the lower triangle, the diagonal's block whole.
    const size_t first = task * kPanel, last = std::min(n, first + kPanel);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, static_cast<int>(last - first),
                static_cast<int>(last), tokens, 1.0f, rows.data() + first, size, rows.data(), size,
                1.0f, gram.data() + first * n, size);
  });
}

void Symmetrize(std::span<float> matrix, size_t n) {
  constexpr size_t kTile = 64;
  for (size_t i0 = 0; i0 < n; i0 += kTile) {
    for (size_t j0 = 0; j0 <= i0; j0 += kTile) {
      for (size_t i = i0; i < std::min(n, i0 + kTile); ++i) {
        for (size_t j = j0; j < std::min(i, j0 + kTile); ++j) matrix[j * n + i] = matrix[i * n + j];
      }
    }
  }
}

void AddCross(std::span<const float> a, size_t n, std::span<const float> b, size_t m,
              std::span<float> out) {
  const int rows = static_cast<int>(n), columns = static_cast<int>(m),
            tokens = static_cast<int>(a.size() / n);
  RunTasks((n + kPanel - 1) / kPanel, [&](size_t task) {
    const size_t first = task * kPanel, last = std::min(n, first + kPanel);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, static_cast<int>(last - first), columns,
                tokens, 1.0f, a.data() + first, rows, b.data(), columns, 1.0f,
                out.data() + first * m, columns);
  });
}

void Multiply(std::span<const float> a, std::span<const float> b, size_t m, size_t k, size_t n,
              float alpha, float beta, std::span<float> out) {
  const int inner = static_cast<int>(k), columns = static_cast<int>(n);
  RunTasks((m + kPanel - 1) / kPanel, [&](size_t task) {
    const size_t first = task * kPanel, last = std::min(m, first + kPanel);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(last - first), columns,
                inner, alpha, a.data() + first * k, inner, b.data(), columns, beta,
                out.data() + first * n, columns);
  });
}

void ParallelTasks(size_t count, const std::function<void(size_t)>& task) { RunTasks(count, task); }

Result<std::vector<float>> InverseFactor(std::span<const float> h, size_t n, double ridge) {
  if (n <= kLargestInDouble) return InverseFactorIn<double>(h, n, ridge);
  return InverseFactorIn<float>(h, n, ridge);
}

Result<std::vector<float>> SolveRidge(std::span<const float> h, size_t n, double ridge,
                                      std::span<const float> b, size_t m) {
  if (n <= kLargestInDouble) return SolveRidgeIn<double>(h, n, ridge, b, m);
  return SolveRidgeIn<float>(h, n, ridge, b, m);
}

void ParallelFor(size_t count, const std::function<void(size_t first, size_t last)>& body) {
  const size_t workers =
      std::max<size_t>(1, std::min<size_t>(count, std::thread::hardware_concurrency()));
  if (workers == 1) return body(0, count);
  std::vector<std::thread> threads;
  for (size_t worker = 0; worker < workers; ++worker) {
    threads.emplace_back(
        [&, worker] { body(count * worker / workers, count * (worker + 1) / workers); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace hexport::quant
