#include "quant/calibrate.h"

#include <algorithm>
#include <string>

#include "quant/layer_walker.h"

namespace hexport::quant {

CalibrateOptions CalibrateOptionsOf(const QuantConfig& config, int64_t context_length) {
  CalibrateOptions options;
  options.ranges = config.ranges;
  options.percentile = config.percentile;
  options.context_length = context_length;
  options.activation_bits = config.activation_bits;
  options.kv_bits = config.kv_bits;
  return options;
}

Result<Calibration> Calibrate(const Checkpoint& checkpoint, const std::vector<TokenIds>& samples,
                              Progress& progress, const CalibrateOptions& options) {
  int64_t tokens = 0;
  for (const TokenIds& sample : samples) tokens += static_cast<int64_t>(sample.size());
  RangeRecorder recorder(options, static_cast<int64_t>(samples.size()), tokens);
  WalkOptions walk;
  walk.every_activation = true;
  walk.context_length = options.context_length;
  walk.stage = "calibrate";
  walk.concurrent = true;
  HEXPORT_RETURN_IF_ERROR(WalkDecoder(
      checkpoint, samples, walk,
      [&recorder](const ActivationView& view) { return recorder.Visit(view); }, progress));
  HEXPORT_ASSIGN_OR_RETURN(
      const decoder::DecoderGraph whole,
      decoder::BuildDecoder(checkpoint, {.context_length = options.context_length}));
  Calibration out = recorder.Finish(whole, checkpoint.config());
  for (const std::string& warning : out.warnings) progress.Note("warning: " + warning);
  return out;
}

Result<Calibration> Calibrate(const Checkpoint& checkpoint, const std::vector<TokenIds>& samples,
                              Progress& progress, int64_t context_length) {
  CalibrateOptions options;
  options.context_length = context_length;
  return Calibrate(checkpoint, samples, progress, options);
}

Result<std::vector<std::vector<float>>> FloatLogits(const Checkpoint& checkpoint,
                                                    const std::vector<TokenIds>& samples,
                                                    Progress& progress, int64_t context_length) {
  const size_t vocab = static_cast<size_t>(checkpoint.config().vocab_size);
  std::vector<std::vector<float>> logits(samples.size());
  const auto visit = [&](const ActivationView& view) -> Status {
    HEXPORT_RETURN_IF_ERROR(CheckFinite(view));
    const size_t rows = samples[view.sample].size(), columns = static_cast<size_t>(view.columns);
    std::vector<float>& out = logits[view.sample];
    out.resize(rows * vocab);
    for (size_t row = 0; row < rows; ++row) {
      const auto piece = view.values.subspan(row * columns, columns);
      std::copy(piece.begin(), piece.end(),
                out.begin() + static_cast<std::ptrdiff_t>(row * vocab) + view.first_column);
    }
    return OkStatus();
  };
  WalkOptions walk;
  walk.context_length = context_length;
  walk.stage = "float reference";
  HEXPORT_RETURN_IF_ERROR(WalkDecoder(checkpoint, samples, walk, visit, progress));
  return logits;
}

}  // namespace hexport::quant
