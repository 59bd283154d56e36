// Spends a budget of bits where it is measured to matter.
#pragma once

#include <filesystem>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"
#include "quant/calibrate.h"
#include "quant/quant_config.h"

namespace hexport::quant {

// What one linear, rounded to nearest in its planned format, does to the model's predictions:
// KL(float || the model with all of its layer so rounded), in nats a token, of which it gets the
// share that it alone has in what its layer's linears each do to the residual stream (mean over
// tokens of |h' - h|^2 / |h|^2, on the float model's own inputs). Later layers are float.
struct Sensitivity {
  std::string name;
  double damage = 0.0;
  int64_t bits = 0, int8_bits = 0, elements = 0;
};

// Measures every linear of the layers that is not int8 already, on at most `kSensitivitySamples` of
// the samples, and the predictions at about `kSensitivityTokens` places of them. `work`: for states
// that do not fit in memory. Errors: those of reading and running.
inline constexpr size_t kSensitivitySamples = 4, kSensitivityTokens = 256;
Result<std::vector<Sensitivity>> MeasureSensitivity(
    const Checkpoint& checkpoint, const decoder::DecoderGraph& graph, const QuantConfig& config,
    const std::vector<TokenIds>& samples, const std::filesystem::path& work, Progress& progress);

// `config` with rules that make linears int8, most damage per added bit first, until the average
// bits of the layers' weights (scales included) reach `bits_per_weight`. Errors:
// MeasureSensitivity's; kInvalidArgument when the config alone takes more.
Result<QuantConfig> SpendBits(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
                              const QuantConfig& config, double bits_per_weight,
                              const std::vector<TokenIds>& samples,
                              const std::filesystem::path& work, Progress& progress);

}  // namespace hexport::quant
