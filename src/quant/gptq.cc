#include "quant/gptq.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <string>
#include <thread>

namespace hexport::quant {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Upper triangular U with H^-1 = U^T U. With the order of features reversed, H = L L^T gives H = R
// R^T for an upper triangular R, and U = R^-1: no inverse of H itself is formed.
Result<Matrix> InverseFactor(std::span<const double> hessian, Eigen::Index n, double damping) {
  Matrix h = Eigen::Map<const Matrix>(hessian.data(), n, n);
  const double mean = std::max(h.diagonal().mean(), 1e-12);
  for (Eigen::Index i = 0; i < n; ++i) h(i, i) = h(i, i) > 0 ? h(i, i) + damping * mean : mean;
  const Matrix reversed = h.reverse();
  const Eigen::LLT<Matrix> llt(reversed);
  if (llt.info() != Eigen::Success) {
    return InvalidArgument("GPTQ: the hessian of " + std::to_string(n) +
                           " features is not positive definite");
  }
  const Matrix lower = llt.matrixL();
  const Matrix upper = lower.reverse();
  Matrix inverse = Matrix::Identity(n, n);
  upper.triangularView<Eigen::Upper>().solveInPlace(inverse);
  return inverse;
}

// Columns [first, last) of one weight, all input features.
class ColumnStrip {
 public:
  ColumnStrip(std::span<const float> weights, const Matrix& factor, QuantizedWeight& out,
              size_t first, size_t last)
      : factor_(factor),
        out_(out),
        first_(first),
        width_(last - first),
        in_(static_cast<size_t>(out.in_features)) {
    const size_t columns = static_cast<size_t>(out.out_features);
    work_.resize(in_ * width_);
    for (size_t k = 0; k < in_; ++k) {
      std::copy_n(weights.begin() + static_cast<std::ptrdiff_t>(k * columns + first), width_,
                  work_.begin() + static_cast<std::ptrdiff_t>(k * width_));
    }
  }

  void Run() {
    std::vector<float> error(width_);
    for (size_t k = 0; k < in_; ++k) {
      const double pivot = factor_(static_cast<Eigen::Index>(k), static_cast<Eigen::Index>(k));
      Round(k, static_cast<float>(1.0 / pivot), error);
      for (size_t j = k + 1; j < in_; ++j) {
        const float share =
            static_cast<float>(factor_(static_cast<Eigen::Index>(k), static_cast<Eigen::Index>(j)));
        if (share == 0.0f) continue;
        float* row = work_.data() + j * width_;
        for (size_t n = 0; n < width_; ++n) row[n] -= share * error[n];
      }
    }
  }

 private:
  void Round(size_t k, float over_pivot, std::vector<float>& error) {
    const size_t columns = static_cast<size_t>(out_.out_features);
    const float top = out_.format == WeightFormat::kInt8 ? 127.0f : 7.0f;
    const float bottom = out_.format == WeightFormat::kInt8 ? -127.0f : -8.0f;
    const uint8_t* blocks = nullptr;
    if (!out_.block_scales.empty()) {
      blocks =
          out_.block_scales.data() + k / static_cast<size_t>(out_.block_size) * columns + first_;
    }
    for (size_t n = 0; n < width_; ++n) {
      float scale = out_.channel_scales[first_ + n];
      if (blocks != nullptr) scale *= static_cast<float>(blocks[n]);
      const float value = work_[k * width_ + n];
      const float code = std::clamp(std::nearbyint(value / scale), bottom, top);
      out_.codes[k * columns + first_ + n] = static_cast<int8_t>(code);
      error[n] = (value - code * scale) * over_pivot;
    }
  }

  const Matrix& factor_;
  QuantizedWeight& out_;
  size_t first_, width_, in_;
  std::vector<float>
      work_;  // [in, width]: the weights that are left, with the errors so far made up for
};

}  // namespace

Result<QuantizedWeight> QuantizeGptq(std::span<const float> weights, int64_t in_features,
                                     int64_t out_features, std::span<const double> hessian,
                                     const WeightOptions& options, double damping) {
  if (in_features < 1 || hessian.size() != static_cast<size_t>(in_features * in_features)) {
    return InvalidArgument("GPTQ: expected a hessian of " + std::to_string(in_features) + " x " +
                           std::to_string(in_features) + ", got " + std::to_string(hessian.size()) +
                           " values");
  }
  HEXPORT_ASSIGN_OR_RETURN(QuantizedWeight out,
                           QuantizeRtn(weights, in_features, out_features, options));
  HEXPORT_ASSIGN_OR_RETURN(const Matrix factor, InverseFactor(hessian, in_features, damping));
  // Strips narrow enough for a core's cache; they do not depend on each other.
  constexpr size_t kStrip = 64;
  const size_t columns = static_cast<size_t>(out_features);
  const size_t workers = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (size_t worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] {
      for (size_t first = worker * kStrip; first < columns; first += workers * kStrip) {
        ColumnStrip(weights, factor, out, first, std::min(columns, first + kStrip)).Run();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return out;
}

}  // namespace hexport::quant
