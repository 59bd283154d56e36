#include "compile/verify.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/mapped_file.h"
#include "bundle/manifest.h"
#include "checkpoint/checkpoint.h"
#include "compile/checkpoint_hash.h"
#include "compile/genie_run.h"
#include "compile/worker.h"
#include "quant/calibrate.h"
#include "runtime/session.h"
#include "text/fingerprint.h"

namespace hexport::compile {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// Cosine and top-1 agreement of two streams of logits, summed in double.
class Agreement {
 public:
  void Add(std::span<const float> a, std::span<const float> b, size_t vocab_size) {
    for (size_t row = 0; row + vocab_size <= a.size(); row += vocab_size) {
      size_t best_a = row, best_b = row;
      for (size_t i = row; i < row + vocab_size; ++i) {
        const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
        dot_ += x * y;
        aa_ += x * x;
        bb_ += y * y;
        if (a[i] > a[best_a]) best_a = i;
        if (b[i] > b[best_b]) best_b = i;
      }
      same_ += best_a == best_b ? 1 : 0;
      ++rows_;
    }
  }
  double cosine() const { return dot_ / (std::sqrt(aa_) * std::sqrt(bb_) + 1e-300); }
  double top1() const {
    return rows_ == 0 ? 0 : static_cast<double>(same_) / static_cast<double>(rows_);
  }

 private:
  double dot_ = 0, aa_ = 0, bb_ = 0;
  int64_t same_ = 0, rows_ = 0;
};

struct Thresholds {
  double float_qdq, qdq_emulator, float_emulator_top1;
};

// int8 weights must stay close to float. Round-to-nearest int4 is known to lose accuracy, which is
// a fact about the method and not a fault of the bundle: there only the emulator is held to the QDQ
// graph.
Thresholds DefaultThresholds(const std::string& weights) {
  if (weights == "int8") return {.997, .995, .95};
  return {0, .99, 0};
}

// The last sample that is kept may be cut.
void CutSamples(int64_t max_tokens, std::vector<quant::TokenIds>& samples) {
  if (max_tokens <= 0) return;
  auto room = static_cast<size_t>(max_tokens);
  for (quant::TokenIds& sample : samples) {
    sample.resize(std::min(sample.size(), room));
    room -= sample.size();
  }
  std::erase_if(samples, [](const quant::TokenIds& sample) { return sample.empty(); });
}

Result<std::vector<quant::TokenIds>> LoadSamples(const VerifyOptions& options,
                                                 const bundle::Manifest& manifest) {
  const fs::path path = options.bundle / manifest.calibration;
  HEXPORT_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path));
  try {
    auto samples = json::parse(text).at("samples").get<std::vector<quant::TokenIds>>();
    if (options.samples > 0 && static_cast<size_t>(options.samples) < samples.size()) {
      samples.resize(static_cast<size_t>(options.samples));
    }
    CutSamples(options.max_tokens, samples);
    return samples;
  } catch (const json::exception& e) {
    return DataLoss(path.string() + ": " + e.what());
  }
}

Result<std::vector<std::vector<float>>> FloatReference(const VerifyOptions& options,
                                                       const bundle::Manifest& manifest,
                                                       const std::vector<quant::TokenIds>& samples,
                                                       Progress& progress) {
  const fs::path path = options.model.empty() ? fs::path(manifest.source_path) : options.model;
  Result<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(path);
  if (!checkpoint.ok()) {
    return checkpoint.status().WithContext("the float reference (pass --model if it has moved)");
  }
  HEXPORT_ASSIGN_OR_RETURN(std::string hash, HashCheckpoint(**checkpoint));
  if (hash != manifest.source_sha256) {
    return FailedPrecondition(
        path.string() + ": not the checkpoint this bundle was built from: expected SHA-256 " +
        manifest.source_sha256.substr(0, 16) + "..., got " + hash.substr(0, 16) + "...");
  }
  return quant::FloatLogits(**checkpoint, samples, progress, manifest.context_length);
}

Result<std::vector<std::vector<float>>> HostLogits(const fs::path& bundle, runtime::EngineKind kind,
                                                   const std::vector<quant::TokenIds>& samples,
                                                   const char* stage, Progress& progress) {
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Session> session,
                           runtime::Session::Create(bundle, kind));
  std::vector<std::vector<float>> out;
  for (size_t i = 0; i < samples.size(); ++i) {
    progress.Update(stage, static_cast<int64_t>(i), static_cast<int64_t>(samples.size()));
    HEXPORT_ASSIGN_OR_RETURN(std::vector<float> logits, session->Logits(samples[i]));
    out.push_back(std::move(logits));
  }
  return out;
}

Result<std::vector<std::vector<float>>> EmulatorLogits(const fs::path& bundle, int64_t vocab_size,
                                                       const std::vector<quant::TokenIds>& samples,
                                                       Progress& progress, double* seconds) {
  const fs::path file =
      fs::temp_directory_path() / ("hexport-logits-" + std::to_string(::getpid()) + ".f32");
  const json request = {{"bundle", bundle.string()},
                        {"engine", "emulator"},
                        {"samples", samples},
                        {"out", file.string()}};
  progress.Update("emulator", 0, static_cast<int64_t>(samples.size()));
  WorkerReport report;
  Result<json> result = CallWorker(
      "logits", request, "emulator",
      [&](const json& event) {
        progress.Update("emulator", event.value("done", int64_t{0}),
                        event.value("total", int64_t{0}));
      },
      &report);
  *seconds = report.seconds;
  std::vector<std::vector<float>> out;
  std::error_code ignored;
  if (result.ok()) {
    HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> mapped, MappedFile::Open(file));
    size_t offset = 0;
    for (const auto& sample : samples) {
      std::vector<float> rows(sample.size() * static_cast<size_t>(vocab_size));
      if (offset + rows.size() * sizeof(float) > mapped->bytes().size())
        return Internal("emulator: too few logits");
      std::memcpy(rows.data(), mapped->bytes().data() + offset, rows.size() * sizeof(float));
      offset += rows.size() * sizeof(float);
      out.push_back(std::move(rows));
    }
  }
  fs::remove(file, ignored);
  if (!result.ok()) return result.status();
  return out;
}

Agreement Compare(const std::vector<std::vector<float>>& a,
                  const std::vector<std::vector<float>>& b, int64_t vocab_size) {
  Agreement agreement;
  for (size_t i = 0; i < a.size(); ++i) agreement.Add(a[i], b[i], static_cast<size_t>(vocab_size));
  return agreement;
}

void CheckThreshold(const char* name, std::optional<double> value, double least,
                    VerifyResult& result) {
  if (!value.has_value() || *value >= least) return;
  result.failures.push_back(std::string(name) + ": expected at least " + std::to_string(least) +
                            ", got " + std::to_string(*value));
}

// The bundle's tokenizer must still say what it said when the bundle was built, within the rows of
// the embedding. Bundles of manifest version 1 hold no fingerprint.
Status CheckTokenizer(const VerifyOptions& options, const bundle::Manifest& manifest,
                      VerifyResult& result) {
  const fs::path path = options.bundle / manifest.tokenizer;
  HEXPORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::FromJson(text));
  const Status fits = CheckIdsWithin(*tokenizer, manifest.model.vocab_size);
  if (!fits.ok()) result.failures.push_back(path.string() + ": " + std::string(fits.message()));
  HEXPORT_ASSIGN_OR_RETURN(const TokenizerFingerprint print, Fingerprint(*tokenizer));
  result.tokenizer_fingerprint = print.sha256;
  if (!manifest.tokenizer_fingerprint.empty() && manifest.tokenizer_fingerprint != print.sha256) {
    result.failures.push_back(path.string() + ": fingerprint: expected " +
                              manifest.tokenizer_fingerprint +
                              " as when the bundle was built, got " + print.sha256);
  }
  return OkStatus();
}

}  // namespace

Result<VerifyResult> Verify(const VerifyOptions& options, Progress& progress) {
  if (options.samples < 0) {
    return InvalidArgument("--samples: expected 0 or more, got " + std::to_string(options.samples));
  }
  if (options.max_tokens < 0) {
    return InvalidArgument("--tokens: expected 0 or more, got " +
                           std::to_string(options.max_tokens));
  }
  progress.Update("hashes", 0, 0);
  HEXPORT_ASSIGN_OR_RETURN(bundle::Manifest manifest,
                           bundle::OpenBundle(options.bundle, /*hash=*/true));
  HEXPORT_ASSIGN_OR_RETURN(std::vector<quant::TokenIds> samples, LoadSamples(options, manifest));
  const int64_t vocab_size = manifest.model.vocab_size;
  VerifyResult result;
  HEXPORT_RETURN_IF_ERROR(CheckTokenizer(options, manifest, result));
  result.samples = static_cast<int64_t>(samples.size());
  for (const auto& sample : samples) result.tokens += static_cast<int64_t>(sample.size());

  HEXPORT_ASSIGN_OR_RETURN(auto reference, FloatReference(options, manifest, samples, progress));
  {
    HEXPORT_ASSIGN_OR_RETURN(
        auto cpu, HostLogits(options.bundle, runtime::EngineKind::kCpu, samples, "cpu", progress));
    result.cosine_float_cpu = Compare(reference, cpu, vocab_size).cosine();
  }
  HEXPORT_ASSIGN_OR_RETURN(
      auto qdq, HostLogits(options.bundle, runtime::EngineKind::kQdq, samples, "qdq", progress));
  const Agreement float_qdq = Compare(reference, qdq, vocab_size);
  result.cosine_float_qdq = float_qdq.cosine();
  result.top1_float_qdq = float_qdq.top1();
  if (options.emulator) {
    HEXPORT_ASSIGN_OR_RETURN(auto emulator, EmulatorLogits(options.bundle, vocab_size, samples,
                                                           progress, &result.emulator_seconds));
    result.cosine_qdq_emulator = Compare(qdq, emulator, vocab_size).cosine();
    const Agreement float_emulator = Compare(reference, emulator, vocab_size);
    result.cosine_float_emulator = float_emulator.cosine();
    result.top1_float_emulator = float_emulator.top1();
  }
  if (!options.genie_prompt.empty()) {
    progress.Update("genie", 0, 0);
    GenieRequest request;
    request.prompt = options.genie_prompt;
    request.max_tokens = options.genie_max_tokens;
    HEXPORT_ASSIGN_OR_RETURN(result.genie_answer, AskGenie(options.bundle, manifest, request, {}));
  }
  const Thresholds least = DefaultThresholds(manifest.weights);
  CheckThreshold("cosine_float_qdq", result.cosine_float_qdq,
                 options.min_cosine_float_qdq.value_or(least.float_qdq), result);
  CheckThreshold("cosine_qdq_emulator", result.cosine_qdq_emulator,
                 options.min_cosine_qdq_emulator.value_or(least.qdq_emulator), result);
  const double top1 = options.min_top1_float_emulator.value_or(least.float_emulator_top1);
  if (options.emulator) {
    CheckThreshold("top1_float_emulator", result.top1_float_emulator, top1, result);
  } else {
    CheckThreshold("top1_float_qdq", result.top1_float_qdq, top1, result);
  }
  return result;
}

}  // namespace hexport::compile
