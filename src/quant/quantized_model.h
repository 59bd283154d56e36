// A quantized model on disk (what `hexport quantize` writes), and running it layer by layer.
//
//   quant.json            this header's QuantizedFacts
//   weights.safetensors   codes and scales: WeightStore
//   folds.safetensors     channel scales that were moved: ReadFolds; absent when there are none
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "quant/calibrate.h"
#include "quant/layer_walker.h"
#include "quant/quant_config.h"
#include "quant/quantize.h"
#include "quant/weights.h"

namespace hexport::quant {

// 2: a range may be [min, max, scale, zero_point, bits], Range::exact. Files without such ranges
// are written as version 1.
inline constexpr int64_t kQuantSchemaVersion = 2;

struct QuantizedFacts {
  std::string hexport_version;
  std::string source_path, source_sha256;  // the float checkpoint; the hash is HashCheckpoint's
  uint64_t rotation_seed = 0;              // of RotateResidual; 0: not rotated
  bool folded = false;                     // folds.safetensors is there
  QuantConfig config;
  int64_t context_length = 0;  // WalkOptions'
  RangeMap ranges;             // of every activation, calibrated
  std::vector<LinearLoss> losses;
  std::string calibration_source;
  std::vector<TokenIds> calibration;  // the samples
};

// Bits of all decoder linears' codes and scales over their number of weights; lm_head and the
// embedding are not counted.
double BitsPerWeight(const std::vector<LinearLoss>& losses);

// Ranges as JSON: {"name": [min, max]} or, with exact encodings, [min, max, scale, zero_point,
// bits].
std::string RangesToJson(const RangeMap& ranges);
// kDataLoss with `where` and the name.
Result<RangeMap> ParseRanges(std::string_view text, const std::string& where);

std::string QuantizedFactsToJson(const QuantizedFacts& facts);
// kDataLoss (no JSON, a field that is missing or of another type), kUnimplemented (a newer schema),
// with `where`.
Result<QuantizedFacts> ParseQuantizedFacts(std::string_view text, const std::string& where);

// Whether `path` is a folder of a quantized model: whether quant.json is in it.
bool IsQuantizedModel(const std::filesystem::path& path);
// Its quant.json. Errors: those of reading and ParseQuantizedFacts.
Result<QuantizedFacts> ReadQuantizedFacts(const std::filesystem::path& folder);

class QuantizedModel {
 public:
  // Opens `folder` and the float checkpoint it was made from, or `source` when given. Errors: those
  // of reading; kNotFound naming the checkpoint when it has moved.
  static Result<std::unique_ptr<QuantizedModel>> Open(const std::filesystem::path& folder,
                                                      const std::filesystem::path& source = {});
  const QuantizedFacts& facts() const { return facts_; }
  const Checkpoint& source() const { return *source_; }  // as it stands on the disk
  // The weights that were quantized: the source, or a rotated and folded view of it.
  const Checkpoint& weights() const {
    return folded_ != nullptr ? *folded_ : rotated_ != nullptr ? *rotated_ : *source_;
  }
  const WeightStore& store() const { return *store_; }

 private:
  QuantizedModel() = default;
  QuantizedFacts facts_;
  std::unique_ptr<Checkpoint> source_, rotated_, folded_;
  std::unique_ptr<WeightStore> store_;
};

struct QuantizedWalkOptions {
  bool every_activation = false;  // WalkOptions'
  bool activations = true;        // false: weights alone are quantized
  bool weights = true;
  std::set<std::string> float_activations = {};  // FakeQuantOptions'
  std::string_view stage = "quantized";
};

// WalkDecoder with the errors of quantization: the same visits, of dequantized values. Errors:
// WalkDecoder's and BuildFakeQuant's.
Status WalkQuantized(const QuantizedModel& model, const std::vector<TokenIds>& samples,
                     const QuantizedWalkOptions& options, const ActivationVisitor& visit,
                     Progress& progress);

}  // namespace hexport::quant
