// Writes the file of quantized weights, linear by linear in the graph's order. Private to
// src/quant.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/progress.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"
#include "quant/weights.h"

namespace hexport::quant {

// Format and block of each linear.
using LinearOptions = std::function<WeightOptions(const decoder::LinearWeight&)>;
// Columns of a linear, [in_features, columns] row-major.
using QuantizeColumns =
    std::function<Result<QuantizedWeight>(std::span<const float> weights, int64_t columns)>;
// `options` for every linear, int8 for lm_head.
LinearOptions UniformOptions(const WeightOptions& options);

class WeightStoreWriter {
 public:
  // Writes the embedding (when the graph has one) in `embedding`, or over its own range, and notes
  // linears that OptionsOf makes int8.
  // The checkpoint must outlive the writer. Errors: kInvalidArgument (block size), kDataLoss
  // (NaN/Inf in the embedding), those of writing.
  static Result<std::unique_ptr<WeightStoreWriter>> Create(const Checkpoint& checkpoint,
                                                           const decoder::DecoderGraph& graph,
                                                           LinearOptions options_of,
                                                           const std::filesystem::path& path,
                                                           Progress& progress,
                                                           std::optional<Encoding> embedding = {});
  // What a linear gets: what `options_of` says, but int8 where the block does not divide its
  // inputs.
  WeightOptions OptionsOf(const decoder::LinearWeight& linear) const;
  // The next linear's codes and scales.
  Status Append(const QuantizedWeight& weight);
  // The next linear, which is as large as the vocabulary: some thousands of columns at a time.
  Status AppendByColumns(const decoder::LinearWeight& linear, const QuantizeColumns& quantize);
  // The next linear, rounded to nearest.
  Status AppendRtn(const decoder::LinearWeight& linear);
  Status Commit();

 private:
  WeightStoreWriter(const Checkpoint& checkpoint, LinearOptions options_of)
      : checkpoint_(checkpoint), options_of_(std::move(options_of)) {}
  const Checkpoint& checkpoint_;
  LinearOptions options_of_;
  std::unique_ptr<SafetensorsWriter> writer_;
};

}  // namespace hexport::quant
