// The stages behind Build(); private to this folder.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/progress.h"
#include "bundle/manifest.h"
#include "checkpoint/checkpoint.h"
#include "compile/build.h"
#include "compile/calibration_data.h"
#include "compile/report.h"
#include "device/soc.h"

namespace hexport::compile {

// Everything the stages share. `work` holds stages/<name> (the key of each finished stage),
// folds.safetensors, ranges.json, weights.safetensors, graphs.json and bundle/ (the bundle as far
// as it stands).
struct BuildContext {
  const BuildOptions& options;
  Progress& progress;
  device::Soc soc = {};
  std::filesystem::path work = {};
  std::unique_ptr<Checkpoint> checkpoint = nullptr;  // as it stands on the disk
  std::unique_ptr<Checkpoint> rotated =
      nullptr;  // a view of it with the residual stream rotated; null when not asked for
  std::unique_ptr<Checkpoint> folded = nullptr;  // a view of that with channel folds; null likewise
  // What `hexport quantize` wrote, when it is built from that; else empty.
  std::filesystem::path quantized = {};
  std::string quantized_sha256 = {};  // over its files
  TextAssets text = {};
  CalibrationData calibration = {};
  bundle::Manifest manifest = {};
  BuildReport report = {};
  bool any_finished = false;

  // The weights that are calibrated and quantized.
  const Checkpoint& weights() const {
    return folded != nullptr ? *folded : rotated != nullptr ? *rotated : *checkpoint;
  }
  std::filesystem::path bundle() const { return work / "bundle"; }
};

// "<parent of out>/.<name>.hexport-work".
std::filesystem::path WorkFolderOf(const std::filesystem::path& out);
// The token ids, for keys.
std::string SamplesAsText(const std::vector<std::vector<int32_t>>& samples);

// Runs `body` unless work/stages/<name> holds `key`; records its report and, on success, the key.
Status RunStage(BuildContext& context, const std::string& name, const std::string& key,
                const std::function<Status(StageReport&)>& body);

// Writes folds.safetensors.
Status FoldStage(BuildContext& context, StageReport& report);
// Of a finished FoldStage into context.folded.
Status LoadFolds(BuildContext& context);
Status CalibrateStage(BuildContext& context, StageReport& report);
// `key`: the stage's; finished layers are kept under it.
Status QuantizeStage(BuildContext& context, const std::string& key, StageReport& report);
Status GraphsStage(BuildContext& context, StageReport& report);
Status CompilePlainStage(BuildContext& context, const bundle::GraphEntry& entry,
                         StageReport& report);
Status CompileSharedStage(BuildContext& context, StageReport& report);
// Writes everything but report.json and manifest.json, and hashes it into context.manifest.files.
Status BundleStage(BuildContext& context, StageReport& report);

// The graphs of the build with their file names, before anything is built.
std::vector<bundle::GraphEntry> PlanGraphs(const BuildOptions& options);
// graphs.json of a finished GraphsStage into context.manifest.graphs.
Status LoadGraphs(BuildContext& context);
bundle::ModelFacts FactsOf(const ModelConfig& config, const TextAssets& text,
                           int64_t context_length);

}  // namespace hexport::compile
