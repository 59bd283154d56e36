// Which channel scales to move (quant/channel_folds.h), from what calibration samples show.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"
#include "quant/calibrate.h"
#include "quant/channel_folds.h"
#include "quant/quant_config.h"

namespace hexport::quant {

// An activation between a producer and the linears that read it.
struct FoldInput {
  int64_t channels = 0;
  std::vector<float> rows;            // [tokens, channels], a part of the tokens
  std::vector<float> largest;         // [channels] max |x|, of all tokens
  std::vector<double> magnitude_sum;  // [channels] sum of |x|, of all tokens
  int64_t tokens = 0;                 // that the sums are over
};

// A linear that reads it: [channels, out_features] row-major.
struct FoldReader {
  std::vector<float> weights;
  int64_t out_features = 0;
  WeightOptions format;
};

// SmoothQuant: factor = (max|x|)^alpha / (max|w|)^(1 - alpha), max|w| over all readers' rows of the
// channel (arXiv:2211.10438, equation 4). 1 where either is 0.
std::vector<float> SmoothQuantFactors(const FoldInput& input, std::span<const FoldReader> readers,
                                      double alpha);

// AWQ: factor = (mean|x|)^alpha over the root of the largest times the smallest of them, with the
// alpha in {0, 1/20, .., 19/20} whose rounded weights give the least squared error of the outputs
// over `rows` (arXiv:2306.00978, equations 4 and 5). 1 where the channel is dead. Errors:
// QuantizeRtn's.
Result<std::vector<float>> AwqFactors(const FoldInput& input, std::span<const FoldReader> readers);

// The smallest sum of two errors of the readers' outputs, of rounded weights and of an activation
// with `bits` bits a tensor, over factors (max|x| / its mean)^alpha with alpha in {0, 1/8, .., 1}.
// Errors: QuantizeRtn's.
Result<std::vector<float>> BalancedFactors(const FoldInput& input,
                                           std::span<const FoldReader> readers, int bits);

// Whether the config asks for any fold.
bool NeedsFolds(const QuantConfig& config, const decoder::DecoderGraph& graph);

// Folds for every layer. Linears of method awq and smoothquant get their norm's fold by it. For all
// methods (config.fold_channels): up_proj's and v_proj's channels are balanced against what the
// activation or the cache loses with its bits, and keys are levelled against queries, which costs
// nothing. `samples`: at most 32 of them are run. Memory: one layer's rows. Errors: those of
// reading and running.
Result<std::vector<ChannelFold>> FindFolds(const Checkpoint& checkpoint,
                                           const decoder::DecoderGraph& graph,
                                           const QuantConfig& config,
                                           const std::vector<TokenIds>& samples,
                                           int64_t context_length, Progress& progress);

}  // namespace hexport::quant
