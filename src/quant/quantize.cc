#include "quant/quantize.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <memory>
#include <utility>

#include "quant/head_inputs.h"
#include "quant/import_codes.h"
#include "quant/layer_part.h"
#include "quant/layer_stages.h"
#include "quant/layer_walker.h"
#include "quant/linear_algebra.h"
#include "quant/observer.h"
#include "quant/seqmse.h"
#include "quant/weight_store_writer.h"

namespace hexport::quant {
namespace {

namespace fs = std::filesystem;

LinearOptions OptionsFrom(const QuantConfig& config) {
  return
      [&config](const decoder::LinearWeight& linear) { return PlanLinear(config, linear).weights; };
}

bool AnyUses(const QuantConfig& config, const decoder::DecoderGraph& graph, Method method) {
  return std::any_of(graph.linears.begin(), graph.linears.end(),
                     [&](const decoder::LinearWeight& linear) {
                       return !linear.lm_head && PlanLinear(config, linear).method == method;
                     });
}

// The next linear, imported or else rounded to nearest.
Status AppendUnmeasured(const Checkpoint& checkpoint, const decoder::LinearWeight& linear,
                        const QuantConfig& config, WeightStoreWriter& writer) {
  if (PlanLinear(config, linear).method != Method::kImport) return writer.AppendRtn(linear);
  const Result<TakenCodes> taken = TakeLinear(checkpoint, linear);
  if (!taken.ok()) return taken.status().WithContext(linear.tensor);
  return writer.Append(taken->weight);
}

// At least 1e-12.
double MeanDiagonal(std::span<const float> matrix, size_t n) {
  double sum = 0.0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(matrix[i * n + i]);
  return std::max(sum / static_cast<double>(n), 1e-12);
}

// What the inputs of one group of linears are like.
struct GroupStatistics {
  size_t in = 0, columns = 0;  // columns: of all its linears together
  std::vector<float> weights;  // [in, columns], the checkpoint's, linear beside linear
  std::vector<float> hessian;  // [in, in] Xq^T Xq
  // [in, in] Xq^T (Xf - Xq), or where that is the larger one [in, columns], times the weights.
  std::vector<float> cross;
  bool cross_of_outputs = false;
  std::vector<float> residual;  // [in, columns] Xq^T (Rf - Rq); empty when not added to a residual
};

class ModelQuantizer {
 public:
  ModelQuantizer(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
                 const WeightQuantization& options, const std::vector<TokenIds>& samples,
                 Progress& progress)
      : checkpoint_(checkpoint),
        graph_(graph),
        options_(options),
        samples_(samples),
        progress_(progress),
        budget_(options.state_limit_bytes, options.work),
        float_states_(budget_),
        states_(budget_),
        corrected_(options.correction_ridge > 0.0 &&
                   AnyUses(options.config, graph, Method::kGptq)) {}

  Result<std::vector<LinearLoss>> Run(const fs::path& path) {
    HEXPORT_ASSIGN_OR_RETURN(
        std::unique_ptr<WeightStoreWriter> writer,
        WeightStoreWriter::Create(checkpoint_, graph_, OptionsFrom(options_.config), path,
                                  progress_));
    const int64_t layers = checkpoint_.config().num_hidden_layers;
    HEXPORT_RETURN_IF_ERROR(Embed());
    for (int64_t layer = 0; layer < layers; ++layer) {
      progress_.Update("quantize", layer, layers + 1);
      HEXPORT_RETURN_IF_ERROR(QuantizeLayer(layer).WithContext("layer " + std::to_string(layer)));
      HEXPORT_RETURN_IF_ERROR(AppendLayer(layer, *writer));
    }
    progress_.Update("quantize", layers, layers + 1);
    for (const decoder::LinearWeight& linear : graph_.linears) {
      if (!linear.lm_head) continue;
      HEXPORT_RETURN_IF_ERROR(AppendHead(linear, *writer).WithContext("output projection"));
    }
    HEXPORT_RETURN_IF_ERROR(writer->Commit());
    progress_.Update("quantize", layers + 1, layers + 1);
    return std::move(losses_);
  }

 private:
  // Whether any of the group's linears goes through GPTQ.
  bool Corrects(const LayerStages::Group& group) const {
    return corrected_ &&
           std::any_of(group.linears.begin(), group.linears.end(),
                       [&](const decoder::LinearWeight& linear) {
                         return PlanLinear(options_.config, linear).method == Method::kGptq;
                       });
  }

  // lm_head, with what both streams leave of the samples.
  Status AppendHead(const decoder::LinearWeight& linear, WeightStoreWriter& writer) {
    if (PlanLinear(options_.config, linear).method != Method::kGptq)
      return AppendUnmeasured(checkpoint_, linear, options_.config, writer);
    HEXPORT_ASSIGN_OR_RETURN(const HeadInputs inputs,
                             CollectHeadInputs(checkpoint_, states_, float_states_));
    HEXPORT_ASSIGN_OR_RETURN(const GptqFactors factors,
                             FactorGptq(inputs.hessian, linear.in_features, options_.gptq));
    const auto in = static_cast<size_t>(linear.in_features);
    std::vector<float> change;
    if (!inputs.cross.empty()) {
      HEXPORT_ASSIGN_OR_RETURN(
          change, SolveRidge(inputs.hessian, in,
                             options_.correction_ridge * MeanDiagonal(inputs.hessian, in),
                             inputs.cross, in));
    }
    return writer.AppendByColumns(linear, [&](std::span<const float> weights, int64_t columns) {
      std::vector<float> corrected(weights.begin(), weights.end());
      if (!change.empty()) {
        Multiply(change, weights, in, in, static_cast<size_t>(columns), 1.0f, 1.0f, corrected);
      }
      return QuantizeGptq(corrected, linear.in_features, columns, factors,
                          writer.OptionsOf(linear));
    });
  }

  Status Embed() {
    const int64_t width = checkpoint_.config().hidden_size;
    float_states_ = SampleTensors(budget_, corrected_ ? samples_.size() : 0);
    states_ = SampleTensors(budget_, samples_.size());
    for (size_t s = 0; s < samples_.size(); ++s) {
      HEXPORT_ASSIGN_OR_RETURN(const std::vector<float> hidden,
                               EmbedSample(checkpoint_, samples_[s]));
      const Shape shape = {1, static_cast<int64_t>(samples_[s].size()), width};
      if (corrected_) HEXPORT_RETURN_IF_ERROR(float_states_.Put(s, shape, hidden));
      HEXPORT_RETURN_IF_ERROR(states_.Put(s, shape, hidden));
    }
    return OkStatus();
  }

  Status QuantizeLayer(int64_t layer) {
    HEXPORT_ASSIGN_OR_RETURN(
        std::unique_ptr<LayerStages> stages,
        LayerStages::Create(checkpoint_, layer, {options_.context_length, false},
                            std::move(states_), budget_));
    std::unique_ptr<LayerStages> reference;
    if (corrected_) {
      HEXPORT_ASSIGN_OR_RETURN(
          reference, LayerStages::Create(checkpoint_, layer, {options_.context_length, true},
                                         std::move(float_states_), budget_));
    }
    LayerPart part(options_.work, layer, options_.key);
    const bool finished = part.Load();
    for (const LayerStages::Group& group : stages->groups()) {
      HEXPORT_ASSIGN_OR_RETURN(GroupStatistics statistics,
                               Collect(group, !finished, *stages, reference.get()));
      if (!finished) HEXPORT_RETURN_IF_ERROR(QuantizeGroup(group, statistics, part));
      for (const decoder::LinearWeight& linear : group.linears) {
        const PartEntry* entry = part.Find(linear.name);
        if (entry == nullptr) return Internal(linear.name + ": expected a quantized weight");
        stages->SetWeight(linear.name, Dequantize(entry->weight));
      }
    }
    if (!finished) HEXPORT_RETURN_IF_ERROR(part.Save());
    HEXPORT_ASSIGN_OR_RETURN(states_, stages->Finish());
    if (reference != nullptr) {
      HEXPORT_ASSIGN_OR_RETURN(float_states_, reference->Finish());
    }
    done_ = std::move(part);
    return OkStatus();
  }

  Status AppendLayer(int64_t layer, WeightStoreWriter& writer) {
    for (const decoder::LinearWeight& linear : graph_.linears) {
      if (linear.lm_head || linear.layer != layer) continue;
      const PartEntry* entry = done_.Find(linear.name);
      if (entry == nullptr) return Internal(linear.name + ": expected a quantized weight");
      HEXPORT_RETURN_IF_ERROR(writer.Append(entry->weight));
      losses_.push_back({linear.name, writer.OptionsOf(linear),
                         PlanLinear(options_.config, linear).method, StoredBits(entry->weight),
                         linear.in_features * linear.out_features, entry->relative_error});
    }
    return OkStatus();
  }

  // Runs both streams up to the group's inputs; `measure`: and takes the statistics.
  Result<GroupStatistics> Collect(const LayerStages::Group& group, bool measure,
                                  LayerStages& stages, LayerStages* reference) {
    GroupStatistics out;
    out.in = static_cast<size_t>(group.linears.front().in_features);
    for (const auto& linear : group.linears)
      out.columns += static_cast<size_t>(linear.out_features);
    if (measure) HEXPORT_RETURN_IF_ERROR(ReadWeights(group, out));
    const bool cross = measure && reference != nullptr && Corrects(group);
    if (measure) out.hessian.assign(out.in * out.in, 0.0f);
    out.cross_of_outputs = out.columns < out.in;
    if (cross) out.cross.assign(out.in * (out.cross_of_outputs ? out.columns : out.in), 0.0f);
    if (cross && !group.residual.empty() && options_.residual_share > 0.0)
      out.residual.assign(out.in * out.columns, 0.0f);
    HEXPORT_RETURN_IF_ERROR(stages.OpenGroup());
    if (reference != nullptr) HEXPORT_RETURN_IF_ERROR(reference->OpenGroup());
    for (size_t s = 0; s < samples_.size(); ++s) {
      HEXPORT_ASSIGN_OR_RETURN(const std::span<const float> rows, stages.Run(s));
      std::span<const float> float_rows;
      if (reference != nullptr) {
        HEXPORT_ASSIGN_OR_RETURN(float_rows, reference->Run(s));
      }
      if (!measure) continue;
      HEXPORT_RETURN_IF_ERROR(CheckFinite({s, group.input, rows}));
      AddGram(rows, out.in, out.hessian);
      if (cross)
        HEXPORT_RETURN_IF_ERROR(AddDifferences(s, rows, float_rows, stages, *reference, out));
    }
    stages.CloseGroup();
    if (reference != nullptr) reference->CloseGroup();
    if (measure) Symmetrize(out.hessian, out.in);
    return out;
  }

  Status ReadWeights(const LayerStages::Group& group, GroupStatistics& out) {
    out.weights.resize(out.in * out.columns);
    size_t first = 0;
    for (const decoder::LinearWeight& linear : group.linears) {
      const auto width = static_cast<size_t>(linear.out_features);
      std::vector<float> values(out.in * width);
      HEXPORT_RETURN_IF_ERROR(decoder::ReadLinear(checkpoint_, linear, values));
      for (size_t k = 0; k < out.in; ++k)
        std::copy_n(values.data() + k * width, width, out.weights.data() + k * out.columns + first);
      first += width;
    }
    return OkStatus();
  }

  static Status AddDifferences(size_t sample, std::span<const float> rows,
                               std::span<const float> float_rows, const LayerStages& stages,
                               const LayerStages& reference, GroupStatistics& out) {
    const size_t tokens = rows.size() / out.in;
    std::vector<float> difference(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) difference[i] = float_rows[i] - rows[i];
    if (out.cross_of_outputs) {
      std::vector<float> outputs(tokens * out.columns);
      Multiply(difference, out.weights, tokens, out.in, out.columns, 1.0f, 0.0f, outputs);
      AddCross(rows, out.in, outputs, out.columns, out.cross);
    } else {
      AddCross(rows, out.in, difference, out.in, out.cross);
    }
    if (out.residual.empty()) return OkStatus();
    std::vector<float> scratch, float_scratch;
    HEXPORT_ASSIGN_OR_RETURN(const std::span<const float> residual,
                             stages.Residual(sample, scratch));
    HEXPORT_ASSIGN_OR_RETURN(const std::span<const float> float_residual,
                             reference.Residual(sample, float_scratch));
    std::vector<float> lost(residual.size());
    for (size_t i = 0; i < residual.size(); ++i) lost[i] = float_residual[i] - residual[i];
    AddCross(rows, out.in, lost, out.columns, out.residual);
    return OkStatus();
  }

  // W + (H + r)^-1 (cross W + share * residual).
  Status Correct(GroupStatistics& group) const {
    std::vector<float> target;
    if (group.cross_of_outputs) {
      target = std::move(group.cross);
    } else {
      target.assign(group.in * group.columns, 0.0f);
      Multiply(group.cross, group.weights, group.in, group.in, group.columns, 1.0f, 0.0f, target);
    }
    const auto share = static_cast<float>(options_.residual_share);
    for (size_t i = 0; i < group.residual.size(); ++i) target[i] += share * group.residual[i];
    const double ridge = options_.correction_ridge * MeanDiagonal(group.hessian, group.in);
    HEXPORT_ASSIGN_OR_RETURN(const std::vector<float> change,
                             SolveRidge(group.hessian, group.in, ridge, target, group.columns));
    for (size_t i = 0; i < change.size(); ++i) group.weights[i] += change[i];
    return OkStatus();
  }

  // The group's linears share their inputs and so the factors of GPTQ, which are found while the
  // weights are corrected. Both are mostly LAPACK, which uses one core.
  Result<GptqFactors> CorrectAndFactor(const LayerStages::Group& group,
                                       GroupStatistics& statistics) const {
    const bool gptq = std::any_of(
        group.linears.begin(), group.linears.end(), [&](const decoder::LinearWeight& linear) {
          return PlanLinear(options_.config, linear).method == Method::kGptq;
        });
    if (!gptq) return GptqFactors();
    std::future<Result<GptqFactors>> factors = std::async(std::launch::async, [&] {
      return FactorGptq(statistics.hessian, static_cast<int64_t>(statistics.in), options_.gptq);
    });
    const Status corrected = Corrects(group) ? Correct(statistics) : OkStatus();
    Result<GptqFactors> found = factors.get();
    if (!corrected.ok()) return corrected;
    if (!found.ok()) return found.status().WithContext(group.linears.front().tensor + ": GPTQ");
    return found;
  }

  Status QuantizeGroup(const LayerStages::Group& group, GroupStatistics& statistics,
                       LayerPart& part) {
    const std::vector<float> own = statistics.weights;
    HEXPORT_ASSIGN_OR_RETURN(const GptqFactors factors, CorrectAndFactor(group, statistics));
    size_t first = 0;
    for (const decoder::LinearWeight& linear : group.linears) {
      const auto width = static_cast<size_t>(linear.out_features);
      const bool gptq = PlanLinear(options_.config, linear).method == Method::kGptq;
      const std::vector<float>& source = gptq ? statistics.weights : own;
      std::vector<float> weights(statistics.in * width);
      for (size_t k = 0; k < statistics.in; ++k) {
        std::copy_n(source.data() + k * statistics.columns + first, width,
                    weights.data() + k * width);
      }
      first += width;
      Result<QuantizedWeight> weight = QuantizeLinear(linear, weights, statistics.hessian, factors);
      if (!weight.ok()) return weight.status().WithContext(linear.tensor);
      const double error = RelativeError(weights, *weight, statistics.hessian);
      part.Add(linear.name, {*std::move(weight), error});
    }
    return OkStatus();
  }

  Result<QuantizedWeight> QuantizeLinear(const decoder::LinearWeight& linear,
                                         std::span<const float> weights,
                                         std::span<const float> hessian,
                                         const GptqFactors& factors) const {
    const LinearPlan plan = PlanLinear(options_.config, linear);
    const WeightOptions& format = plan.weights;
    const int64_t in = linear.in_features, out = linear.out_features;
    switch (plan.method) {
      case Method::kRtn:
      case Method::kSmoothQuant:  // its folds are in the checkpoint
        return QuantizeRtn(weights, in, out, format);
      case Method::kAwq:  // likewise; what is left is its clipping search
      case Method::kSeqMse:
        return QuantizeSeqMse(weights, in, out, hessian, format);
      case Method::kGptq:
        return QuantizeGptq(weights, in, out, factors, format);
      case Method::kImport: {
        HEXPORT_ASSIGN_OR_RETURN(TakenCodes taken, TakeLinear(checkpoint_, linear));
        return std::move(taken.weight);
      }
    }
    return Internal(linear.name + ": expected a method");
  }

  static double RelativeError(std::span<const float> weights, const QuantizedWeight& quantized,
                              std::span<const float> hessian) {
    if (hessian.empty()) return -1.0;
    const auto in = static_cast<size_t>(quantized.in_features);
    const auto columns = static_cast<size_t>(quantized.out_features);
    std::vector<float> difference = Dequantize(quantized), product(in * columns);
    for (size_t i = 0; i < difference.size(); ++i) difference[i] = weights[i] - difference[i];
    const auto energy = [&](std::span<const float> w) {
      Multiply(hessian, w, in, in, columns, 1.0f, 0.0f, product);
      double sum = 0.0;
      for (size_t i = 0; i < product.size(); ++i)
        sum += static_cast<double>(product[i]) * static_cast<double>(w[i]);
      return std::max(sum, 0.0);
    };
    return std::sqrt(energy(difference) / std::max(energy(weights), 1e-30));
  }

  const Checkpoint& checkpoint_;
  const decoder::DecoderGraph& graph_;
  const WeightQuantization& options_;
  const std::vector<TokenIds>& samples_;
  Progress& progress_;
  SpillBudget budget_;
  SampleTensors float_states_, states_;
  const bool corrected_;  // some linears are, so the float model runs beside
  LayerPart done_;
  std::vector<LinearLoss> losses_;
};

bool NeedsNoSamples(Method method) { return method == Method::kRtn || method == Method::kImport; }

// All rounded to nearest or imported: nothing is run, and losses are not measured.
Result<std::vector<LinearLoss>> RoundAll(const Checkpoint& checkpoint,
                                         const decoder::DecoderGraph& graph,
                                         const QuantConfig& config, const fs::path& path,
                                         Progress& progress) {
  HEXPORT_ASSIGN_OR_RETURN(
      std::unique_ptr<WeightStoreWriter> writer,
      WeightStoreWriter::Create(checkpoint, graph, OptionsFrom(config), path, progress));
  int64_t done = 0;
  for (const decoder::LinearWeight& linear : graph.linears) {
    progress.Update("quantize", done++, static_cast<int64_t>(graph.linears.size()));
    HEXPORT_RETURN_IF_ERROR(AppendUnmeasured(checkpoint, linear, config, *writer));
  }
  HEXPORT_RETURN_IF_ERROR(writer->Commit());
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<WeightStore> store, WeightStore::Open(path));
  return StoredLinears(*store, graph, config);
}

}  // namespace

Result<std::vector<LinearLoss>> QuantizeModelWeights(const Checkpoint& checkpoint,
                                                     const decoder::DecoderGraph& graph,
                                                     const WeightQuantization& options,
                                                     const std::vector<TokenIds>& samples,
                                                     const fs::path& path, Progress& progress) {
  const bool measured = std::any_of(
      graph.linears.begin(), graph.linears.end(), [&](const decoder::LinearWeight& linear) {
        return !linear.lm_head && !NeedsNoSamples(PlanLinear(options.config, linear).method);
      });
  if (!measured) return RoundAll(checkpoint, graph, options.config, path, progress);
  HEXPORT_RETURN_IF_ERROR(CheckSamples(samples, checkpoint.config().vocab_size));
  return ModelQuantizer(checkpoint, graph, options, samples, progress).Run(path);
}

Result<std::vector<LinearLoss>> StoredLinears(const WeightStore& store,
                                              const decoder::DecoderGraph& graph,
                                              const QuantConfig& config) {
  std::vector<LinearLoss> out;
  for (const decoder::LinearWeight& linear : graph.linears) {
    if (linear.lm_head) continue;
    HEXPORT_ASSIGN_OR_RETURN(const QuantizedWeight weight, store.Describe(linear.name));
    out.push_back({linear.name,
                   {weight.format, weight.block_size},
                   PlanLinear(config, linear).method,
                   StoredBits(weight),
                   linear.in_features * linear.out_features,
                   -1.0});
  }
  return out;
}

}  // namespace hexport::quant
