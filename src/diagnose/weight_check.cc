#include "diagnose/weight_check.h"

#include <algorithm>
#include <cmath>

namespace hexport::diagnose {
namespace {

// Output features read at a time.
constexpr int64_t kPiece = 2048;

// Sizes that are used below without another look.
Status CheckSizes(const decoder::LinearWeight& linear, const quant::QuantizedWeight& codes) {
  if (codes.in_features == linear.in_features && codes.out_features == linear.out_features)
    return OkStatus();
  return DataLoss(linear.name + ": expected codes of " + std::to_string(linear.in_features) +
                  " x " + std::to_string(linear.out_features) + ", got " +
                  std::to_string(codes.in_features) + " x " + std::to_string(codes.out_features) +
                  "; quantize the model again");
}

double ScaleOf(const quant::QuantizedWeight& codes, size_t in, size_t out) {
  const double channel = codes.channel_scales[out];
  if (codes.block_scales.empty()) return channel;
  const size_t block = in / static_cast<size_t>(codes.block_size);
  return channel * codes.block_scales[block * static_cast<size_t>(codes.out_features) + out];
}

}  // namespace

Result<WeightCheck> CheckWeight(const Checkpoint& checkpoint, const decoder::LinearWeight& linear,
                                const quant::WeightStore& store) {
  HEXPORT_ASSIGN_OR_RETURN(const quant::QuantizedWeight codes, store.Read(linear.name));
  HEXPORT_RETURN_IF_ERROR(CheckSizes(linear, codes));
  const auto in = static_cast<size_t>(linear.in_features);
  const auto all = static_cast<size_t>(linear.out_features);
  WeightCheck out;
  out.row_squares.resize(in);
  AgreementSum sum;
  std::vector<float> rows;
  for (int64_t first = 0; first < linear.out_features; first += kPiece) {
    const int64_t count = std::min(kPiece, linear.out_features - first);
    rows.resize(static_cast<size_t>(count) * in);
    HEXPORT_RETURN_IF_ERROR(checkpoint.ReadRows(linear.tensor, linear.first_row + first, rows));
    for (size_t n = 0; n < static_cast<size_t>(count); ++n) {
      const size_t column = static_cast<size_t>(first) + n;
      double energy = 0.0, kept = 0.0;
      for (size_t k = 0; k < in; ++k) {
        const double weight = static_cast<double>(rows[n * in + k]) * linear.scale;
        const double value = codes.codes[k * all + column] * ScaleOf(codes, k, column);
        sum.AddOne(weight, value);
        out.row_squares[k] += weight * weight;
        energy += weight * weight;
        kept += value * value;
      }
      if (kept < 1e-6 * energy) out.dead.push_back(static_cast<int64_t>(column));
    }
  }
  out.agreement = sum.Get();
  return out;
}

}  // namespace hexport::diagnose
