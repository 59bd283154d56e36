#include "quant/bit_budget.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "quant/layer_stages.h"
#include "quant/layer_walker.h"
#include "quant/weights.h"

namespace hexport::quant {
namespace {

constexpr int64_t kStateLimitBytes = int64_t{256} << 20;
constexpr char kWeightTail[] = ".weight";

Result<SampleTensors> Copy(const SampleTensors& from, SpillBudget& budget) {
  SampleTensors out(budget, from.size());
  std::vector<float> scratch;
  for (size_t s = 0; s < from.size(); ++s) {
    HEXPORT_ASSIGN_OR_RETURN(const std::span<const float> values, from.Get(s, scratch));
    HEXPORT_RETURN_IF_ERROR(out.Put(s, from.shape(s), values));
  }
  return out;
}

// Mean over tokens of |b - a|^2 / |a|^2.
Result<double> RelativeDamage(const SampleTensors& a, const SampleTensors& b) {
  double sum = 0.0;
  int64_t tokens = 0;
  std::vector<float> scratch_a, scratch_b;
  for (size_t s = 0; s < a.size(); ++s) {
    HEXPORT_ASSIGN_OR_RETURN(const std::span<const float> x, a.Get(s, scratch_a));
    HEXPORT_ASSIGN_OR_RETURN(const std::span<const float> y, b.Get(s, scratch_b));
    const auto width = static_cast<size_t>(a.shape(s).back());
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

}  // namespace

Result<std::vector<Sensitivity>> MeasureSensitivity(
    const Checkpoint& checkpoint, const decoder::DecoderGraph& graph, const QuantConfig& config,
    const std::vector<TokenIds>& samples, const std::filesystem::path& work, Progress& progress) {
  HEXPORT_RETURN_IF_ERROR(CheckSamples(samples, checkpoint.config().vocab_size));
  const size_t count = std::min(samples.size(), kSensitivitySamples);
  const auto width = static_cast<size_t>(checkpoint.config().hidden_size);
  SpillBudget budget(kStateLimitBytes, work);
  SampleTensors states(budget, count);
  for (size_t s = 0; s < count; ++s) {
    HEXPORT_ASSIGN_OR_RETURN(const std::vector<float> hidden, EmbedSample(checkpoint, samples[s]));
    HEXPORT_RETURN_IF_ERROR(states.Put(
        s, {1, static_cast<int64_t>(samples[s].size()), static_cast<int64_t>(width)}, hidden));
  }
  std::vector<Sensitivity> out;
  const int64_t layers = checkpoint.config().num_hidden_layers;
  for (int64_t layer = 0; layer < layers; ++layer) {
    progress.Update("sensitivity", layer, layers);
    const auto run = [&](const std::string& name,
                         std::vector<float> values) -> Result<SampleTensors> {
      HEXPORT_ASSIGN_OR_RETURN(SampleTensors copy, Copy(states, budget));
      HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<LayerStages> stages,
                               LayerStages::Create(checkpoint, layer, {}, std::move(copy), budget));
      if (!name.empty()) stages->SetWeight(name, std::move(values));
      return stages->Finish();
    };
    HEXPORT_ASSIGN_OR_RETURN(SampleTensors after, run("", {}));
    for (const decoder::LinearWeight& linear : graph.linears) {
      if (linear.lm_head || linear.layer != layer) continue;
      const WeightOptions format = PlanLinear(config, linear).weights;
      Sensitivity entry{linear.name, 0.0,
                        StoredBits(format, linear.in_features, linear.out_features),
                        StoredBits({}, linear.in_features, linear.out_features),
                        linear.in_features * linear.out_features};
      if (format.format != WeightFormat::kInt8) {
        std::vector<float> values(static_cast<size_t>(entry.elements));
        HEXPORT_RETURN_IF_ERROR(decoder::ReadLinear(checkpoint, linear, values));
        HEXPORT_ASSIGN_OR_RETURN(
            const QuantizedWeight rounded,
            QuantizeRtn(values, linear.in_features, linear.out_features, format));
        HEXPORT_ASSIGN_OR_RETURN(const SampleTensors changed,
                                 run(linear.name, Dequantize(rounded)));
        HEXPORT_ASSIGN_OR_RETURN(entry.damage, RelativeDamage(after, changed));
      }
      out.push_back(std::move(entry));
    }
    states = std::move(after);
  }
  progress.Update("sensitivity", layers, layers);
  return out;
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
