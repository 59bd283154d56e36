// The float model run one layer at a time: only that layer's weights are in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "quant/part_runner.h"

namespace hexport::quant {

// Of every sample, each activation once; PartOptions says which.
struct WalkOptions : PartOptions {
  bool head = true;        // false: neither the last norm nor "logits" is computed
  std::string_view stage;  // for progress
  // The visitor may be called on several threads at once, for different activations of one sample.
  bool concurrent = false;
};

using ActivationVisitor = std::function<Status(const ActivationView&)>;

// kInvalidArgument: no samples, an empty one, an id outside the vocabulary.
Status CheckSamples(const std::vector<std::vector<int32_t>>& samples, int64_t vocab_size);

// What the embedding gives for one text: [tokens, hidden_size]. Errors: ReadEmbedding's.
Result<std::vector<float>> EmbedSample(const Checkpoint& checkpoint,
                                       const std::vector<int32_t>& sample);

// Each sample is one causal text without past. Errors: kInvalidArgument (no samples, an empty one,
// an id outside the vocabulary), the visitor's, those of reading and running.
Status WalkDecoder(const Checkpoint& checkpoint, const std::vector<std::vector<int32_t>>& samples,
                   const WalkOptions& options, const ActivationVisitor& visit, Progress& progress);

}  // namespace hexport::quant
