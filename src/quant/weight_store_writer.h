// Writes the file of quantized weights, linear by linear in the graph's order. Private to
// src/quant.
#pragma once

#include <filesystem>
#include <memory>

#include "base/progress.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"
#include "quant/weights.h"

namespace hexport::quant {

class WeightStoreWriter {
 public:
  // Writes the embedding (when the graph has one). Checkpoint, graph and progress must outlive the
  // writer. Errors: kInvalidArgument (block size), kDataLoss (NaN/Inf in the embedding), those of
  // writing.
  static Result<std::unique_ptr<WeightStoreWriter>> Create(const Checkpoint& checkpoint,
                                                           const decoder::DecoderGraph& graph,
                                                           const WeightOptions& options,
                                                           const std::filesystem::path& path,
                                                           Progress& progress);
  // The format a linear gets: int8 for lm_head and where the block does not divide its inputs.
  WeightOptions OptionsOf(const decoder::LinearWeight& linear) const;
  // The next linear's codes and scales.
  Status Append(const QuantizedWeight& weight);
  // The next linear, rounded to nearest.
  Status AppendRtn(const decoder::LinearWeight& linear);
  Status Commit();

 private:
  WeightStoreWriter(const Checkpoint& checkpoint, const WeightOptions& options, Progress& progress)
      : checkpoint_(checkpoint), options_(options), progress_(progress) {}
  const Checkpoint& checkpoint_;
  WeightOptions options_;
  Progress& progress_;
  std::unique_ptr<SafetensorsWriter> writer_;
};

}  // namespace hexport::quant
