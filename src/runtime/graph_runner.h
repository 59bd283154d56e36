// One decoder graph behind float values: builds its inputs from ids and the cache, converts codes
// by the manifest's encodings, and appends what it returns to the cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "bundle/manifest.h"
#include "ort/session.h"
#include "runtime/kv_cache.h"

namespace hexport::runtime {

// What every runner of a bundle has in common.
struct RunnerFacts {
  bundle::ModelFacts model;
  int64_t context_length = 0;
  double mask_floor = -1000.0;
};

// Not thread-safe.
class GraphRunner {
 public:
  // A graph with static shapes. `entry` gives names, shapes and encodings; `session` is its model.
  // The graph has those of the masks and position tables (docs/architecture.md) that its layers
  // read. Errors: kFailedPrecondition when an input or output is missing, has another shape than
  // Genie's layout, or when a cache's input and output encodings differ.
  static Result<std::unique_ptr<GraphRunner>> Create(const RunnerFacts& facts,
                                                     const bundle::GraphEntry& entry,
                                                     std::shared_ptr<ort::Session> session);
  // The float graph with symbolic dimensions, called with `ar` tokens at a time.
  static Result<std::unique_ptr<GraphRunner>> CreateFloat(const RunnerFacts& facts, int64_t ar,
                                                          std::shared_ptr<ort::Session> session);

  int64_t ar() const { return ar_; }
  int64_t stride() const { return facts_.context_length - ar_; }
  DType cache_dtype() const { return cache_dtype_; }
  // The cache's encodings, in the order key 0, value 0, key 1, ...; compare them across graphs.
  const std::vector<bundle::IoEncoding>& cache_encodings() const { return cache_in_; }

  // Runs 1 to ar() ids at position cache.length(), which may be up to stride(). The new tokens go
  // into the cache, but for a last one that would be number context_length: no graph can take it as
  // its past. logits: [rows, vocab_size], every row when `all_rows`, else the last valid one.
  // Errors: kInvalidArgument (too many ids), kResourceExhausted (position), ort::Session::Run's. On
  // an error the cache keeps its length.
  Status Run(std::span<const int32_t> ids, bool all_rows, KvCache& cache,
             std::vector<float>& logits);

 private:
  GraphRunner(const RunnerFacts& facts, int64_t ar, std::shared_ptr<ort::Session> session);
  Status TakeEncodings(const bundle::GraphEntry& entry);
  Status CheckNames() const;
  Status TakeStepInputs(const bundle::GraphEntry& entry);
  void FillInputs(std::span<const int32_t> ids, const KvCache& cache);
  Status Store(const std::vector<ort::Tensor>& outputs, int64_t count, KvCache& cache) const;
  Status TakeLogits(const ort::Tensor& tensor, int64_t count, bool all_rows,
                    std::vector<float>& out) const;

  // A float input and, when the graph wants codes, the same in codes.
  struct Input {
    bundle::IoEncoding io;
    std::vector<float> real;
    std::vector<uint16_t> codes;
  };
  static ort::TensorView View(Input& input);

  RunnerFacts facts_;
  int64_t ar_ = 0;
  std::shared_ptr<ort::Session> session_;
  DType cache_dtype_ = DType::kFloat32;
  std::vector<int32_t> ids_;
  std::vector<Input> steps_;  // the graph's masks, cosines and sines
  bundle::IoEncoding logits_;
  std::vector<bundle::IoEncoding> cache_in_;
  std::vector<std::string> output_names_;  // logits, then key 0, value 0, key 1, ...
};

// Code of a real value: round(value / scale) + zero_point, clamped to 16 bits.
uint16_t ToCode(float value, const bundle::IoEncoding& encoding);

}  // namespace hexport::runtime
