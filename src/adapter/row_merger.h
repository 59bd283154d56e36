// Computes the merged rows of one tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "adapter/base_tensors.h"

namespace hexport::adapter {

// <W, delta> and the like, over the low-rank changes of a tensor; see MergeReport.
struct ProjectionSums {
  double dot = 0;             // sum W * delta
  double delta_squares = 0;   // sum delta^2
  double weight_squares = 0;  // sum W^2
};

// Rows of one tensor with all changes applied, in float32. Borrows adapters. Thread-compatible.
class RowMerger {
 public:
  // Reads A and B; for DoRA on embeddings also all rows, for the norms of columns. Errors: those of
  // reading.
  static Result<std::unique_ptr<RowMerger>> Create(const MatchedAdapters& adapters,
                                                   const MatchedAdapters::MergedTensor& tensor);
  ~RowMerger();

  int64_t rows() const;
  int64_t columns() const;
  // Rows [first_row, ...): `values` are those before any low-rank change, `merged` those after,
  // `delta` what was added between. All row-major of the same size, a whole number of rows.
  Status Merge(int64_t first_row, std::span<float> values, std::span<float> delta,
               std::span<float> merged);
  const ProjectionSums& projection() const;  // of the rows merged so far

 private:
  struct Impl;
  RowMerger();
  std::unique_ptr<Impl> impl_;
};

}  // namespace hexport::adapter
