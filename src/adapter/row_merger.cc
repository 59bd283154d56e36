#include "adapter/row_merger.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

namespace hexport::adapter {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const RowMajor>;
using Map = Eigen::Map<RowMajor>;

constexpr int64_t kChunkValues = int64_t{1} << 20;

}  // namespace

struct RowMerger::Impl {
  const MatchedAdapters* adapters = nullptr;
  std::string name;
  int64_t rows = 1, columns = 1;
  std::vector<LowRankUpdate> updates;  // left holds the scale
  std::vector<double> column_norms;    // of DoRA's V, for embeddings
  ProjectionSums sums;

  // Low-rank changes of all adapters to rows [first_row, first_row + count).
  void AddLowRank(const LowRankUpdate& update, int64_t first_row, int64_t count,
                  std::span<float> delta) const;
  void ApplyDora(const LowRankUpdate& update, int64_t first_row, std::span<const float> values,
                 std::span<float> delta) const;
  void AddProjection(std::span<const float> values, std::span<const float> delta);
  Status MeasureColumns(const LowRankUpdate& update);
};

RowMerger::RowMerger() : impl_(std::make_unique<Impl>()) {}
RowMerger::~RowMerger() = default;
int64_t RowMerger::rows() const { return impl_->rows; }
int64_t RowMerger::columns() const { return impl_->columns; }
const ProjectionSums& RowMerger::projection() const { return impl_->sums; }

Result<std::unique_ptr<RowMerger>> RowMerger::Create(const MatchedAdapters& adapters,
                                                     const MatchedAdapters::MergedTensor& tensor) {
  std::unique_ptr<RowMerger> merger(new RowMerger());
  Impl& impl = *merger->impl_;
  impl.adapters = &adapters;
  impl.name = tensor.name;
  const int64_t total = NumElements(tensor.shape);
  impl.rows = tensor.shape.empty() ? 1 : tensor.shape[0];
  impl.columns = impl.rows == 0 ? 0 : total / impl.rows;
  if (!tensor.low_rank) return merger;
  HEXPORT_ASSIGN_OR_RETURN(impl.updates, adapters.LowRank(tensor.name));
  for (LowRankUpdate& update : impl.updates) {
    const auto scale = static_cast<float>(update.scale);
    for (float& value : update.left) value *= scale;
    for (float& value : update.initial_left) value *= scale;
    if (update.magnitude_per_column) HEXPORT_RETURN_IF_ERROR(impl.MeasureColumns(update));
  }
  return merger;
}

void RowMerger::Impl::AddLowRank(const LowRankUpdate& update, int64_t first_row, int64_t count,
                                 std::span<float> delta) const {
  Map out(delta.data(), count, columns);
  const ConstMap left(update.left.data() + first_row * update.rank, count, update.rank);
  const ConstMap right(update.right.data(), update.rank, columns);
  out.noalias() += left * right;
  if (update.initial_rank == 0) return;
  const ConstMap initial_left(update.initial_left.data() + first_row * update.initial_rank, count,
                              update.initial_rank);
  const ConstMap initial_right(update.initial_right.data(), update.initial_rank, columns);
  out.noalias() -= initial_left * initial_right;
}

Status RowMerger::Impl::MeasureColumns(const LowRankUpdate& update) {
  column_norms.assign(static_cast<size_t>(columns), 0.0);
  const int64_t step = std::max<int64_t>(1, kChunkValues / std::max<int64_t>(columns, 1));
  std::vector<float> values, delta;
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    values.resize(static_cast<size_t>(count * columns));
    delta.assign(values.size(), 0.0f);
    HEXPORT_RETURN_IF_ERROR(adapters->ReadRows(name, row, values));
    AddLowRank(update, row, count, delta);
    for (size_t i = 0; i < values.size(); ++i) {
      const double v = static_cast<double>(values[i]) + static_cast<double>(delta[i]);
      column_norms[i % column_norms.size()] += v * v;
    }
  }
  for (double& norm : column_norms) norm = std::sqrt(norm);
  return OkStatus();
}

// delta, the low-rank change, becomes w (m V / |V| - W).
void RowMerger::Impl::ApplyDora(const LowRankUpdate& update, int64_t first_row,
                                std::span<const float> values, std::span<float> delta) const {
  const auto row_size = static_cast<size_t>(columns);
  const auto weight = update.dora_weight;
  for (size_t row = 0; row * row_size < values.size(); ++row) {
    const float* w = values.data() + row * row_size;
    float* d = delta.data() + row * row_size;
    double row_factor = 0;
    if (!update.magnitude_per_column) {
      double squares = 0;
      for (size_t i = 0; i < row_size; ++i) {
        const double v = static_cast<double>(w[i]) + static_cast<double>(d[i]);
        squares += v * v;
      }
      row_factor = static_cast<double>(update.magnitude[static_cast<size_t>(first_row) + row]) /
                   std::sqrt(squares);
    }
    for (size_t i = 0; i < row_size; ++i) {
      const double factor = update.magnitude_per_column
                                ? static_cast<double>(update.magnitude[i]) / column_norms[i]
                                : row_factor;
      const double v = static_cast<double>(w[i]) + static_cast<double>(d[i]);
      d[i] = static_cast<float>(weight * (factor * v - static_cast<double>(w[i])));
    }
  }
}

void RowMerger::Impl::AddProjection(std::span<const float> values, std::span<const float> delta) {
  const auto size = static_cast<Eigen::Index>(values.size());
  // Blocks keep the sums in float short.
  constexpr Eigen::Index kBlock = 4096;
  const Eigen::Map<const Eigen::ArrayXf> w(values.data(), size), d(delta.data(), size);
  for (Eigen::Index at = 0; at < size; at += kBlock) {
    const Eigen::Index count = std::min(kBlock, size - at);
    const auto wb = w.segment(at, count), db = d.segment(at, count);
    sums.dot += static_cast<double>((wb * db).sum());
    sums.delta_squares += static_cast<double>(db.square().sum());
    sums.weight_squares += static_cast<double>(wb.square().sum());
  }
}

Status RowMerger::Merge(int64_t first_row, std::span<float> values, std::span<float> delta,
                        std::span<float> merged) {
  Impl& impl = *impl_;
  HEXPORT_RETURN_IF_ERROR(impl.adapters->ReadRows(impl.name, first_row, values));
  std::fill(delta.begin(), delta.end(), 0.0f);
  const int64_t count = impl.columns == 0 ? 0 : static_cast<int64_t>(values.size()) / impl.columns;
  bool projects = !impl.updates.empty();
  for (const LowRankUpdate& update : impl.updates) {
    impl.AddLowRank(update, first_row, count, delta);
    projects = projects && update.initial_rank == 0;
  }
  if (projects) impl.AddProjection(values, delta);
  if (impl.updates.size() == 1 && !impl.updates[0].magnitude.empty()) {
    impl.ApplyDora(impl.updates[0], first_row, values, delta);
  }
  for (size_t i = 0; i < merged.size(); ++i) merged[i] = values[i] + delta[i];
  return OkStatus();
}

}  // namespace hexport::adapter
