// Calibration and the float reference, layer by layer: one decoder layer's weights in memory at a
// time.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"
#include "quant/encoding.h"
#include "quant/histogram.h"
#include "quant/layer_walker.h"
#include "quant/observer.h"
#include "quant/quant_config.h"

namespace hexport::quant {

using TokenIds = std::vector<int32_t>;

struct CalibrateOptions {
  RangeMethod ranges = RangeMethod::kMinMax;
  double percentile = 99.99;     // of kPercentile: above 50, up to 100
  int64_t context_length = 0;    // WalkOptions'
  bool keep_histograms = false;  // for reports: 16 KB an activation
  // What kMse and kEntropy assume: of what linears read and write, and of caches. All else: 16.
  int activation_bits = 16;
  int kv_bits = 8;
};

// How the config chooses ranges.
CalibrateOptions CalibrateOptionsOf(const QuantConfig& config, int64_t context_length = 0);

struct Calibration {
  // For every activation of the whole decoder graph, by the names BuildDecoder gives it (they do
  // not depend on AR or CL). Chosen as the options say, over all samples. Fixed, since the maths
  // gives them: position_ids_cos/sin, with headroom; the masks, [mask floor, 0]; softmax and
  // sigmoid outputs, [0, 1]. past_*_in shares the range of its past_*_out. Attention scores take
  // min and max of what queries see, down to a depth below which softmax is zero.
  RangeMap ranges;
  int64_t samples = 0;
  int64_t tokens = 0;
  std::map<std::string, Histogram> histograms;  // when kept; of scores: what queries see
  // Channels of linears' inputs (their last dimension) that were zero in all samples.
  std::map<std::string, std::vector<int64_t>> dead_channels;
  // For the user: absurd ranges (over 1e6 times the median magnitude, or beyond float16), dead
  // channels, too little data (by its size and by how much ranges still move).
  std::vector<std::string> warnings;
};

// Gathers ranges from activations as they are visited, in any order of layers and samples, each
// activation once a sample.
class RangeRecorder {
 public:
  // `samples`: how many will be visited; `tokens`: of all of them together, for warnings.
  RangeRecorder(const CalibrateOptions& options, int64_t samples, int64_t tokens);
  ~RangeRecorder();
  // Thread-safe for different activations. kDataLoss naming the activation and place of a NaN or
  // Inf.
  Status Visit(const ActivationView& view);
  // Ranges for `whole`, the graph of the whole decoder. Values that are moved or copied take those
  // of their inputs.
  Calibration Finish(const decoder::DecoderGraph& whole, const ModelConfig& config) const;

 private:
  const CalibrateOptions options_;
  const int64_t samples_, tokens_;
  std::mutex mutex_;  // of the map, not of what it holds
  std::map<std::string, Observer> observers_;
};

// Runs each sample through each layer with ONNX Runtime's CPU (one session at a time, hidden states
// kept between layers). Warnings are also noted in `progress`. Errors: kInvalidArgument (no
// samples, id outside the vocabulary), a NaN/Inf activation as kDataLoss naming the tensor.
Result<Calibration> Calibrate(const Checkpoint& checkpoint, const std::vector<TokenIds>& samples,
                              Progress& progress, const CalibrateOptions& options = {});
// By min and max.
Result<Calibration> Calibrate(const Checkpoint& checkpoint, const std::vector<TokenIds>& samples,
                              Progress& progress, int64_t context_length);

// Float32 logits of every position of each sample: result[s] is [tokens, vocab_size] row-major.
// `context_length`: the longest text of the bundle that is compared; it chooses between longrope's
// factors. 0: each sample's own length, as transformers does.
Result<std::vector<std::vector<float>>> FloatLogits(const Checkpoint& checkpoint,
                                                    const std::vector<TokenIds>& samples,
                                                    Progress& progress, int64_t context_length = 0);

inline constexpr float kMaskFloor =
    -1000.0f;  // masked logit; u16 code 0. See docs/architecture.md.

}  // namespace hexport::quant
