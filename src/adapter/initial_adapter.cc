#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <new>

#include "adapter/matched_adapters.h"

namespace hexport::adapter {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Status CheckRank(int64_t rows, int64_t columns, int64_t rank) {
  if (rank >= 1 && rank <= std::min(rows, columns)) return OkStatus();
  return InvalidArgument("initial adapter: expected a rank of 1 to " +
                         std::to_string(std::min(rows, columns)) + ", got " + std::to_string(rank));
}

}  // namespace

Status RebuildPissa(std::span<const float> weight, int64_t rows, int64_t columns, int64_t rank,
                    double scale, std::vector<float>& left, std::vector<float>& right) {
  HEXPORT_RETURN_IF_ERROR(CheckRank(rows, columns, rank));
  try {
    const Eigen::Map<const RowMajor> stored(weight.data(), rows, columns);
    // The singular vectors of the shorter side are the eigenvectors of the smaller Gram matrix.
    // Double precision makes up for squaring: what is wanted is the span of the top vectors.
    const bool wide = columns > rows;
    const Eigen::MatrixXd w = stored.cast<double>();
    const Eigen::MatrixXd gram =
        wide ? Eigen::MatrixXd(w * w.transpose()) : Eigen::MatrixXd(w.transpose() * w);
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(gram);
    if (solver.info() != Eigen::Success) {
      return Internal("initial adapter: the eigenvalues did not converge");
    }
    const Eigen::MatrixXd top = solver.eigenvectors().rightCols(rank);
    left.resize(static_cast<size_t>(rows * rank));
    right.resize(static_cast<size_t>(rank * columns));
    Eigen::Map<RowMajor> out_left(left.data(), rows, rank);
    Eigen::Map<RowMajor> out_right(right.data(), rank, columns);
    // U U^T W, or W V V^T: the same matrix.
    if (wide) {
      out_left = top.cast<float>();
      out_right = (top.transpose() * w / scale).cast<float>();
    } else {
      out_left = (w * top / scale).cast<float>();
      out_right = top.transpose().cast<float>();
    }
    return OkStatus();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("initial adapter: no memory to decompose a weight of " +
                             ShapeString({rows, columns}));
  }
}

Status RebuildOlora(std::span<const float> weight, int64_t rows, int64_t columns, int64_t rank,
                    std::vector<float>& left, std::vector<float>& right) {
  HEXPORT_RETURN_IF_ERROR(CheckRank(rows, columns, rank));
  try {
    const Eigen::Map<const RowMajor> stored(weight.data(), rows, columns);
    const Eigen::MatrixXd w = stored.cast<double>();
    // The first r columns of Q depend on the first r columns of W alone.
    const Eigen::HouseholderQR<Eigen::MatrixXd> qr(w.leftCols(rank));
    const Eigen::MatrixXd q = qr.householderQ() * Eigen::MatrixXd::Identity(rows, rank);
    left.resize(static_cast<size_t>(rows * rank));
    right.resize(static_cast<size_t>(rank * columns));
    Eigen::Map<RowMajor>(left.data(), rows, rank) = q.cast<float>();
    Eigen::Map<RowMajor>(right.data(), rank, columns) = (q.transpose() * w).cast<float>();
    return OkStatus();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("initial adapter: no memory to decompose a weight of " +
                             ShapeString({rows, columns}));
  }
}

}  // namespace hexport::adapter
