#include "compile/quantize.h"

#include <chrono>
#include <cstdio>
#include <memory>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/sha256.h"
#include "compile/build.h"
#include "compile/build_stages.h"
#include "compile/calibration_data.h"
#include "compile/checkpoint_hash.h"
#include "compile/import_stage.h"
#include "decoder/decoder.h"
#include "ort/session.h"
#include "quant/bit_budget.h"
#include "quant/encodings_import.h"
#include "quant/find_folds.h"
#include "quant/qdq.h"
#include "quant/residual_rotation.h"

namespace hexport::compile {
namespace {

namespace fs = std::filesystem;

Status CheckOptions(const QuantizeOptions& options) {
  if (options.samples < 0) {
    return InvalidArgument("--samples: expected 0 or more, got " + std::to_string(options.samples));
  }
  if (options.sample_tokens < 1) {
    return InvalidArgument("--sample-tokens: expected 1 or more, got " +
                           std::to_string(options.sample_tokens));
  }
  if (options.auto_bits != 0.0 && quant::UsesImport(options.config))
    return InvalidArgument("--auto: the checkpoint's codes decide that; leave one out");
  std::error_code error;
  if (fs::exists(options.out, error) && !options.force) {
    return FailedPrecondition(options.out.string() +
                              ": exists; pass --force to replace it, or give another --out");
  }
  if (fs::exists(options.out, error) && !fs::exists(options.out / "quant.json", error) &&
      !fs::is_empty(options.out, error)) {
    return FailedPrecondition(options.out.string() +
                              ": exists and holds no quantized model, so not even --force "
                              "replaces it; give another --out");
  }
  if (options.auto_bits != 0.0 && options.config.weights.format == quant::WeightFormat::kInt8) {
    return InvalidArgument(
        "--auto: expected --weights lpbq or int4 to start from, got int8, which has nothing to "
        "add");
  }
  return OkStatus();
}

std::string KeyOf(const QuantizeOptions& options, const quant::QuantizedFacts& facts,
                  const std::string& ort_version) {
  const std::string text =
      facts.hexport_version + "|" + ort_version + "|" + facts.source_sha256 + "|" +
      std::to_string(facts.rotation_seed) + "|" + quant::QuantConfigToJson(options.config) + "|" +
      std::to_string(options.auto_bits) + "|" + SamplesAsText(facts.calibration);
  return Sha256Hex(text);
}

// FindFolds, or what it gave an earlier run: `path` keeps it.
Result<std::vector<quant::ChannelFold>> FindFoldsOnce(const QuantizeOptions& options,
                                                      const Checkpoint& base,
                                                      const decoder::DecoderGraph& graph,
                                                      const std::vector<quant::TokenIds>& samples,
                                                      const fs::path& path, Progress& progress) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) {
    Result<std::vector<quant::ChannelFold>> kept = quant::ReadFolds(base, path);
    if (kept.ok()) return kept;
  }
  HEXPORT_ASSIGN_OR_RETURN(std::vector<quant::ChannelFold> folds,
                           quant::FindFolds(base, graph, options.config, samples, 0, progress));
  HEXPORT_RETURN_IF_ERROR(quant::WriteFolds(folds, path));
  return folds;
}

// The view of `base` with channel folds, which go to `folder` too; null when none are asked for.
Result<std::unique_ptr<Checkpoint>> FoldStage(const QuantizeOptions& options,
                                              const Checkpoint& base, const fs::path& work,
                                              const fs::path& folder, const std::string& key,
                                              QuantizeResult& result, Progress& progress) {
  HEXPORT_ASSIGN_OR_RETURN(const decoder::DecoderGraph graph, decoder::BuildDecoder(base, {}));
  HEXPORT_RETURN_IF_ERROR(quant::CheckConfig(options.config, graph));
  if (!quant::NeedsFolds(options.config, graph)) return std::unique_ptr<Checkpoint>();
  StageTimer timer("channels");
  HEXPORT_ASSIGN_OR_RETURN(
      const std::vector<quant::ChannelFold> folds,
      FindFoldsOnce(options, base, graph, result.facts.calibration,
                    work / ("folds_" + key.substr(0, 32) + ".safetensors"), progress));
  HEXPORT_RETURN_IF_ERROR(quant::WriteFolds(folds, folder / quant::kFoldsFile));
  result.facts.folded = true;
  result.report.stages.push_back(timer.Finish());
  return quant::FoldChannels(base, folds);
}

// Codes and scales to `folder`, with the losses.
Status QuantizeWeightsStage(const QuantizeOptions& options, const Checkpoint& weights,
                            const fs::path& work, const fs::path& folder, const std::string& key,
                            QuantizeResult& result, Progress& progress) {
  StageTimer timer("weights");
  HEXPORT_ASSIGN_OR_RETURN(const decoder::DecoderGraph graph, decoder::BuildDecoder(weights, {}));
  quant::WeightQuantization quantization;
  quantization.config = options.config;
  if (options.auto_bits > 0.0) {
    HEXPORT_ASSIGN_OR_RETURN(quantization.config,
                             quant::SpendBits(weights, graph, options.config, options.auto_bits,
                                              result.facts.calibration, work, progress));
  }
  quantization.work = work;
  quantization.key = key;
  HEXPORT_ASSIGN_OR_RETURN(
      result.facts.losses,
      quant::QuantizeModelWeights(weights, graph, quantization, result.facts.calibration,
                                  folder / "weights.safetensors", progress));
  result.facts.config = quantization.config;
  result.report.stages.push_back(timer.Finish());
  return OkStatus();
}

Status RangesStage(const Checkpoint& weights, QuantizeResult& result, Progress& progress) {
  StageTimer timer("ranges");
  HEXPORT_ASSIGN_OR_RETURN(quant::Calibration calibration,
                           quant::Calibrate(weights, result.facts.calibration, progress,
                                            quant::CalibrateOptionsOf(result.facts.config)));
  result.facts.ranges = std::move(calibration.ranges);
  result.warnings.insert(result.warnings.end(), calibration.warnings.begin(),
                         calibration.warnings.end());
  result.report.stages.push_back(timer.Finish());
  return OkStatus();
}

// Codes, ranges and config as an encodings file says.
Status EncodingsStage(const QuantizeOptions& options, const Checkpoint& weights,
                      const fs::path& folder, QuantizeResult& result, Progress& progress) {
  StageTimer timer("encodings");
  const std::string where = options.encodings.string();
  HEXPORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.encodings));
  HEXPORT_ASSIGN_OR_RETURN(const quant::EncodingsFile file, quant::ParseEncodingsFile(text, where));
  result.warnings.insert(result.warnings.end(), file.warnings.begin(), file.warnings.end());
  HEXPORT_ASSIGN_OR_RETURN(const decoder::DecoderGraph graph, decoder::BuildDecoder(weights, {}));
  HEXPORT_RETURN_IF_ERROR(quant::CheckConfig(options.config, graph));
  if (quant::NeedsFolds(options.config, graph)) {
    return InvalidArgument(
        "--encodings: expected a config without channel folds (fold_channels, "
        "awq, smoothquant): they change the weights that the encodings are of");
  }
  Result<quant::ImportedEncodings> imported = quant::ImportEncodings(file, graph, options.config);
  if (!imported.ok()) return imported.status().WithContext(where);
  HEXPORT_RETURN_IF_ERROR(
      quant::WriteOnGrids(weights, graph, file, folder / "weights.safetensors", progress)
          .WithContext(where));
  result.facts.config = std::move(imported->config);
  result.facts.ranges = std::move(imported->ranges);
  result.encodings_in = static_cast<int64_t>(file.activations.size() + file.params.size());
  result.encodings_used = imported->used;
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<quant::WeightStore> store,
                           quant::WeightStore::Open(folder / "weights.safetensors"));
  HEXPORT_ASSIGN_OR_RETURN(result.facts.losses,
                           quant::StoredLinears(*store, graph, result.facts.config));
  // What the NPU's graph refuses shows here and not in a later build.
  HEXPORT_RETURN_IF_ERROR(
      quant::BuildQdq(graph, result.facts.ranges, *store, {result.facts.config}).status());
  result.report.stages.push_back(timer.Finish());
  return OkStatus();
}

Status RunStages(const QuantizeOptions& options, const Checkpoint& base, const fs::path& work,
                 const fs::path& folder, const std::string& key, QuantizeResult& result,
                 Progress& progress) {
  if (!options.encodings.empty()) return EncodingsStage(options, base, folder, result, progress);
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> folded,
                           FoldStage(options, base, work, folder, key, result, progress));
  const Checkpoint& weights = folded != nullptr ? *folded : base;
  HEXPORT_RETURN_IF_ERROR(
      QuantizeWeightsStage(options, weights, work, folder, key, result, progress));
  return RangesStage(weights, result, progress);
}

}  // namespace

Result<QuantizeResult> QuantizeCheckpoint(const QuantizeOptions& given, Progress& progress) {
  QuantizeOptions options = given;
  const auto start = std::chrono::steady_clock::now();
  HEXPORT_RETURN_IF_ERROR(CheckOptions(options));
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> source,
                           Checkpoint::Open(options.model));
  HEXPORT_ASSIGN_OR_RETURN(const TextAssets text, source->Text());
  HEXPORT_ASSIGN_OR_RETURN(
      const CalibrationData data,
      LoadCalibration(options.calibration, text, options.samples, options.sample_tokens));
  QuantizeResult result;
  quant::QuantizedFacts& facts = result.facts;
  result.report.hexport_version = HexportVersion();
  if (quant::UsesImport(options.config)) {
    HEXPORT_ASSIGN_OR_RETURN(const quant::ImportPlan plan,
                             PlanImportStage(*source, options.config, result.report, progress));
    options.config = plan.config;
    options.rotate_residual = false;  // it would change the codes
    result.imported = plan.counts;
    result.warnings = plan.warnings;
  }
  facts.hexport_version = HexportVersion();
  std::error_code error;
  facts.source_path = fs::absolute(options.model, error).string();
  HEXPORT_ASSIGN_OR_RETURN(facts.source_sha256, HashCheckpoint(*source));
  facts.config = options.config;
  facts.calibration_source = data.source;
  facts.calibration = data.samples;
  std::unique_ptr<Checkpoint> rotated;
  if (options.rotate_residual && quant::CanRotateResidual(source->config())) {
    rotated = quant::RotateResidual(*source, quant::kResidualRotationSeed);
    facts.rotation_seed = quant::kResidualRotationSeed;
  } else if (options.rotate_residual) {
    result.warnings.push_back("residual stream not rotated: " + source->config().architecture +
                              " norms what joins it, so the rotation cannot be folded in");
  }
  const Checkpoint& base = rotated != nullptr ? *rotated : *source;
  HEXPORT_ASSIGN_OR_RETURN(const std::string ort_version, ort::OrtVersion());
  const fs::path work = WorkFolderOf(options.out);
  fs::create_directories(work, error);
  if (error) return ErrnoStatus(error.value(), work.string());
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<StagedDirectory> staged,
                           StagedDirectory::Create(options.out, options.force));
  const std::string key = KeyOf(options, facts, ort_version);
  const Status status = RunStages(options, base, work, staged->path(), key, result, progress);
  if (!status.ok()) {
    progress.Note("finished layers are kept in " + work.string() +
                  "; run again to go on from there");
    return status;
  }
  result.report.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  HEXPORT_RETURN_IF_ERROR(
      WriteFileAtomically(staged->path() / "quant.json", quant::QuantizedFactsToJson(facts)));
  HEXPORT_RETURN_IF_ERROR(
      WriteFileAtomically(staged->path() / "report.json", ReportToJson(result.report)));
  HEXPORT_RETURN_IF_ERROR(staged->Commit());
  fs::remove_all(work, error);
  return result;
}

}  // namespace hexport::compile
