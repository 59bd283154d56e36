// Weight quantization of a whole model, layer by layer.
//
// Two streams of hidden states run through the decoder: what the float model computes and what the
// layers quantized so far compute. Within a layer the linears are quantized group by group, in the
// order in which they run, each with the inputs that the quantized ones before it give.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"
#include "quant/calibrate.h"
#include "quant/gptq.h"
#include "quant/quant_config.h"
#include "quant/weights.h"

namespace hexport::quant {

struct WeightQuantization {
  QuantConfig config;  // what each linear gets: PlanLinear
  GptqOptions gptq;
  // GPTQ: before rounding, a weight W becomes W + (Xq^T Xq + r)^-1 Xq^T ((Xf - Xq) W + s (Rf -
  // Rq)), so that with the quantized model's inputs Xq it gives what the float model's Xf gave,
  // and, where its output is added to the residual stream R, takes back a share s of what that has
  // lost. r is `correction_ridge` times the mean of Xq^T Xq's diagonal; 0 turns both off. The first
  // term is GPTAQ's asymmetric calibration, arXiv:2504.02692.
  double correction_ridge = 0.05;
  double residual_share = 0.5;
  int64_t context_length = 0;  // WalkOptions'
  // Calibration states past this go to files in `work`.
  int64_t state_limit_bytes = int64_t{400} << 20;
  // Folder for states and finished layers. A layer that was finished under `key` is not done again.
  std::filesystem::path work;
  std::string key;
};

// What a linear lost: |Xq (W' - Q)| / |Xq W'|, with W' the weight that was rounded (for GPTQ the
// corrected one). -1 where no calibration was used.
struct LinearLoss {
  std::string name;
  WeightOptions options;
  Method method = Method::kRtn;
  int64_t bits = 0;  // StoredBits
  int64_t elements = 0;
  double relative_error = -1.0;
};

// Writes the store of WeightStore::Open to `path`. lm_head and the embedding are rounded to
// nearest. Errors: those of reading, of running (kDataLoss naming a tensor with NaN or Inf), of
// writing; kInvalidArgument (samples, a block size). The channel folds of awq and smoothquant are
// `checkpoint`'s own: FoldChannels.
Result<std::vector<LinearLoss>> QuantizeModelWeights(const Checkpoint& checkpoint,
                                                     const decoder::DecoderGraph& graph,
                                                     const WeightQuantization& options,
                                                     const std::vector<TokenIds>& samples,
                                                     const std::filesystem::path& path,
                                                     Progress& progress);

// The linears of a store as QuantizeModelWeights would name them, without their errors. kNotFound:
// a linear of `graph` that the store lacks.
Result<std::vector<LinearLoss>> StoredLinears(const WeightStore& store,
                                              const decoder::DecoderGraph& graph,
                                              const QuantConfig& config);

}  // namespace hexport::quant
