// The float model run one layer at a time: only that layer's weights are in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"
#include "quant/encoding.h"
#include "quant/fake_quant.h"
#include "quant/quant_config.h"
#include "quant/weights.h"

namespace hexport::quant {

// One activation of one sample.
struct ActivationView {
  size_t sample = 0;
  std::string name;               // as BuildDecoder names it in the whole graph
  std::span<const float> values;  // row-major
  int64_t columns = 0;            // last dimension
  // Attention scores of [.., tokens, tokens] rows: before the mask is added, or after.
  enum class Scores { kNone, kUnmasked, kMasked } scores = Scores::kNone;
  int64_t first_column =
      0;  // logits come in pieces of the vocabulary: [tokens, columns] from this one on
  int64_t window = 0;  // of scores: a row sees the last `window` columns up to its own; 0: all
};

// What the walk computes with in place of float weights and activations. References must outlive
// the walk.
struct QuantizedParts {
  const RangeMap& ranges;
  const WeightStore& store;
  const QuantConfig& config;
  FakeQuantOptions options;
};

struct WalkOptions {
  // false: only "logits" are visited. true: every activation, once a sample, except the outputs of
  // ops that move data (MovesData) and of Identity, whose values are their inputs'; and "logits".
  bool every_activation = false;
  // Longest text of the graphs that this walk stands for; it chooses between longrope's factors. 0:
  // each sample's own length, as transformers does.
  int64_t context_length = 0;
  bool head = true;        // false: neither the last norm nor "logits" is computed
  std::string_view stage;  // for progress
  // Changes the graph of each layer before it runs (an adapter applied unmerged); null: none.
  // Neither the embedding nor the output projection passes through it.
  std::function<Status(decoder::DecoderGraph&)> amend = nullptr;
  // Not null: every part computes with the errors of quantization, the output projection too.
  const QuantizedParts* quantized = nullptr;
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
