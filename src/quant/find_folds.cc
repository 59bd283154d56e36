#include "quant/find_folds.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "quant/layer_walker.h"
#include "quant/linear_algebra.h"
#include "quant/weights.h"

namespace hexport::quant {
namespace {

constexpr size_t kSamples = 32;
constexpr int64_t kRows = 512;  // tokens whose rows are kept
constexpr int kAwqSteps = 20, kBalanceSteps = 8;
constexpr double kSmoothAlpha = 0.5;

// Squared error of the readers' outputs over `rows` when the folded weights are rounded.
Result<double> WeightError(const FoldInput& input, std::span<const FoldReader> readers,
                           std::span<const float> factors) {
  const auto channels = static_cast<size_t>(input.channels);
  const size_t tokens = input.rows.size() / channels;
  double error = 0.0;
  for (const FoldReader& reader : readers) {
    const auto out = static_cast<size_t>(reader.out_features);
    std::vector<float> folded = reader.weights;
    for (size_t i = 0; i < folded.size(); ++i) folded[i] *= factors[i / out];
    HEXPORT_ASSIGN_OR_RETURN(
        const QuantizedWeight rounded,
        QuantizeRtn(folded, input.channels, reader.out_features, reader.format));
    std::vector<float> difference = Dequantize(rounded);
    for (size_t i = 0; i < folded.size(); ++i)
      difference[i] = difference[i] / factors[i / out] - reader.weights[i];
    std::vector<float> outputs(tokens * out);
    Multiply(input.rows, difference, tokens, channels, out, 1.0f, 0.0f, outputs);
    for (const float value : outputs)
      error += static_cast<double>(value) * static_cast<double>(value);
  }
  return error;
}

// Squared error of the readers' outputs over as many tokens as `rows` has when the folded
// activation is rounded to codes of the whole tensor: a step's variance in every channel.
double ActivationError(const FoldInput& input, std::span<const FoldReader> readers,
                       std::span<const float> factors, int bits) {
  const auto channels = static_cast<size_t>(input.channels);
  double largest = 0.0, energy = 0.0;
  for (size_t c = 0; c < channels; ++c)
    largest = std::max(largest, static_cast<double>(input.largest[c] / factors[c]));
  for (const FoldReader& reader : readers) {
    const auto out = static_cast<size_t>(reader.out_features);
    for (size_t i = 0; i < reader.weights.size(); ++i) {
      const double value =
          static_cast<double>(reader.weights[i]) * static_cast<double>(factors[i / out]);
      energy += value * value;
    }
  }
  const double step = 2.0 * largest / (std::exp2(bits) - 1.0);
  return static_cast<double>(input.rows.size() / channels) * step * step / 12.0 * energy;
}

float ToFactor(double value) {
  return std::isfinite(value) && value > 0.0 ? static_cast<float>(value) : 1.0f;
}

// max |w| of each channel over all readers.
std::vector<float> LargestWeights(int64_t channels, std::span<const FoldReader> readers) {
  std::vector<float> out(static_cast<size_t>(channels), 0.0f);
  for (const FoldReader& reader : readers) {
    const auto width = static_cast<size_t>(reader.out_features);
    for (size_t i = 0; i < reader.weights.size(); ++i)
      out[i / width] = std::max(out[i / width], std::abs(reader.weights[i]));
  }
  return out;
}

// (max|x| over their geometric mean)^alpha.
std::vector<float> LevelledFactors(std::span<const float> largest, double alpha) {
  double log_sum = 0.0;
  int64_t alive = 0;
  for (const float value : largest) {
    if (value <= 0.0f) continue;
    log_sum += std::log(static_cast<double>(value));
    ++alive;
  }
  const double mean = std::exp(log_sum / static_cast<double>(std::max<int64_t>(alive, 1)));
  std::vector<float> out;
  for (const float value : largest)
    out.push_back(ToFactor(std::pow(static_cast<double>(value) / mean, alpha)));
  return out;
}

}  // namespace

std::vector<float> SmoothQuantFactors(const FoldInput& input, std::span<const FoldReader> readers,
                                      double alpha) {
  const std::vector<float> weights = LargestWeights(input.channels, readers);
  std::vector<float> out(weights.size());
  for (size_t c = 0; c < out.size(); ++c) {
    out[c] = input.largest[c] > 0.0f && weights[c] > 0.0f
                 ? ToFactor(std::pow(static_cast<double>(input.largest[c]), alpha) /
                            std::pow(static_cast<double>(weights[c]), 1.0 - alpha))
                 : 1.0f;
  }
  return out;
}

Result<std::vector<float>> AwqFactors(const FoldInput& input, std::span<const FoldReader> readers) {
  std::vector<float> best(static_cast<size_t>(input.channels), 1.0f);
  HEXPORT_ASSIGN_OR_RETURN(double least, WeightError(input, readers, best));
  for (int step = 1; step < kAwqSteps; ++step) {
    const double alpha = static_cast<double>(step) / kAwqSteps;
    std::vector<double> powers;
    double largest = 0.0, smallest = HUGE_VAL;
    for (const double sum : input.magnitude_sum) {
      powers.push_back(
          std::pow(sum / static_cast<double>(std::max<int64_t>(input.tokens, 1)), alpha));
      if (sum <= 0.0) continue;
      largest = std::max(largest, powers.back());
      smallest = std::min(smallest, powers.back());
    }
    std::vector<float> factors(powers.size());
    for (size_t c = 0; c < powers.size(); ++c)
      factors[c] = ToFactor(powers[c] / std::sqrt(largest * smallest));
    HEXPORT_ASSIGN_OR_RETURN(const double error, WeightError(input, readers, factors));
    if (error >= least) continue;
    least = error;
    best = std::move(factors);
  }
  return best;
}

Result<std::vector<float>> BalancedFactors(const FoldInput& input,
                                           std::span<const FoldReader> readers, int bits) {
  std::vector<float> best;
  double least = HUGE_VAL;
  for (int step = 0; step <= kBalanceSteps; ++step) {
    const double alpha = static_cast<double>(step) / kBalanceSteps;
    std::vector<float> factors = LevelledFactors(input.largest, alpha);
    HEXPORT_ASSIGN_OR_RETURN(const double weight_error, WeightError(input, readers, factors));
    const double error = weight_error + ActivationError(input, readers, factors, bits);
    if (error >= least) continue;
    least = error;
    best = std::move(factors);
  }
  return best;
}

namespace {

// What is gathered of one activation that a fold is decided by.
struct Watch {
  std::string producer;
  FoldInput input;
};

class FoldFinder {
 public:
  FoldFinder(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
             const QuantConfig& config, int64_t tokens)
      : checkpoint_(checkpoint),
        model_(checkpoint.config()),
        graph_(graph),
        config_(config),
        stride_(std::max<int64_t>(tokens / kRows, 1)) {
    for (const graph::Node& node : graph.graph.nodes) names_.insert(node.outputs[0]);
  }

  Status Visit(const ActivationView& view) {
    if (view.name.ends_with(".input")) return OkStatus();  // the residual stream
    const int64_t layer = LayerOf(view.name);
    if (layer != layer_) {
      HEXPORT_RETURN_IF_ERROR(FinishLayer());
      layer_ = layer;
      if (layer_ >= 0) StartLayer();
    }
    const auto found = watches_.find(view.name);
    if (found != watches_.end() && view.name.ends_with("context_grouped")) {
      AddContext(view, found->second.input);
    } else if (found != watches_.end()) {
      Add(view.values, view.columns, found->second.input);
    }
    if (view.name == key_name_) AddKeys(view);
    if (view.name == value_name_)
      AddLargest(view.values, static_cast<size_t>(view.columns), values_);
    return OkStatus();
  }

  Result<std::vector<ChannelFold>> Finish() {
    HEXPORT_RETURN_IF_ERROR(FinishLayer());
    return std::move(folds_);
  }

 private:
  static int64_t LayerOf(const std::string& name) {
    constexpr std::string_view kLayers = "layers.";
    return name.starts_with(kLayers) ? std::stoll(name.substr(kLayers.size())) : -1;
  }

  std::string Biased(const std::string& linear) const {
    return names_.contains(linear + ".biased") ? linear + ".biased" : linear;
  }

  void StartLayer() {
    const std::string layer = "layers." + std::to_string(layer_) + ".";
    const std::string mlp_norm =
        layer + (model_.branch_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm");
    for (const std::string& norm : {layer + "input_layernorm", mlp_norm})
      watches_[norm] = {norm, {}};
    if (!config_.fold_channels) return;
    watches_[layer + "mlp.gated"] = {layer + "mlp.up_proj", {}};
    watches_[layer + "self_attn.context_grouped"] = {layer + "self_attn.v_proj", {}};
    if (!model_.qk_norm) key_name_ = Biased(layer + "self_attn.k_proj");
    value_name_ = Biased(layer + "self_attn.v_proj");
  }

  static void AddLargest(std::span<const float> values, size_t columns,
                         std::vector<float>& largest) {
    largest.resize(columns, 0.0f);
    for (size_t first = 0; first < values.size(); first += columns) {
      for (size_t c = 0; c < columns; ++c)
        largest[c] = std::max(largest[c], std::abs(values[first + c]));
    }
  }

  void Add(std::span<const float> values, int64_t channels, FoldInput& input) const {
    const auto columns = static_cast<size_t>(channels);
    input.channels = channels;
    AddLargest(values, columns, input.largest);
    input.magnitude_sum.resize(columns, 0.0);
    for (size_t first = 0; first < values.size(); first += columns) {
      for (size_t c = 0; c < columns; ++c)
        input.magnitude_sum[c] += static_cast<double>(std::abs(values[first + c]));
      if (input.tokens++ % stride_ != 0) continue;
      const auto row = values.subspan(first, columns);
      input.rows.insert(input.rows.end(), row.begin(), row.end());
    }
  }

  // [heads, tokens, head_dim] as [tokens, heads * head_dim].
  void AddContext(const ActivationView& view, FoldInput& input) const {
    const auto heads = static_cast<size_t>(model_.num_attention_heads);
    const auto d = static_cast<size_t>(view.columns);
    const size_t tokens = view.values.size() / (heads * d);
    std::vector<float> turned(view.values.size());
    for (size_t h = 0; h < heads; ++h) {
      for (size_t t = 0; t < tokens; ++t) {
        const auto from = view.values.subspan((h * tokens + t) * d, d);
        std::copy(from.begin(), from.end(),
                  turned.begin() + static_cast<std::ptrdiff_t>((t * heads + h) * d));
      }
    }
    Add(turned, static_cast<int64_t>(heads * d), input);
  }

  // The radius of a RoPE pair bounds both of its elements at every position.
  void AddKeys(const ActivationView& view) {
    const auto columns = static_cast<size_t>(view.columns),
               d = static_cast<size_t>(model_.head_dim);
    const auto half = static_cast<size_t>(RotaryDim() / 2);
    keys_.resize(columns, 0.0f);
    for (size_t first = 0; first < view.values.size(); first += columns) {
      for (size_t c = 0; c < columns; ++c) {
        const size_t i = c % d;
        const float x = view.values[first + c];
        if (i >= 2 * half) {
          keys_[c] = std::max(keys_[c], std::abs(x));
        } else if (i < half) {
          const float radius = std::hypot(x, view.values[first + c + half]);
          keys_[c] = keys_[c + half] = std::max(keys_[c], radius);
        }
      }
    }
  }

  int64_t RotaryDim() const {
    if (!model_.UsesRope(layer_)) return 0;
    const bool local = model_.local_rope.has_value() && model_.IsSliding(layer_);
    return (local ? *model_.local_rope : model_.rope).rotary_dim;
  }

  Status FinishLayer() {
    for (auto& [name, watch] : watches_) {
      if (watch.input.tokens > 0) HEXPORT_RETURN_IF_ERROR(Decide(watch));
    }
    // Every channel then fills the cache's codes, and its error is the same share of q k.
    if (!keys_.empty()) {
      const std::string producer = "layers." + std::to_string(layer_) + ".self_attn.k_proj";
      HEXPORT_RETURN_IF_ERROR(Append(producer, LevelledFactors(keys_, 1.0)));
    }
    watches_.clear();
    keys_.clear();
    values_.clear();
    return OkStatus();
  }

  Status Decide(Watch& watch) {
    HEXPORT_ASSIGN_OR_RETURN(const std::vector<std::string> consumers,
                             ConsumersOf(graph_, model_, watch.producer));
    std::vector<const decoder::LinearWeight*> linears;
    bool awq = false, smooth = false;
    for (const decoder::LinearWeight& linear : graph_.linears) {
      if (std::find(consumers.begin(), consumers.end(), ModuleOf(linear)) == consumers.end())
        continue;
      linears.push_back(&linear);
      const Method method = PlanLinear(config_, linear).method;
      awq = awq || method == Method::kAwq;
      smooth = smooth || method == Method::kSmoothQuant;
    }
    const bool norm = watch.producer.ends_with("norm");
    if (norm && !awq && !smooth) return OkStatus();
    HEXPORT_ASSIGN_OR_RETURN(const std::vector<FoldReader> readers, ReadReaders(linears));
    if (norm && awq) {
      HEXPORT_ASSIGN_OR_RETURN(std::vector<float> factors, AwqFactors(watch.input, readers));
      return Append(watch.producer, std::move(factors));
    }
    if (norm) return Append(watch.producer, SmoothQuantFactors(watch.input, readers, kSmoothAlpha));
    const bool value = watch.producer.ends_with("v_proj");
    if (value) ShareAmongQueryHeads(watch.input);
    HEXPORT_ASSIGN_OR_RETURN(
        std::vector<float> factors,
        BalancedFactors(watch.input, readers, value ? config_.kv_bits : config_.activation_bits));
    if (value) factors = OfValueHeads(factors);
    return Append(watch.producer, std::move(factors));
  }

  Result<std::vector<FoldReader>> ReadReaders(
      const std::vector<const decoder::LinearWeight*>& linears) const {
    std::vector<FoldReader> out;
    for (const decoder::LinearWeight* linear : linears) {
      FoldReader reader{{}, linear->out_features, PlanLinear(config_, *linear).weights};
      reader.weights.resize(static_cast<size_t>(linear->in_features * linear->out_features));
      HEXPORT_RETURN_IF_ERROR(decoder::ReadLinear(checkpoint_, *linear, reader.weights));
      out.push_back(std::move(reader));
    }
    return out;
  }

  // The cache's largest values stand in for those of what attention makes of them.
  void ShareAmongQueryHeads(FoldInput& input) const {
    const auto d = static_cast<size_t>(model_.head_dim);
    const auto shared =
        static_cast<size_t>(model_.num_attention_heads / model_.num_key_value_heads);
    for (size_t c = 0; c < input.largest.size(); ++c)
      input.largest[c] = values_[c / (d * shared) * d + c % d];
  }

  std::vector<float> OfValueHeads(const std::vector<float>& factors) const {
    const auto d = static_cast<size_t>(model_.head_dim);
    const auto shared =
        static_cast<size_t>(model_.num_attention_heads / model_.num_key_value_heads);
    std::vector<float> out;
    for (size_t c = 0; c < factors.size(); ++c) {
      if (c / d % shared == 0) out.push_back(factors[c]);
    }
    return out;
  }

  Status Append(const std::string& producer, std::vector<float> factors) {
    HEXPORT_ASSIGN_OR_RETURN(std::vector<std::string> consumers,
                             ConsumersOf(graph_, model_, producer));
    folds_.push_back({producer, std::move(consumers), std::move(factors)});
    return OkStatus();
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& model_;
  const decoder::DecoderGraph& graph_;
  const QuantConfig& config_;
  const int64_t stride_;
  std::set<std::string> names_;
  int64_t layer_ = -1;
  std::map<std::string, Watch> watches_;  // by the activation's name
  std::string key_name_, value_name_;
  std::vector<float> keys_, values_;  // largest of each channel
  std::vector<ChannelFold> folds_;
};

}  // namespace

bool NeedsFolds(const QuantConfig& config, const decoder::DecoderGraph& graph) {
  return config.fold_channels ||
         std::any_of(graph.linears.begin(), graph.linears.end(),
                     [&](const decoder::LinearWeight& linear) {
                       const Method method = PlanLinear(config, linear).method;
                       return method == Method::kAwq || method == Method::kSmoothQuant;
                     });
}

Result<std::vector<ChannelFold>> FindFolds(const Checkpoint& checkpoint,
                                           const decoder::DecoderGraph& graph,
                                           const QuantConfig& config,
                                           const std::vector<TokenIds>& samples,
                                           int64_t context_length, Progress& progress) {
  std::vector<TokenIds> some;
  int64_t tokens = 0;
  const size_t count = std::min(samples.size(), kSamples);
  for (size_t i = 0; i < count; ++i) {
    some.push_back(samples[i * samples.size() / count]);
    tokens += static_cast<int64_t>(some.back().size());
  }
  FoldFinder finder(checkpoint, graph, config, tokens);
  WalkOptions options;
  options.every_activation = true;
  options.head = false;
  options.context_length = context_length;
  options.stage = "channels";
  HEXPORT_RETURN_IF_ERROR(WalkDecoder(
      checkpoint, some, options, [&](const ActivationView& view) { return finder.Visit(view); },
      progress));
  return finder.Finish();
}

}  // namespace hexport::quant
