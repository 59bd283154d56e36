#include "evaluate/logit_source.h"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>

#include "base/mapped_file.h"
#include "compile/worker.h"
#include "quant/layer_walker.h"

namespace hexport::evaluate {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class FloatLogitSource : public LogitSource {
 public:
  FloatLogitSource(std::unique_ptr<Checkpoint> checkpoint, int64_t context_length)
      : checkpoint_(std::move(checkpoint)), context_length_(context_length) {}

  Status Run(const std::vector<TokenIds>& windows, const LogitVisitor& visit,
             Progress& progress) override {
    quant::WalkOptions options;
    options.context_length = context_length_;
    options.stage = "float";
    const auto piece = [&](const quant::ActivationView& view) {
      return visit({view.sample, view.first_column, view.columns, view.values});
    };
    return quant::WalkDecoder(*checkpoint_, windows, options, piece, progress);
  }
  int64_t vocab_size() const override { return checkpoint_->config().vocab_size; }

 private:
  std::unique_ptr<Checkpoint> checkpoint_;
  int64_t context_length_;
};

class QuantizedLogitSource : public LogitSource {
 public:
  QuantizedLogitSource(std::unique_ptr<quant::QuantizedModel> model, bool activations)
      : model_(std::move(model)), activations_(activations) {}

  Status Run(const std::vector<TokenIds>& windows, const LogitVisitor& visit,
             Progress& progress) override {
    quant::QuantizedWalkOptions options;
    options.activations = activations_;
    const auto piece = [&](const quant::ActivationView& view) {
      return visit({view.sample, view.first_column, view.columns, view.values});
    };
    return quant::WalkQuantized(*model_, windows, options, piece, progress);
  }
  int64_t vocab_size() const override { return model_->source().config().vocab_size; }

 private:
  std::unique_ptr<quant::QuantizedModel> model_;
  bool activations_;
};

class SessionLogitSource : public LogitSource {
 public:
  SessionLogitSource(std::unique_ptr<runtime::Session> session, std::string stage)
      : session_(std::move(session)), stage_(std::move(stage)) {}

  Status Run(const std::vector<TokenIds>& windows, const LogitVisitor& visit,
             Progress& progress) override {
    const auto total = static_cast<int64_t>(windows.size());
    for (size_t i = 0; i < windows.size(); ++i) {
      progress.Update(stage_, static_cast<int64_t>(i), total);
      HEXPORT_ASSIGN_OR_RETURN(const std::vector<float> logits, session_->Logits(windows[i]));
      HEXPORT_RETURN_IF_ERROR(visit({i, 0, vocab_size(), logits}));
    }
    progress.Update(stage_, total, total);
    return OkStatus();
  }
  int64_t vocab_size() const override { return session_->manifest().model.vocab_size; }

 private:
  std::unique_ptr<runtime::Session> session_;
  std::string stage_;
};

class EmulatorLogitSource : public LogitSource {
 public:
  EmulatorLogitSource(fs::path bundle, int64_t vocab_size)
      : bundle_(std::move(bundle)), vocab_size_(vocab_size) {}

  Status Run(const std::vector<TokenIds>& windows, const LogitVisitor& visit,
             Progress& progress) override {
    const fs::path file =
        fs::temp_directory_path() / ("hexport-eval-" + std::to_string(::getpid()) + ".f32");
    const json request = {{"bundle", bundle_.string()},
                          {"engine", "emulator"},
                          {"samples", windows},
                          {"out", file.string()}};
    progress.Update("emulator", 0, static_cast<int64_t>(windows.size()));
    const auto on_event = [&](const json& event) {
      progress.Update("emulator", event.value("done", int64_t{0}),
                      event.value("total", int64_t{0}));
    };
    const Result<json> result =
        compile::CallWorker("logits", request, "emulator", on_event, nullptr);
    const Status status = result.ok() ? VisitFile(file, windows, visit) : result.status();
    std::error_code ignored;
    fs::remove(file, ignored);
    return status;
  }
  int64_t vocab_size() const override { return vocab_size_; }

 private:
  Status VisitFile(const fs::path& file, const std::vector<TokenIds>& windows,
                   const LogitVisitor& visit) const {
    HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> mapped, MappedFile::Open(file));
    const size_t floats = mapped->bytes().size() / sizeof(float);
    const auto* values = reinterpret_cast<const float*>(mapped->bytes().data());
    size_t offset = 0;
    for (size_t i = 0; i < windows.size(); ++i) {
      const size_t count = windows[i].size() * static_cast<size_t>(vocab_size_);
      if (count > floats - offset) return Internal("emulator: too few logits");
      HEXPORT_RETURN_IF_ERROR(visit({i, 0, vocab_size_, {values + offset, count}}));
      offset += count;
    }
    return OkStatus();
  }

  fs::path bundle_;
  int64_t vocab_size_;
};

}  // namespace

std::unique_ptr<LogitSource> QuantizedSource(std::unique_ptr<quant::QuantizedModel> model,
                                             bool activations) {
  return std::make_unique<QuantizedLogitSource>(std::move(model), activations);
}

std::unique_ptr<LogitSource> FloatSource(std::unique_ptr<Checkpoint> checkpoint,
                                         int64_t context_length) {
  return std::make_unique<FloatLogitSource>(std::move(checkpoint), context_length);
}

Result<std::unique_ptr<LogitSource>> SessionSource(const fs::path& bundle,
                                                   runtime::EngineKind kind) {
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Session> session,
                           runtime::Session::Create(bundle, kind));
  const char* stage = kind == runtime::EngineKind::kCpu ? "cpu" : "qdq";
  return std::unique_ptr<LogitSource>(
      std::make_unique<SessionLogitSource>(std::move(session), stage));
}

std::unique_ptr<LogitSource> EmulatorSource(fs::path bundle, int64_t vocab_size) {
  return std::make_unique<EmulatorLogitSource>(std::move(bundle), vocab_size);
}

}  // namespace hexport::evaluate
