#include "compile/build.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/sha256.h"
#include "compile/build_stages.h"
#include "compile/checkpoint_hash.h"
#include "compile/import_stage.h"
#include "decoder/decoder.h"
#include "ort/session.h"
#include "quant/calibrate.h"
#include "quant/channel_folds.h"
#include "quant/quantized_model.h"
#include "quant/residual_rotation.h"
#include "text/fingerprint.h"

namespace hexport::compile {
namespace {

namespace fs = std::filesystem;

// A lock on the working folder for as long as this object lives.
class WorkLock {
 public:
  static Result<std::unique_ptr<WorkLock>> Take(const fs::path& work) {
    const fs::path path = work / "lock";
    auto lock = std::make_unique<WorkLock>();
    lock->fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock->fd_ < 0) return ErrnoStatus(errno, path.string());
    if (::flock(lock->fd_, LOCK_EX | LOCK_NB) != 0) {
      return FailedPrecondition(work.string() +
                                ": another hexport is building this bundle; wait for it to end");
    }
    return lock;
  }
  WorkLock() = default;
  ~WorkLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  WorkLock(const WorkLock&) = delete;
  WorkLock& operator=(const WorkLock&) = delete;

 private:
  int fd_ = -1;
};

std::string SafeName(const std::string& name) {
  std::string out;
  for (const char c : name)
    out += std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' ? c : '_';
  return out.empty() || out[0] == '.' ? "model" + out : out;
}

// Only a bundle, or an empty folder, is ever replaced.
Status CheckOut(const BuildOptions& options) {
  std::error_code error;
  if (options.out.empty()) return InvalidArgument("--out: expected a path, got none");
  if (!fs::exists(options.out, error)) return OkStatus();
  if (!fs::is_directory(options.out, error)) {
    return FailedPrecondition(options.out.string() +
                              ": expected a folder to write the bundle to, got a file");
  }
  if (fs::exists(options.out / "manifest.json", error) || fs::is_empty(options.out, error))
    return OkStatus();
  return FailedPrecondition(
      options.out.string() +
      ": exists and is no bundle, so not even --force replaces it; give another --out");
}

Status CheckOptions(const BuildOptions& options, const device::Soc& soc) {
  HEXPORT_RETURN_IF_ERROR(CheckOut(options));
  if (options.calibration_samples < 0) {
    return InvalidArgument("--samples: expected 0 or more, got " +
                           std::to_string(options.calibration_samples));
  }
  if (options.prompt_ar < 1)
    return InvalidArgument("--ar: expected at least 1, got " + std::to_string(options.prompt_ar));
  if (options.context_length <= options.prompt_ar) {
    return InvalidArgument("--context: expected more than --ar (" +
                           std::to_string(options.prompt_ar) + "), got " +
                           std::to_string(options.context_length));
  }
  if (options.context_length > (int64_t{1} << 20)) {
    return InvalidArgument("--context: expected at most 1048576, got " +
                           std::to_string(options.context_length));
  }
  if (options.config.weights.format == quant::WeightFormat::kLpbq) {
    const int block = options.config.weights.block_size;
    if (block != 16 && block != 32 && block != 64) {
      return InvalidArgument("--block: expected 16, 32 or 64, got " + std::to_string(block));
    }
    if (!soc.supports_lpbq) {
      return Unimplemented("--weights lpbq: needs HTP V69 or newer; " + std::string(soc.name) +
                           " is V" + std::to_string(soc.htp_arch) + "; use --weights int8 or int4");
    }
  }
  return OkStatus();
}

// Room for the codes in the NPU's, the CPU's and the compiler's files; int4 compiles to half.
Status CheckDisk(const Checkpoint& checkpoint, const fs::path& folder) {
  int64_t elements = 0;
  for (const TensorInfo& tensor : checkpoint.tensors())
    elements += std::max<int64_t>(NumElements(tensor.shape), 0);
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  const uint64_t needed = static_cast<uint64_t>(elements) * 6;
  if (error || space.available >= needed) return OkStatus();
  return ResourceExhausted(folder.string() + ": expected about " + std::to_string(needed >> 20) +
                           " MiB of free disk space, got " + std::to_string(space.available >> 20) +
                           " MiB; free some, or give --out on another disk");
}

// Over the files that a build takes from a quantized model.
Result<std::string> HashQuantized(const fs::path& folder) {
  std::string text;
  std::error_code ignored;
  for (const char* name : {"quant.json", "weights.safetensors", quant::kFoldsFile}) {
    if (!fs::exists(folder / name, ignored)) continue;
    HEXPORT_ASSIGN_OR_RETURN(const std::string hash, Sha256File(folder / name));
    text += std::string(name) + " " + hash + "\n";
  }
  return Sha256Hex(text);
}

struct Keys {
  std::string folds, calibrate, quantize, graphs, compile, build;
};

Keys MakeKeys(const BuildContext& context) {
  const BuildOptions& o = context.options;
  const bundle::Manifest& m = context.manifest;
  const std::string base = m.hexport_version + "|" + m.ort_version + "|" + m.source_sha256 +
                           (o.rotate_residual ? "|rotated" : "") + context.quantized_sha256;
  const std::string samples = SamplesAsText(context.calibration.samples);
  Keys keys;
  const bool by_context =
      context.checkpoint->config().rope.scaling.type == RopeScaling::Type::kLongrope;
  const std::string ranges = std::string(quant::RangeMethodName(o.config.ranges)) + "|" +
                             std::to_string(o.config.percentile) + "|" +
                             std::to_string(o.config.activation_bits) + "|" +
                             std::to_string(o.config.kv_bits);
  const bool folds = o.config.fold_channels || o.config.method == quant::Method::kAwq ||
                     o.config.method == quant::Method::kSmoothQuant || !o.config.linears.empty();
  keys.folds = Sha256Hex(base + "|channels|" + samples + "|" +
                         (folds ? quant::QuantConfigToJson(o.config) : "") +
                         (by_context ? "|" + std::to_string(o.context_length) : ""));
  keys.calibrate = Sha256Hex(keys.folds + "|calibrate|" + samples + "|" + ranges +
                             (by_context ? "|" + std::to_string(o.context_length) : ""));
  // Rounding to nearest needs no samples, unless a rule asks for another method.
  const bool uses_samples =
      folds || o.config.method != quant::Method::kRtn || !o.config.linears.empty();
  keys.quantize = Sha256Hex((uses_samples ? keys.calibrate : base) + "|quantize|" +
                            quant::QuantConfigToJson(o.config));
  keys.graphs = Sha256Hex(keys.calibrate + keys.quantize + "|" + std::to_string(o.context_length) +
                          "|" + std::to_string(o.prompt_ar));
  keys.compile = Sha256Hex(keys.graphs + "|" + m.qnn_version + "|" + m.soc);
  keys.build =
      Sha256Hex(keys.compile + "|" + context.text.chat_template + "|" +
                context.text.tokenizer_json + "|" + (o.weight_shared ? "shared" : "plain"));
  return keys;
}

// Every token must have a row of the embedding. Returns the tokenizer's fingerprint.
Result<std::string> CheckTokenizer(const TextAssets& text, int64_t embedding_rows) {
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                           Tokenizer::FromJson(text.tokenizer_json));
  HEXPORT_RETURN_IF_ERROR(CheckIdsWithin(*tokenizer, embedding_rows));
  HEXPORT_ASSIGN_OR_RETURN(TokenizerFingerprint print, Fingerprint(*tokenizer));
  return std::move(print.sha256);
}

// The quantized model's own samples, as long as the graphs take; and that its float model is still
// the one it was made from.
Status TakeCalibration(BuildContext& context) {
  HEXPORT_ASSIGN_OR_RETURN(const quant::QuantizedFacts facts,
                           quant::ReadQuantizedFacts(context.quantized));
  HEXPORT_RETURN_IF_ERROR(CheckHash(*context.checkpoint, facts.source_sha256, facts.source_path,
                                    context.quantized.string() + " was made from",
                                    "quantize it again"));
  context.calibration.source = facts.calibration_source;
  context.calibration.samples = facts.calibration;
  const auto longest =
      static_cast<size_t>(context.options.context_length - context.options.prompt_ar);
  for (quant::TokenIds& sample : context.calibration.samples)
    sample.resize(std::min(sample.size(), longest));
  return OkStatus();
}

// Opens and checks everything that can be refused before the first byte is written.
Status Prepare(BuildContext& context) {
  const BuildOptions& options = context.options;
  HEXPORT_ASSIGN_OR_RETURN(context.soc, device::FindSoc(options.soc));
  HEXPORT_RETURN_IF_ERROR(CheckOptions(options, context.soc));
  Result<std::unique_ptr<Checkpoint>> opened = Checkpoint::Open(options.model);
  if (!opened.ok() && !context.quantized.empty())
    return opened.status().WithContext("the float model that " + context.quantized.string() +
                                       " is made from");
  HEXPORT_ASSIGN_OR_RETURN(context.checkpoint, std::move(opened));
  if (options.rotate_residual && quant::CanRotateResidual(context.checkpoint->config()))
    context.rotated = quant::RotateResidual(*context.checkpoint, quant::kResidualRotationSeed);
  HEXPORT_ASSIGN_OR_RETURN(const decoder::DecoderGraph graph,
                           decoder::BuildDecoder(context.weights(), {}));
  HEXPORT_RETURN_IF_ERROR(quant::CheckConfig(options.config, graph));
  HEXPORT_ASSIGN_OR_RETURN(context.text, context.checkpoint->Text());
  if (!options.chat_template.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(context.text.chat_template, ReadTextFile(options.chat_template));
    context.text.chat_templates = {{"default", context.text.chat_template}};
    context.text.template_places = {{"default", options.chat_template.string()}};
  }
  const ModelConfig& config = context.checkpoint->config();
  if (config.max_position_embeddings > 0 &&
      options.context_length > config.max_position_embeddings) {
    return InvalidArgument("--context: expected at most the model's max_position_embeddings (" +
                           std::to_string(config.max_position_embeddings) + "), got " +
                           std::to_string(options.context_length));
  }
  HEXPORT_ASSIGN_OR_RETURN(context.manifest.tokenizer_fingerprint,
                           CheckTokenizer(context.text, config.vocab_size));
  if (context.quantized.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(
        context.calibration,
        LoadCalibration(options.calibration, context.text, options.calibration_samples,
                        options.context_length - options.prompt_ar));
  } else {
    HEXPORT_RETURN_IF_ERROR(TakeCalibration(context));
  }
  bundle::Manifest& manifest = context.manifest;
  HEXPORT_ASSIGN_OR_RETURN(manifest.ort_version, ort::OrtVersion());
  HEXPORT_ASSIGN_OR_RETURN(manifest.qnn_version, ort::QnnVersion());
  HEXPORT_ASSIGN_OR_RETURN(manifest.source_sha256, HashCheckpoint(*context.checkpoint));
  std::error_code error;
  manifest.source_path = fs::absolute(options.model, error).string();
  manifest.hexport_version = HexportVersion();
  manifest.model = FactsOf(config, context.text, options.context_length);
  manifest.soc = context.soc.name;
  manifest.soc_model = context.soc.soc_model;
  manifest.htp_arch = context.soc.htp_arch;
  manifest.weights = quant::WeightFormatName(options.config.weights.format);
  manifest.block_size = options.config.weights.format == quant::WeightFormat::kLpbq
                            ? options.config.weights.block_size
                            : 0;
  manifest.mask_floor = static_cast<double>(quant::kMaskFloor);
  manifest.context_length = options.context_length;
  manifest.cpu_model = "cpu/model.onnx";
  manifest.tokenizer = "tokenizer.json";
  manifest.chat_template = context.text.chat_template.empty() ? "" : "chat_template.jinja";
  manifest.genie_config = "genie_config.json";
  manifest.backend_config = "htp_backend_ext_config.json";
  manifest.calibration = "calibration.json";
  if (options.weight_shared && context.soc.supports_weight_sharing) {
    manifest.context_binaries = {"context/" + SafeName(config.name) + "_part_1_of_1.bin"};
  }
  return OkStatus();
}

Status RunStages(BuildContext& context, const Keys& keys) {
  HEXPORT_RETURN_IF_ERROR(RunStage(context, "channels", keys.folds,
                                   [&](StageReport& r) { return FoldStage(context, r); }));
  HEXPORT_RETURN_IF_ERROR(LoadFolds(context));
  HEXPORT_RETURN_IF_ERROR(RunStage(context, "calibrate", keys.calibrate,
                                   [&](StageReport& r) { return CalibrateStage(context, r); }));
  HEXPORT_RETURN_IF_ERROR(RunStage(context, "quantize", keys.quantize, [&](StageReport& r) {
    return QuantizeStage(context, keys.quantize, r);
  }));
  HEXPORT_RETURN_IF_ERROR(RunStage(context, "graphs", keys.graphs,
                                   [&](StageReport& r) { return GraphsStage(context, r); }));
  HEXPORT_RETURN_IF_ERROR(LoadGraphs(context));
  for (const bundle::GraphEntry& entry : context.manifest.graphs) {
    HEXPORT_RETURN_IF_ERROR(
        RunStage(context, "compile " + entry.name, keys.compile,
                 [&](StageReport& r) { return CompilePlainStage(context, entry, r); }));
  }
  if (!context.manifest.context_binaries.empty()) {
    HEXPORT_RETURN_IF_ERROR(
        RunStage(context, "compile weight-shared", keys.compile,
                 [&](StageReport& r) { return CompileSharedStage(context, r); }));
  }
  StageTimer timer("bundle");
  const Status status = BundleStage(context, timer.report());
  context.report.stages.push_back(timer.Finish());
  return status.WithContext("bundle");
}

// report.json and manifest.json, then the folder takes its name.
Status Publish(BuildContext& context) {
  const fs::path root = context.bundle();
  HEXPORT_RETURN_IF_ERROR(WriteFileAtomically(root / "report.json", ReportToJson(context.report)));
  bundle::FileEntry entry;
  entry.path = "report.json";
  entry.bytes = static_cast<int64_t>(fs::file_size(root / "report.json"));
  HEXPORT_ASSIGN_OR_RETURN(entry.sha256, Sha256File(root / "report.json"));
  context.manifest.files.push_back(std::move(entry));
  HEXPORT_RETURN_IF_ERROR(
      WriteFileAtomically(root / "manifest.json", bundle::ManifestToJson(context.manifest)));
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<StagedDirectory> staged,
                           StagedDirectory::Create(context.options.out, context.options.force));
  std::error_code error;
  for (const auto& file : fs::directory_iterator(root)) {
    fs::rename(file.path(), staged->path() / file.path().filename(), error);
    if (error) return ErrnoStatus(error.value(), file.path().string());
  }
  return staged->Commit();
}

// True when `out` is a bundle of this very build.
bool IsUpToDate(const BuildContext& context) {
  Result<bundle::Manifest> old = bundle::OpenBundle(context.options.out, /*hash=*/false);
  return old.ok() && old->build_key == context.manifest.build_key;
}

Status PrepareWorkFolder(BuildContext& context) {
  context.work = WorkFolderOf(context.options.out);
  std::error_code error;
  for (const fs::path& folder : {context.work / "stages", context.bundle()}) {
    fs::create_directories(folder, error);
    if (error) return ErrnoStatus(error.value(), folder.string());
  }
  return OkStatus();
}

}  // namespace

std::string HexportVersion() { return "0.1.0"; }

namespace {

// Turns method import into what it means for each linear of the model.
Status SettleImport(BuildOptions& options, BuildReport& report, Progress& progress) {
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> source,
                           Checkpoint::Open(options.model));
  HEXPORT_ASSIGN_OR_RETURN(const quant::ImportPlan plan,
                           PlanImportStage(*source, options.config, report, progress));
  for (const std::string& warning : plan.warnings) progress.Note("warning: " + warning);
  options.config = plan.config;
  options.rotate_residual = false;  // it would change the codes
  return OkStatus();
}

// `quantized`: what `hexport quantize` made of options.model; or empty.
Result<BuildResult> BuildFrom(const BuildOptions& given, const StageReport* merged,
                              const fs::path& quantized, Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  BuildOptions options = given;
  BuildContext context{options, progress};
  context.quantized = quantized;
  if (!quantized.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(context.quantized_sha256, HashQuantized(quantized));
  }
  context.report.hexport_version = HexportVersion();
  if (merged != nullptr) context.report.stages.push_back(*merged);
  if (quantized.empty() && quant::UsesImport(options.config))
    HEXPORT_RETURN_IF_ERROR(SettleImport(options, context.report, progress));
  StageTimer timer("checkpoint");
  progress.Update("checkpoint", 0, 0);
  HEXPORT_RETURN_IF_ERROR(Prepare(context));
  context.report.stages.push_back(timer.Finish());
  const Keys keys = MakeKeys(context);
  context.manifest.build_key = keys.build;
  std::error_code error;
  if (fs::exists(options.out, error) && !options.force) {
    if (IsUpToDate(context))
      return BuildResult{std::move(context.manifest), std::move(context.report), true, {}};
    return FailedPrecondition(
        options.out.string() +
        ": exists and is not this build (other inputs, options or versions); pass --force to "
        "replace it, or give another --out");
  }
  HEXPORT_RETURN_IF_ERROR(PrepareWorkFolder(context));
  Status status;
  {
    HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<WorkLock> lock, WorkLock::Take(context.work));
    status = CheckDisk(*context.checkpoint, context.work);
    if (status.ok()) status = RunStages(context, keys);
    context.report.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (status.ok()) status = Publish(context);
  }
  const bool resumable = context.any_finished && status.code() != StatusCode::kResourceExhausted &&
                         status.code() != StatusCode::kPermissionDenied;
  if (status.ok() ? !options.keep_work : !resumable) fs::remove_all(context.work, error);
  if (!status.ok()) {
    if (resumable)
      progress.Note("finished stages are kept in " + context.work.string() +
                    "; run again to go on from there");
    return status;
  }
  return BuildResult{std::move(context.manifest), std::move(context.report), false, {}};
}

// Merges the adapters into a folder that stays beside the bundle, then builds from it.
Result<BuildResult> BuildWithAdapters(const BuildOptions& options, Progress& progress) {
  MergeModelOptions merge = options.merge;
  merge.base = options.model;
  merge.samples = options.calibration;
  const fs::path absolute = fs::absolute(options.out).lexically_normal();
  const fs::path out = absolute.has_filename() ? absolute : absolute.parent_path();
  if (merge.out.empty()) merge.out = out.string() + "-merged";
  HEXPORT_ASSIGN_OR_RETURN(const device::Soc soc, device::FindSoc(options.soc));
  HEXPORT_RETURN_IF_ERROR(CheckOptions(options, soc));  // before minutes of merging
  std::optional<MergeModelResult> merged;
  StageTimer timer("merge");
  if (IsMergeOf(merge.out, merge)) {
    timer.report().reused = true;
    progress.Note("reused the merged model " + merge.out.string());
  } else {
    merge.force = merge.force || options.force;
    HEXPORT_ASSIGN_OR_RETURN(merged, MergeModel(merge, progress));
    timer.report().notes = merged->warnings;
    for (const std::string& warning : merged->warnings) progress.Note("warning: " + warning);
  }
  const StageReport stage = timer.Finish();
  if (merged.has_value() && !merged->failures.empty()) {
    BuildResult failed;
    failed.merge = std::move(merged);
    return failed;
  }
  BuildOptions from_merged = options;
  from_merged.model = merge.out;
  from_merged.merge = {};
  HEXPORT_ASSIGN_OR_RETURN(BuildResult result, BuildFrom(from_merged, &stage, {}, progress));
  result.merge = std::move(merged);
  return result;
}

Result<BuildResult> BuildFromQuantized(const BuildOptions& options, Progress& progress) {
  HEXPORT_ASSIGN_OR_RETURN(const quant::QuantizedFacts facts,
                           quant::ReadQuantizedFacts(options.model));
  if (!options.merge.adapters.empty()) {
    return InvalidArgument("--adapter: expected a float model to merge into, got " +
                           options.model.string() +
                           ", which is quantized; quantize the merged model");
  }
  BuildOptions from_source = options;
  from_source.model = facts.source_path;
  from_source.config = facts.config;
  from_source.rotate_residual = facts.rotation_seed != 0;
  return BuildFrom(from_source, nullptr, options.model, progress);
}

}  // namespace

Result<BuildResult> Build(const BuildOptions& options, Progress& progress) {
  if (quant::IsQuantizedModel(options.model)) return BuildFromQuantized(options, progress);
  if (!options.merge.adapters.empty()) return BuildWithAdapters(options, progress);
  return BuildFrom(options, nullptr, {}, progress);
}

}  // namespace hexport::compile
