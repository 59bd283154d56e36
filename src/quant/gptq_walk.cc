// GPTQ over a whole model, one layer at a time.
#include <Eigen/Core>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "quant/activation_groups.h"
#include "quant/gptq.h"
#include "quant/layer_walker.h"
#include "quant/weight_store_writer.h"

namespace hexport::quant {
namespace {

using FloatRows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// The inputs of one or more linears: X^T X so far.
struct InputStatistics {
  int64_t in_features = 0;
  std::vector<double> hessian;
};

class GptqWalk {
 public:
  GptqWalk(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
           const WeightOptions& options, WeightStoreWriter& writer)
      : checkpoint_(checkpoint), graph_(graph), options_(options), writer_(writer) {
    std::map<std::string, const graph::Node*> maker;
    for (const graph::Node& node : graph.graph.nodes) {
      for (const std::string& output : node.outputs) maker[output] = &node;
    }
    for (const graph::Node& node : graph.graph.nodes) {
      if (node.op_type != "MatMul") continue;
      std::string source = node.inputs[0];
      while (maker.contains(source) && MovesData(maker[source]->op_type))
        source = maker[source]->inputs[0];
      source_of_[node.inputs[1]] = source;
    }
    for (const decoder::LinearWeight& linear : graph.linears) {
      if (!linear.lm_head) statistics_[source_of_[linear.name]].in_features = linear.in_features;
    }
  }

  Status Visit(const ActivationView& view) {
    const auto found = statistics_.find(view.name);
    if (found == statistics_.end()) return OkStatus();
    // A later layer's input: every sample has passed the layers before it.
    const int64_t layer = LayerReading(view.name);
    HEXPORT_RETURN_IF_ERROR(QuantizeLayersBefore(layer));
    Accumulate(view, found->second);
    return OkStatus();
  }

  Status Finish() {
    HEXPORT_RETURN_IF_ERROR(QuantizeLayersBefore(checkpoint_.config().num_hidden_layers));
    while (next_ < graph_.linears.size()) HEXPORT_RETURN_IF_ERROR(QuantizeNext());
    return OkStatus();
  }

 private:
  int64_t LayerReading(const std::string& source) const {
    for (const decoder::LinearWeight& linear : graph_.linears) {
      if (!linear.lm_head && source_of_.at(linear.name) == source) return linear.layer;
    }
    return 0;
  }

  Status QuantizeLayersBefore(int64_t layer) {
    while (next_ < graph_.linears.size() && !graph_.linears[next_].lm_head &&
           graph_.linears[next_].layer < layer) {
      HEXPORT_RETURN_IF_ERROR(QuantizeNext());
    }
    return OkStatus();
  }

  // The last linear that reads an input frees its statistics.
  Status QuantizeNext() {
    const decoder::LinearWeight& linear = graph_.linears[next_++];
    if (linear.lm_head) return writer_.AppendRtn(linear);
    InputStatistics& statistics = statistics_.at(source_of_.at(linear.name));
    std::vector<float> weights(static_cast<size_t>(linear.in_features * linear.out_features));
    HEXPORT_RETURN_IF_ERROR(decoder::ReadLinear(checkpoint_, linear, weights));
    Result<QuantizedWeight> weight = QuantizeGptq(weights, linear.in_features, linear.out_features,
                                                  statistics.hessian, writer_.OptionsOf(linear));
    if (!weight.ok()) return weight.status().WithContext(linear.tensor);
    const bool shared = next_ < graph_.linears.size() && !graph_.linears[next_].lm_head &&
                        source_of_.at(graph_.linears[next_].name) == source_of_.at(linear.name);
    if (!shared) statistics.hessian = {};
    return writer_.Append(*weight);
  }

  static void Accumulate(const ActivationView& view, InputStatistics& statistics) {
    const size_t in = static_cast<size_t>(statistics.in_features);
    const size_t tokens = view.values.size() / in, dim = static_cast<size_t>(view.columns),
                 heads = in / dim;
    // Rows of [heads, tokens, dim] come together to [tokens, heads * dim]; with one head nothing
    // moves.
    FloatRows rows(static_cast<Eigen::Index>(tokens), static_cast<Eigen::Index>(in));
    for (size_t h = 0; h < heads; ++h) {
      for (size_t t = 0; t < tokens; ++t) {
        std::copy_n(view.values.begin() + static_cast<std::ptrdiff_t>((h * tokens + t) * dim), dim,
                    rows.data() + t * in + h * dim);
      }
    }
    if (statistics.hessian.empty()) statistics.hessian.assign(in * in, 0.0);
    const FloatRows square = rows.transpose() * rows;
    for (size_t i = 0; i < in * in; ++i)
      statistics.hessian[i] += static_cast<double>(square.data()[i]);
  }

  const Checkpoint& checkpoint_;
  const decoder::DecoderGraph& graph_;
  WeightOptions options_;
  WeightStoreWriter& writer_;
  std::map<std::string, std::string> source_of_;  // weight -> the activation that is visited for it
  std::map<std::string, InputStatistics> statistics_;  // by that activation
  size_t next_ = 0;                                    // linears before it are written
};

}  // namespace

Status QuantizeWeightsGptq(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
                           const WeightOptions& options, const std::vector<TokenIds>& samples,
                           const std::filesystem::path& path, Progress& progress,
                           int64_t context_length) {
  HEXPORT_ASSIGN_OR_RETURN(
      std::unique_ptr<WeightStoreWriter> writer,
      WeightStoreWriter::Create(checkpoint, graph, UniformOptions(options), path, progress));
  GptqWalk walk(checkpoint, graph, options, *writer);
  HEXPORT_RETURN_IF_ERROR(WalkDecoder(
      checkpoint, samples,
      {.every_activation = true, .context_length = context_length, .stage = "quantize"},
      [&walk](const ActivationView& view) { return walk.Visit(view); }, progress));
  HEXPORT_RETURN_IF_ERROR(walk.Finish());
  return writer->Commit();
}

}  // namespace hexport::quant
