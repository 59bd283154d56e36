#include "quant/bit_budget.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "decoder/logit_metrics.h"
#include "quant/layer_stages.h"
#include "quant/layer_walker.h"
#include "quant/part_runner.h"
#include "quant/weights.h"

namespace hexport::quant {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kStateLimitBytes = int64_t{256} << 20;
constexpr char kWeightTail[] = ".weight";

// The first `count` samples.
Result<SampleTensors> Copy(const SampleTensors& from, size_t count, SpillBudget& budget) {
  SampleTensors out(budget, count);
  std::vector<float> scratch;
  for (size_t s = 0; s < count; ++s) {
    HEXPORT_ASSIGN_OR_RETURN(const std::span<const float> values, from.Get(s, scratch));
    HEXPORT_RETURN_IF_ERROR(out.Put(s, from.shape(s), values));
  }
  return out;
}

// Mean over tokens of |b - a|^2 / |a|^2, over the samples of `b`.
Result<double> RelativeDamage(const SampleTensors& a, const SampleTensors& b) {
  double sum = 0.0;
  int64_t tokens = 0;
  std::vector<float> scratch_a, scratch_b;
  for (size_t s = 0; s < b.size(); ++s) {
    HEXPORT_ASSIGN_OR_RETURN(const std::span<const float> x, a.Get(s, scratch_a));
    HEXPORT_ASSIGN_OR_RETURN(const std::span<const float> y, b.Get(s, scratch_b));
    const auto width = static_cast<size_t>(b.shape(s).back());
    for (size_t first = 0; first < x.size(); first += width) {
      double energy = 0.0, damage = 0.0;
      for (size_t i = first; i < first + width; ++i) {
        const double difference = static_cast<double>(y[i]) - static_cast<double>(x[i]);
        energy += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        damage += difference * difference;
      }
      sum += damage / std::max(energy, 1e-30);
      ++tokens;
    }
  }
  return sum / static_cast<double>(std::max<int64_t>(tokens, 1));
}

// Runs the float model and, beside it, one stream of states for each layer that was rounded; a
// stream is float again after that layer.
class Measurement {
 public:
  Measurement(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
              const QuantConfig& config, const std::vector<TokenIds>& samples, const fs::path& work)
      : checkpoint_(checkpoint),
        graph_(graph),
        config_(config),
        samples_(samples),
        count_(std::min(samples.size(), kSensitivitySamples)),
        budget_(kStateLimitBytes, work),
        states_(budget_) {}

  Result<std::vector<Sensitivity>> Run(Progress& progress) {
    HEXPORT_RETURN_IF_ERROR(Embed());
    const int64_t layers = checkpoint_.config().num_hidden_layers;
    for (int64_t layer = 0; layer < layers; ++layer) {
      progress.Update("sensitivity", layer, layers + 1);
      HEXPORT_RETURN_IF_ERROR(MeasureLayer(layer).WithContext("layer " + std::to_string(layer)));
    }
    progress.Update("sensitivity", layers, layers + 1);
    if (!streams_.empty()) HEXPORT_RETURN_IF_ERROR(WeighLayers());
    progress.Update("sensitivity", layers + 1, layers + 1);
    return std::move(out_);
  }

 private:
  using Weights = std::vector<std::pair<std::string, std::vector<float>>>;

  Status Embed() {
    const int64_t width = checkpoint_.config().hidden_size;
    states_ = SampleTensors(budget_, count_);
    for (size_t s = 0; s < count_; ++s) {
      HEXPORT_ASSIGN_OR_RETURN(const std::vector<float> hidden,
                               EmbedSample(checkpoint_, samples_[s]));
      const Shape shape = {1, static_cast<int64_t>(samples_[s].size()), width};
      HEXPORT_RETURN_IF_ERROR(states_.Put(s, shape, hidden));
    }
    return OkStatus();
  }

  // What leaves the layer, with these weights and else the checkpoint's.
  Result<SampleTensors> RunLayer(int64_t layer, SampleTensors entering, Weights weights) {
    HEXPORT_ASSIGN_OR_RETURN(
        const std::unique_ptr<LayerStages> stages,
        LayerStages::Create(checkpoint_, layer, {}, std::move(entering), budget_));
    for (auto& [name, values] : weights) stages->SetWeight(name, std::move(values));
    return stages->Finish();
  }

  Status MeasureLayer(int64_t layer) {
    HEXPORT_ASSIGN_OR_RETURN(SampleTensors before, Copy(states_, count_, budget_));
    HEXPORT_ASSIGN_OR_RETURN(SampleTensors after, RunLayer(layer, std::move(states_), {}));
    Weights all;
    for (const decoder::LinearWeight& linear : graph_.linears) {
      if (linear.lm_head || linear.layer != layer) continue;
      const WeightOptions format = PlanLinear(config_, linear).weights;
      Sensitivity entry{linear.name, 0.0,
                        StoredBits(format, linear.in_features, linear.out_features),
                        StoredBits({}, linear.in_features, linear.out_features),
                        linear.in_features * linear.out_features};
      if (format.format != WeightFormat::kInt8) {
        std::vector<float> values(static_cast<size_t>(entry.elements));
        HEXPORT_RETURN_IF_ERROR(decoder::ReadLinear(checkpoint_, linear, values));
        HEXPORT_ASSIGN_OR_RETURN(
            const QuantizedWeight rounded,
            QuantizeRtn(values, linear.in_features, linear.out_features, format));
        values = Dequantize(rounded);
        HEXPORT_ASSIGN_OR_RETURN(SampleTensors entering, Copy(before, count_, budget_));
        HEXPORT_ASSIGN_OR_RETURN(const SampleTensors changed,
                                 RunLayer(layer, std::move(entering), {{linear.name, values}}));
        HEXPORT_ASSIGN_OR_RETURN(entry.damage, RelativeDamage(after, changed));
        all.emplace_back(linear.name, std::move(values));
      }
      out_.push_back(std::move(entry));
      layer_of_.push_back(layer);
    }
    if (all.empty()) {
      states_ = std::move(after);
      return OkStatus();
    }
    HEXPORT_ASSIGN_OR_RETURN(const SampleTensors rounded,
                             RunLayer(layer, std::move(before), std::move(all)));
    streams_.push_back(layer);
    return Join(after, rounded);
  }

  // states_ = the streams so far, and one more.
  Status Join(const SampleTensors& streams, const SampleTensors& last) {
    SampleTensors joined(budget_, streams.size() + last.size());
    std::vector<float> scratch;
    for (size_t s = 0; s < joined.size(); ++s) {
      const bool old = s < streams.size();
      const SampleTensors& from = old ? streams : last;
      const size_t at = old ? s : s - streams.size();
      HEXPORT_ASSIGN_OR_RETURN(const std::span<const float> values, from.Get(at, scratch));
      HEXPORT_RETURN_IF_ERROR(joined.Put(s, from.shape(at), values));
    }
    states_ = std::move(joined);
    return OkStatus();
  }

  // Every so many rows of the samples of stream `stream`; 0 is the float model.
  Result<std::vector<float>> SomeRows(size_t stream) const {
    size_t tokens = 0;
    for (size_t s = 0; s < count_; ++s) tokens += samples_[s].size();
    const size_t step = std::max<size_t>(1, tokens / kSensitivityTokens);
    const auto width = static_cast<size_t>(checkpoint_.config().hidden_size);
    std::vector<float> out, scratch;
    size_t token = 0;
    for (size_t s = 0; s < count_; ++s) {
      HEXPORT_ASSIGN_OR_RETURN(const std::span<const float> rows,
                               states_.Get(stream * count_ + s, scratch));
      for (size_t first = 0; first < rows.size(); first += width) {
        if (token++ % step != step - 1) continue;  // not the first token, which tells little
        const std::span<const float> row = rows.subspan(first, width);
        out.insert(out.end(), row.begin(), row.end());
      }
    }
    return out;
  }

  // Turns each linear's share of its layer's damage into a share of the layer's divergence.
  Status WeighLayers() {
    std::vector<std::vector<float>> rows;
    for (size_t stream = 0; stream <= streams_.size(); ++stream) {
      HEXPORT_ASSIGN_OR_RETURN(std::vector<float> some, SomeRows(stream));
      rows.push_back(std::move(some));
    }
    HEXPORT_ASSIGN_OR_RETURN(const std::vector<double> divergences, Divergences(rows));
    for (size_t stream = 0; stream < streams_.size(); ++stream) {
      double sum = 0.0;
      for (size_t i = 0; i < out_.size(); ++i)
        if (layer_of_[i] == streams_[stream]) sum += out_[i].damage;
      for (size_t i = 0; i < out_.size(); ++i) {
        if (layer_of_[i] == streams_[stream])
          out_[i].damage *= divergences[stream] / std::max(sum, 1e-30);
      }
    }
    return OkStatus();
  }

  // Mean KL(logits of rows[0] || logits of rows[i]) for i from 1 on.
  Result<std::vector<double>> Divergences(const std::vector<std::vector<float>>& rows) const {
    HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<PartRunner> head,
                             PartRunner::OpenHead(checkpoint_, {}));
    const size_t tokens = rows[0].size() / static_cast<size_t>(checkpoint_.config().hidden_size);
    std::vector<std::vector<decoder::Position>> positions(
        rows.size() - 1, std::vector<decoder::Position>(tokens, decoder::Position(0)));
    for (size_t piece = 0; piece < head->pieces(); ++piece) {
      HEXPORT_RETURN_IF_ERROR(head->Load(piece));
      HEXPORT_ASSIGN_OR_RETURN(const PartResult reference, head->Run(0, rows[0]));
      const ActivationView& expected = reference.activations.front();
      const auto columns = static_cast<size_t>(expected.columns);
      for (size_t i = 1; i < rows.size(); ++i) {
        HEXPORT_ASSIGN_OR_RETURN(const PartResult result, head->Run(i, rows[i]));
        const ActivationView& got = result.activations.front();
        for (size_t t = 0; t < tokens; ++t) {
          positions[i - 1][t].Add(got.first_column, got.values.subspan(t * columns, columns),
                                  expected.values.subspan(t * columns, columns));
        }
      }
    }
    std::vector<double> out;
    for (const std::vector<decoder::Position>& of_stream : positions) {
      double sum = 0.0;
      for (const decoder::Position& position : of_stream) {
        if (!position.finite()) return DataLoss("logits: expected finite numbers, got NaN or Inf");
        sum += position.Divergence();
      }
      out.push_back(sum / static_cast<double>(std::max<size_t>(tokens, 1)));
    }
    return out;
  }

  const Checkpoint& checkpoint_;
  const decoder::DecoderGraph& graph_;
  const QuantConfig& config_;
  const std::vector<TokenIds>& samples_;
  const size_t count_;  // samples in use
  SpillBudget budget_;
  SampleTensors states_;          // [stream, sample]; stream 0 is the float model
  std::vector<int64_t> streams_;  // the layer that was rounded, from stream 1 on
  std::vector<Sensitivity> out_;
  std::vector<int64_t> layer_of_;  // of each of out_
};

}  // namespace

Result<std::vector<Sensitivity>> MeasureSensitivity(const Checkpoint& checkpoint,
                                                    const decoder::DecoderGraph& graph,
                                                    const QuantConfig& config,
                                                    const std::vector<TokenIds>& samples,
                                                    const fs::path& work, Progress& progress) {
  HEXPORT_RETURN_IF_ERROR(CheckSamples(samples, checkpoint.config().vocab_size));
  return Measurement(checkpoint, graph, config, samples, work).Run(progress);
}

Result<QuantConfig> SpendBits(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
                              const QuantConfig& config, double bits_per_weight,
                              const std::vector<TokenIds>& samples,
                              const std::filesystem::path& work, Progress& progress) {
  HEXPORT_ASSIGN_OR_RETURN(std::vector<Sensitivity> linears,
                           MeasureSensitivity(checkpoint, graph, config, samples, work, progress));
  int64_t bits = 0, elements = 0;
  for (const Sensitivity& linear : linears) {
    bits += linear.bits;
    elements += linear.elements;
  }
  const double average =
      static_cast<double>(bits) / static_cast<double>(std::max<int64_t>(elements, 1));
  if (average > bits_per_weight) {
    char got[64];
    std::snprintf(got, sizeof(got), "%.3f, got %.3f", average, bits_per_weight);
    return InvalidArgument("--auto: expected at least what --weights takes already, " +
                           std::string(got));
  }
  std::sort(linears.begin(), linears.end(), [](const Sensitivity& a, const Sensitivity& b) {
    return a.damage * static_cast<double>(b.int8_bits - b.bits) >
           b.damage * static_cast<double>(a.int8_bits - a.bits);
  });
  QuantConfig out = config;
  const auto budget = static_cast<int64_t>(bits_per_weight * static_cast<double>(elements));
  for (const Sensitivity& linear : linears) {
    const int64_t added = linear.int8_bits - linear.bits;
    if (added <= 0 || linear.damage <= 0.0 || bits + added > budget) continue;
    bits += added;
    LinearRule rule;
    rule.pattern = linear.name;
    if (rule.pattern.ends_with(kWeightTail))
      rule.pattern.resize(rule.pattern.size() - sizeof(kWeightTail) + 1);
    rule.weights = WeightFormat::kInt8;
    out.linears.push_back(std::move(rule));
  }
  return out;
}

}  // namespace hexport::quant
