#include "quant/layer_walker.h"

#include <memory>
#include <utility>

#include "quant/linear_algebra.h"

namespace hexport::quant {
namespace {

using Samples = std::vector<std::vector<int32_t>>;

class Walk {
 public:
  Walk(const Checkpoint& checkpoint, const Samples& samples, const WalkOptions& options,
       const ActivationVisitor& visit, Progress& progress)
      : checkpoint_(checkpoint),
        config_(checkpoint.config()),
        samples_(samples),
        options_(options),
        visit_(visit),
        progress_(progress) {}

  Status Run() {
    HEXPORT_RETURN_IF_ERROR(CheckSamples(samples_, config_.vocab_size));
    HEXPORT_RETURN_IF_ERROR(Embed());
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      progress_.Update(options_.stage, layer, config_.num_hidden_layers + 1);
      HEXPORT_RETURN_IF_ERROR(RunLayer(layer).WithContext("layer " + std::to_string(layer)));
    }
    progress_.Update(options_.stage, config_.num_hidden_layers, config_.num_hidden_layers + 1);
    if (options_.head) HEXPORT_RETURN_IF_ERROR(RunHead().WithContext("output projection"));
    progress_.Update(options_.stage, config_.num_hidden_layers + 1, config_.num_hidden_layers + 1);
    return OkStatus();
  }

 private:
  Status Embed() {
    const std::string name = decoder::ResidualName(config_, 0);
    for (size_t s = 0; s < samples_.size(); ++s) {
      HEXPORT_ASSIGN_OR_RETURN(std::vector<float> embedded, EmbedSample(checkpoint_, samples_[s]));
      const std::vector<float>& hidden = hidden_.emplace_back(std::move(embedded));
      if (options_.every_activation) {
        HEXPORT_RETURN_IF_ERROR(
            visit_({s, name, hidden, config_.hidden_size, ActivationView::Scores::kNone, 0, 0}));
      }
    }
    return OkStatus();
  }

  Result<PartResult> RunSample(PartRunner& part, size_t sample) {
    HEXPORT_ASSIGN_OR_RETURN(PartResult result, part.Run(sample, hidden_[sample]));
    HEXPORT_RETURN_IF_ERROR(VisitAll(result.activations));
    return result;
  }

  Status VisitAll(const std::vector<ActivationView>& views) {
    if (!options_.concurrent) {
      for (const ActivationView& view : views) HEXPORT_RETURN_IF_ERROR(visit_(view));
      return OkStatus();
    }
    std::vector<Status> statuses(views.size());
    ParallelTasks(views.size(), [&](size_t i) { statuses[i] = visit_(views[i]); });
    for (Status& status : statuses) HEXPORT_RETURN_IF_ERROR(std::move(status));
    return OkStatus();
  }

  Status RunLayer(int64_t layer) {
    HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<PartRunner> part,
                             PartRunner::OpenLayer(checkpoint_, layer, options_));
    for (size_t s = 0; s < samples_.size(); ++s) {
      HEXPORT_ASSIGN_OR_RETURN(const PartResult result, RunSample(*part, s));
      hidden_[s].assign(result.hidden.begin(), result.hidden.end());
    }
    return OkStatus();
  }

  Status RunHead() {
    HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<PartRunner> part,
                             PartRunner::OpenHead(checkpoint_, options_));
    for (size_t piece = 0; piece < part->pieces(); ++piece) {
      HEXPORT_RETURN_IF_ERROR(part->Load(piece));
      for (size_t s = 0; s < samples_.size(); ++s)
        HEXPORT_RETURN_IF_ERROR(RunSample(*part, s).status());
    }
    return OkStatus();
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const Samples& samples_;
  const WalkOptions& options_;
  const ActivationVisitor& visit_;
  Progress& progress_;
  std::vector<std::vector<float>> hidden_;  // [tokens, hidden_size] a sample
};

}  // namespace

Status CheckSamples(const Samples& samples, int64_t vocab_size) {
  if (samples.empty()) return InvalidArgument("samples: expected at least one text, got none");
  for (size_t s = 0; s < samples.size(); ++s) {
    if (samples[s].empty())
      return InvalidArgument("sample " + std::to_string(s) + ": expected tokens, got none");
    for (const int32_t id : samples[s]) {
      if (id >= 0 && id < vocab_size) continue;
      return InvalidArgument("sample " + std::to_string(s) + ": expected ids below " +
                             std::to_string(vocab_size) + ", got " + std::to_string(id) +
                             "; use this checkpoint's own tokenizer");
    }
  }
  return OkStatus();
}

Result<std::vector<float>> EmbedSample(const Checkpoint& checkpoint,
                                       const std::vector<int32_t>& sample) {
  const auto width = static_cast<size_t>(checkpoint.config().hidden_size);
  std::vector<float> hidden(sample.size() * width);
  for (size_t t = 0; t < sample.size(); ++t) {
    HEXPORT_RETURN_IF_ERROR(decoder::ReadEmbedding(
        checkpoint, sample[t], std::span<float>(hidden).subspan(t * width, width)));
  }
  return hidden;
}

Status WalkDecoder(const Checkpoint& checkpoint, const Samples& samples, const WalkOptions& options,
                   const ActivationVisitor& visit, Progress& progress) {
  return Walk(checkpoint, samples, options, visit, progress).Run();
}

}  // namespace hexport::quant
