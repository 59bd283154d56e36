#include "evaluate/target.h"

#include <filesystem>
#include <string>
#include <utility>

#include "base/file.h"
#include "bundle/manifest.h"
#include "compile/checkpoint_hash.h"
#include "evaluate/bits_per_weight.h"
#include "text/fingerprint.h"
#include "text/tokenizer.h"

namespace hexport::evaluate {
namespace {

namespace fs = std::filesystem;

Result<std::string> FingerprintOf(const TextAssets& text) {
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                           Tokenizer::FromJson(text.tokenizer_json));
  HEXPORT_ASSIGN_OR_RETURN(TokenizerFingerprint print, Fingerprint(*tokenizer));
  return std::move(print.sha256);
}

// Logits can be compared token by token only when both models number tokens alike. A target whose
// engine is not open yet has its rows counted in Evaluate.
Status CheckSameTokens(const Target& target, const Checkpoint& reference, const fs::path& path) {
  const int64_t rows = reference.config().vocab_size;
  if (target.engine != nullptr && rows != target.engine->vocab_size()) {
    return InvalidArgument("--reference " + path.string() + ": vocab_size: expected " +
                           std::to_string(target.engine->vocab_size()) + ", got " +
                           std::to_string(rows) + "; pass the model that the target was made from");
  }
  HEXPORT_ASSIGN_OR_RETURN(const TextAssets text, reference.Text());
  HEXPORT_ASSIGN_OR_RETURN(const std::string expected, FingerprintOf(target.text));
  HEXPORT_ASSIGN_OR_RETURN(const std::string got, FingerprintOf(text));
  if (expected != got) {
    return InvalidArgument("--reference " + path.string() +
                           ": expected the target's tokenizer (fingerprint " +
                           expected.substr(0, 16) + "...), got " + got.substr(0, 16) + "...");
  }
  return OkStatus();
}

Status AddReference(const fs::path& path, int64_t context_length, Target& target) {
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  HEXPORT_RETURN_IF_ERROR(CheckSameTokens(target, *checkpoint, path));
  target.reference = FloatSource(std::move(checkpoint), context_length);
  return OkStatus();
}

Result<Target> OpenCheckpoint(const EvalOptions& options) {
  if (options.engine != EvalEngine::kFloat) {
    return InvalidArgument("--engine " + std::string(EvalEngineName(options.engine)) +
                           ": expected float, the only engine of a checkpoint (" +
                           options.target.string() +
                           "); the others run what `hexport build` makes");
  }
  Target target;
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                           Checkpoint::Open(options.target));
  HEXPORT_ASSIGN_OR_RETURN(target.text, checkpoint->Text());
  HEXPORT_ASSIGN_OR_RETURN(target.bits_per_weight, CheckpointBitsPerWeight(*checkpoint));
  target.engine = FloatSource(std::move(checkpoint), 0);
  if (!options.reference.empty())
    HEXPORT_RETURN_IF_ERROR(AddReference(options.reference, 0, target));
  return target;
}

Result<TextAssets> BundleText(const fs::path& bundle, const bundle::Manifest& manifest) {
  TextAssets text;
  HEXPORT_ASSIGN_OR_RETURN(text.tokenizer_json, ReadTextFile(bundle / manifest.tokenizer));
  if (!manifest.chat_template.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(text.chat_template, ReadTextFile(bundle / manifest.chat_template));
    text.template_places["default"] = (bundle / manifest.chat_template).string();
  }
  text.bos_token = manifest.model.bos_token;
  text.eos_token = manifest.model.eos_token;
  return text;
}

// The checkpoint that the bundle was built from.
Result<std::unique_ptr<Checkpoint>> OpenSource(const bundle::Manifest& manifest) {
  Result<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(manifest.source_path);
  if (!checkpoint.ok())
    return checkpoint.status().WithContext("the float model (pass --reference if it has moved)");
  HEXPORT_RETURN_IF_ERROR(compile::CheckHash(**checkpoint, manifest.source_sha256,
                                             manifest.source_path, "this bundle was built from",
                                             "pass --reference"));
  return checkpoint;
}

Result<Target> OpenBundleTarget(const EvalOptions& options, Progress& progress) {
  HEXPORT_ASSIGN_OR_RETURN(const bundle::Manifest manifest,
                           bundle::OpenBundle(options.target, /*hash=*/false));
  Target target;
  HEXPORT_ASSIGN_OR_RETURN(target.text, BundleText(options.target, manifest));
  target.longest_context = manifest.context_length;
  if (options.engine == EvalEngine::kFloat) {
    HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, OpenSource(manifest));
    HEXPORT_ASSIGN_OR_RETURN(target.bits_per_weight, CheckpointBitsPerWeight(*checkpoint));
    target.engine = FloatSource(std::move(checkpoint), manifest.context_length);
    if (options.reference.empty()) return target;
    HEXPORT_RETURN_IF_ERROR(AddReference(options.reference, manifest.context_length, target));
    return target;
  }
  HEXPORT_ASSIGN_OR_RETURN(target.bits_per_weight, BundleBitsPerWeight(options.target, manifest));
  if (options.engine == EvalEngine::kEmulator) {
    target.engine = EmulatorSource(options.target, manifest.model.vocab_size);
  } else {
    progress.Update("open", 0, 0);
    const auto kind =
        options.engine == EvalEngine::kCpu ? runtime::EngineKind::kCpu : runtime::EngineKind::kQdq;
    HEXPORT_ASSIGN_OR_RETURN(target.engine, SessionSource(options.target, kind));
  }
  if (!options.reference.empty()) {
    HEXPORT_RETURN_IF_ERROR(AddReference(options.reference, manifest.context_length, target));
  } else {
    HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, OpenSource(manifest));
    target.reference = FloatSource(std::move(checkpoint), manifest.context_length);
  }
  return target;
}

// A folder of `hexport quantize`.
Result<Target> OpenQuantized(const EvalOptions& options) {
  if (options.engine == EvalEngine::kEmulator) {
    return InvalidArgument("--engine emulator: " + options.target.string() +
                           " is not compiled; build a bundle, or use --engine qdq or cpu");
  }
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<quant::QuantizedModel> model,
                           quant::QuantizedModel::Open(options.target));
  const quant::QuantizedFacts& facts = model->facts();
  HEXPORT_RETURN_IF_ERROR(
      compile::CheckHash(model->source(), facts.source_sha256, facts.source_path,
                         options.target.string() + " was made from", "quantize it again"));
  Target target;
  HEXPORT_ASSIGN_OR_RETURN(target.text, model->source().Text());
  if (options.engine == EvalEngine::kFloat) {
    HEXPORT_ASSIGN_OR_RETURN(target.bits_per_weight, CheckpointBitsPerWeight(model->source()));
    HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                             Checkpoint::Open(facts.source_path));
    target.engine = FloatSource(std::move(checkpoint), facts.context_length);
    if (options.reference.empty()) return target;
    HEXPORT_RETURN_IF_ERROR(AddReference(options.reference, facts.context_length, target));
    return target;
  }
  target.bits_per_weight = quant::BitsPerWeight(facts.losses);
  const fs::path reference =
      options.reference.empty() ? fs::path(facts.source_path) : options.reference;
  const int64_t context = facts.context_length;
  target.engine = QuantizedSource(std::move(model), options.engine == EvalEngine::kQdq);
  HEXPORT_RETURN_IF_ERROR(AddReference(reference, context, target));
  return target;
}

}  // namespace

Result<Target> OpenTarget(const EvalOptions& options, Progress& progress) {
  std::error_code ignored;
  if (fs::exists(options.target / "manifest.json", ignored))
    return OpenBundleTarget(options, progress);
  if (fs::exists(options.target / "quant.json", ignored)) return OpenQuantized(options);
  return OpenCheckpoint(options);
}

}  // namespace hexport::evaluate
