// One part of the decoder, run with its activations visible: a layer, or the last norm and the
// output projection. Only that part's weights are in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"
#include "graph/graph.h"
#include "ort/session.h"
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

// What a part computes with in place of float weights and activations. References must outlive it.
struct QuantizedParts {
  const RangeMap& ranges;
  const WeightStore& store;
  const QuantConfig& config;
  FakeQuantOptions options;
};

struct PartOptions {
  // false: only "logits" are visible. true: every activation, except the outputs of ops that move
  // data (MovesData) and of Identity, whose values are their inputs'; and "logits".
  bool every_activation = false;
  // Outputs of Identity too, where activations change to the cache's encoding.
  bool copies = false;
  // Longest text of the graphs that this part stands for; it chooses between longrope's factors. 0:
  // each sample's own length, as transformers does.
  int64_t context_length = 0;
  // Changes the graph of a layer before it runs (an adapter applied unmerged); null: none. Neither
  // the embedding nor the output projection passes through it.
  std::function<Status(decoder::DecoderGraph&)> amend = nullptr;
  // Not null: the part computes with the errors of quantization, the output projection too.
  const QuantizedParts* quantized = nullptr;
};

struct PartResult {
  std::vector<ort::Tensor> tensors;  // own what the rest shows
  std::vector<ActivationView> activations;
  std::span<const float> hidden;  // of a layer: [tokens, hidden_size]
};

class PartRunner {
 public:
  // `checkpoint` must outlive it. Errors: those of building, reading and opening a session.
  static Result<std::unique_ptr<PartRunner>> OpenLayer(const Checkpoint& checkpoint, int64_t layer,
                                                       const PartOptions& options);
  static Result<std::unique_ptr<PartRunner>> OpenHead(const Checkpoint& checkpoint,
                                                      const PartOptions& options);
  virtual ~PartRunner() = default;

  // The output projection is as large as the vocabulary, so the head runs in pieces of it: Load
  // one, then Run each sample. A layer is one piece.
  virtual size_t pieces() const { return 1; }
  virtual Status Load(size_t piece) = 0;
  // One causal text without past; `hidden`, [tokens, hidden_size], is what the part reads. `sample`
  // is for the views. Of the head: "logits" of the loaded piece, all else with piece 0.
  virtual Result<PartResult> Run(size_t sample, std::span<const float> hidden) = 0;

  // The part in float, of dynamic size, as BuildDecoder makes it.
  const decoder::DecoderGraph& decoder() const { return decoder_; }
  // An activation's name in the whole graph.
  const std::string& FullName(const std::string& name) const;
  // Of a quantized part, by names in `decoder()`: the encodings of activations that have one, and
  // which activations a node reads or writes in float16.
  const EncodingMap& encodings() const { return encodings_; }
  const std::set<std::string>& float16() const { return float16_; }

 protected:
  PartRunner() = default;
  decoder::DecoderGraph decoder_;
  EncodingMap encodings_;
  std::set<std::string> float16_;
  std::map<std::string, std::string> full_names_;
};

}  // namespace hexport::quant
