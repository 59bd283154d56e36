// Every tensor of a quantized model against the float model's, twice: with the float model's inputs
// to its layer, and with those that the quantized layers before it gave.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "diagnose/agreement.h"
#include "diagnose/part_tensors.h"
#include "quant/calibrate.h"
#include "quant/histogram.h"
#include "quant/part_runner.h"
#include "quant/quantized_model.h"

namespace hexport::diagnose {

// One activation, or the weight of one linear.
struct TensorReport {
  std::string tensor;   // in the whole graph; weights end in ".weight"
  int64_t layer = -1;   // the layer that makes it; -1: the embedding, num_hidden_layers: the head
  std::string op_type;  // "" of weights and of the embedding
  std::vector<std::string> inputs, readers;  // PartTensor's
  Agreement own;                             // float inputs to the layer
  Agreement inherited;                       // quantized inputs to the layer; of weights as `own`
  bool float16 = false;                      // a node reads or writes it in float16

  // The rest is of activations. What its encoding alone does to the float values, if it has one.
  std::optional<quant::Encoding> encoding;
  Agreement encoded;
  double clipped = 0.0;        // share of that error's energy that lies beyond the codes' ends
  quant::Range seen;           // of float values
  quant::Histogram histogram;  // of float values
  int64_t peak_channel = -1;   // the last dimension's channel of the largest magnitude
  double peak = 0.0, median_peak = 0.0;  // its magnitude, and the median of all channels' largest

  std::vector<int64_t> dead;  // of weights: WeightCheck's
};

struct Measurement {
  std::vector<TensorReport> tensors;  // in graph order; each weight before the linear's output
  double logits_cosine = 0.0;         // mean over positions, of the whole quantized model's
  double top1 = 0.0;                  // share of positions with the same best next token
  int64_t samples = 0, tokens = 0;
};

// Below this mean cosine of the logits a model is flagged, whichever tensors are to blame.
inline constexpr double kFlaggedBelow = 0.99;
inline bool IsFlagged(const Measurement& measurement) {
  return !(measurement.logits_cosine >= kFlaggedBelow);
}

// What is measured. `weights` is the float model that was quantized (rotated and folded as the
// codes are). References must outlive the call.
struct Subject {
  const Checkpoint& weights;
  quant::QuantizedParts parts;
  int64_t context_length = 0;  // PartOptions'
};

// A quantized model as it is.
Subject SubjectOf(const quant::QuantizedModel& model);

// Memory: two layers and the samples' hidden states, twice. Values beyond float16 in a tensor that
// is computed in it count as infinite. Errors: kInvalidArgument (no samples, an empty one, an id
// outside the vocabulary), kDataLoss (a float activation that is not finite, naming it), those of
// reading, building and running.
Result<Measurement> Measure(const Subject& subject, const std::vector<quant::TokenIds>& samples,
                            std::string_view stage, Progress& progress);

}  // namespace hexport::diagnose
