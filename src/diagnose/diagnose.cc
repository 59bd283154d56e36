#include "diagnose/diagnose.h"

#include <algorithm>
#include <memory>
#include <system_error>
#include <utility>

#include "bundle/manifest.h"
#include "compile/bundle_model.h"
#include "compile/calibration_data.h"
#include "compile/checkpoint_hash.h"
#include "quant/quantized_model.h"

namespace hexport::diagnose {
namespace {

namespace fs = std::filesystem;

fs::path FixedFolderOf(const DiagnoseOptions& options) {
  if (!options.out.empty()) return options.out;
  fs::path target = options.target;
  if (!target.has_filename()) target = target.parent_path();  // "folder/"
  return target += "-fixed";
}

Status CheckOptions(const DiagnoseOptions& options) {
  if (options.samples < 0)
    return InvalidArgument("--samples: expected 0 or more, got " + std::to_string(options.samples));
  if (options.sample_tokens < 1) {
    return InvalidArgument("--sample-tokens: expected 1 or more, got " +
                           std::to_string(options.sample_tokens));
  }
  if (!(options.threshold > 0.0 && options.threshold < 1.0)) {
    return InvalidArgument("--threshold: expected a cosine between 0 and 1, got " +
                           std::to_string(options.threshold));
  }
  std::error_code ignored;
  if (options.fix && fs::exists(FixedFolderOf(options), ignored)) {
    return FailedPrecondition(FixedFolderOf(options).string() +
                              ": exists; remove it, or give another --out");
  }
  return OkStatus();
}

Result<std::unique_ptr<quant::QuantizedModel>> OpenTarget(const fs::path& target) {
  std::error_code ignored;
  if (fs::exists(target / "manifest.json", ignored)) {
    HEXPORT_ASSIGN_OR_RETURN(const bundle::Manifest manifest,
                             bundle::OpenBundle(target, /*hash=*/false));
    return compile::OpenBundleModel(target, manifest);
  }
  if (!fs::exists(target / "quant.json", ignored)) {
    return InvalidArgument(target.string() +
                           ": expected a bundle, or a folder that `hexport quantize` wrote; it has "
                           "neither manifest.json nor quant.json");
  }
  return quant::QuantizedModel::Open(target);
}

Result<std::vector<quant::TokenIds>> SamplesOf(const DiagnoseOptions& options,
                                               const quant::QuantizedModel& model) {
  std::vector<quant::TokenIds> samples = model.facts().calibration;
  if (!options.calibration.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(const TextAssets text, model.source().Text());
    HEXPORT_ASSIGN_OR_RETURN(compile::CalibrationData data,
                             compile::LoadCalibration(options.calibration, text, options.samples,
                                                      options.sample_tokens));
    samples = std::move(data.samples);
  }
  if (options.samples > 0 && samples.size() > static_cast<size_t>(options.samples))
    samples.resize(static_cast<size_t>(options.samples));
  for (quant::TokenIds& sample : samples) {
    sample.resize(std::min(sample.size(), static_cast<size_t>(options.sample_tokens)));
  }
  return samples;
}

}  // namespace

Result<Diagnosis> Diagnose(const DiagnoseOptions& options, Progress& progress) {
  HEXPORT_RETURN_IF_ERROR(CheckOptions(options));
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<quant::QuantizedModel> model,
                           OpenTarget(options.target));
  HEXPORT_RETURN_IF_ERROR(
      compile::CheckHash(model->source(), model->facts().source_sha256, model->facts().source_path,
                         options.target.string() + " was made from", "quantize it again"));
  HEXPORT_ASSIGN_OR_RETURN(const std::vector<quant::TokenIds> samples, SamplesOf(options, *model));
  Diagnosis out;
  HEXPORT_ASSIGN_OR_RETURN(out.measurement,
                           Measure(SubjectOf(*model), samples, "measure", progress));
  out.findings = FindGuilty(out.measurement, options.threshold);
  const bool repairable =
      std::any_of(out.findings.begin(), out.findings.end(),
                  [](const Finding& finding) { return finding.remedy != Remedy::kNone; });
  if (!options.fix || !repairable) return out;
  FixOptions fix;
  std::error_code ignored;
  fix.folder = fix.facts = options.target;
  if (!fs::exists(fix.facts / "quant.json", ignored)) fix.facts /= compile::kQuantFolder;
  fix.out = FixedFolderOf(options);
  fix.threshold = options.threshold;
  HEXPORT_ASSIGN_OR_RETURN(out.fix, Fix(*model, fix, out.measurement, samples, progress));
  out.fixed = fix.out;
  return out;
}

}  // namespace hexport::diagnose
