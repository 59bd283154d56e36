#include "quant/layer_stages.h"

#include <algorithm>
#include <utility>

#include "graph/onnx_io.h"
#include "quant/calibrate.h"

namespace hexport::quant {
namespace {

using graph::Graph;
using graph::Node;
using graph::ValueInfo;

constexpr char kHiddenIn[] = "hidden_in", kHiddenOut[] = "hidden_out";

std::map<std::string, size_t> Producers(const Graph& graph) {
  std::map<std::string, size_t> out;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const std::string& value : graph.nodes[i].outputs) out[value] = i;
  }
  return out;
}

// Indices of the nodes that `value` needs.
std::set<size_t> Ancestors(const Graph& graph, const std::map<std::string, size_t>& producers,
                           const std::string& value) {
  std::set<size_t> out;
  std::vector<std::string> open = {value};
  while (!open.empty()) {
    const auto found = producers.find(open.back());
    open.pop_back();
    if (found == producers.end() || !out.insert(found->second).second) continue;
    const Node& node = graph.nodes[found->second];
    open.insert(open.end(), node.inputs.begin(), node.inputs.end());
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<LayerStages>> LayerStages::Create(const Checkpoint& checkpoint,
                                                         int64_t layer, const Options& options,
                                                         SampleTensors hidden,
                                                         SpillBudget& budget) {
  std::unique_ptr<LayerStages> out(new LayerStages(checkpoint, options, budget));
  decoder::DecoderOptions decoder_options;
  decoder_options.first_layer = layer;
  decoder_options.last_layer = layer + 1;
  decoder_options.embedding = decoder_options.head = false;
  decoder_options.context_length = options.context_length;
  HEXPORT_ASSIGN_OR_RETURN(out->decoder_, decoder::BuildDecoder(checkpoint, decoder_options));
  out->state_.emplace(kHiddenIn, std::move(hidden));
  out->FindGroups();
  HEXPORT_RETURN_IF_ERROR(out->Cut());
  return out;
}

// The other term where `value`, or value plus a bias, is added to a [1, tokens, hidden] activation.
std::string LayerStages::ResidualOf(const std::string& value) const {
  std::set<std::string> constants;
  for (const graph::Initializer& initializer : decoder_.graph.initializers)
    constants.insert(initializer.name);
  for (const Node& node : decoder_.graph.nodes) {
    if (node.op_type != "Add" || node.inputs.size() != 2) continue;
    const auto term = std::find(node.inputs.begin(), node.inputs.end(), value);
    if (term == node.inputs.end()) continue;
    const std::string& other = node.inputs[term == node.inputs.begin() ? 1 : 0];
    return constants.contains(other) ? ResidualOf(node.outputs[0]) : other;
  }
  return "";
}

void LayerStages::FindGroups() {
  std::map<std::string, const decoder::LinearWeight*> linears;
  for (const decoder::LinearWeight& linear : decoder_.linears) linears[linear.name] = &linear;
  for (const Node& node : decoder_.graph.nodes) {
    if (node.op_type != "MatMul") continue;
    const auto linear = linears.find(node.inputs[1]);
    if (linear == linears.end()) continue;
    const auto group = std::find_if(groups_.begin(), groups_.end(),
                                    [&](const Group& g) { return g.input == node.inputs[0]; });
    if (group != groups_.end()) {
      group->linears.push_back(*linear->second);
    } else {
      groups_.push_back({node.inputs[0], {*linear->second}, ResidualOf(node.outputs[0])});
    }
  }
}

Status LayerStages::Cut() {
  std::set<size_t> done;
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<std::string> targets = {groups_[g].input};
    const bool last = g + 1 == groups_.size();
    if (last && options_.own_weights) targets.emplace_back(kHiddenOut);
    HEXPORT_RETURN_IF_ERROR(CutStage(targets, done));
    if (last && options_.own_weights) stages_.back().keep_target = false;
  }
  if (options_.own_weights) return OkStatus();
  return CutStage({kHiddenOut}, done);
}

// Appends the stage of every node that the targets need and that is not done yet.
Status LayerStages::CutStage(const std::vector<std::string>& targets, std::set<size_t>& done) {
  const Graph& whole = decoder_.graph;
  const std::map<std::string, size_t> producers = Producers(whole);
  std::set<size_t> nodes;
  for (const std::string& target : targets) {
    for (const size_t i : Ancestors(whole, producers, target)) {
      if (!done.contains(i)) nodes.insert(i);
    }
  }
  done.insert(nodes.begin(), nodes.end());
  Stage stage;
  stage.graph.name = "up to " + targets.back();
  stage.graph.opset = whole.opset;
  std::set<std::string> read;
  for (const size_t i : nodes) {
    stage.graph.nodes.push_back(whole.nodes[i]);
    read.insert(whole.nodes[i].inputs.begin(), whole.nodes[i].inputs.end());
  }
  std::set<std::string> linears;
  for (const decoder::LinearWeight& linear : decoder_.linears) linears.insert(linear.name);
  for (const graph::Initializer& initializer : whole.initializers) {
    if (!read.contains(initializer.name)) continue;
    if (!linears.contains(initializer.name)) {
      stage.graph.initializers.push_back(initializer);
      continue;
    }
    stage.weights.push_back(initializer.name);
    stage.graph.inputs.push_back({initializer.name, DType::kFloat32, initializer.shape, {}});
  }
  std::map<std::string, const ValueInfo*> values;
  for (const decoder::Activation& activation : decoder_.activations)
    values[activation.value.name] = &activation.value;
  for (const ValueInfo& input : whole.inputs) {
    if (!read.contains(input.name)) continue;
    stage.graph.inputs.push_back(input);
    if (input.name == kHiddenIn) stage.reads.emplace_back(kHiddenIn);
  }
  for (const std::string& value : read) {
    const auto producer = producers.find(value);
    if (producer == producers.end() || nodes.contains(producer->second)) continue;
    stage.reads.push_back(value);
    stage.graph.inputs.push_back(*values.at(value));
  }
  stage.writes = targets;
  const std::set<size_t> needed = Ancestors(whole, producers, kHiddenOut);
  for (const size_t i : nodes) {
    for (const std::string& value : whole.nodes[i].outputs) {
      const bool later = std::any_of(needed.begin(), needed.end(), [&](size_t n) {
        const auto& inputs = whole.nodes[n].inputs;
        return !done.contains(n) && std::find(inputs.begin(), inputs.end(), value) != inputs.end();
      });
      if (later && std::find(targets.begin(), targets.end(), value) == targets.end())
        stage.writes.push_back(value);
    }
  }
  for (const std::string& value : stage.writes) {
    const auto found = values.find(value);
    if (found == values.end()) return Internal(value + ": expected an activation of the layer");
    stage.graph.outputs.push_back(*found->second);
  }
  stages_.push_back(std::move(stage));
  return OkStatus();
}

void LayerStages::SetWeight(const std::string& name, std::vector<float> values) {
  weights_[name] = std::move(values);
}

Status LayerStages::LoadWeights(const Stage& stage) {
  for (const decoder::LinearWeight& linear : decoder_.linears) {
    const auto& wanted = stage.weights;
    if (std::find(wanted.begin(), wanted.end(), linear.name) == wanted.end()) continue;
    if (weights_.contains(linear.name)) continue;
    std::vector<float> values(static_cast<size_t>(linear.in_features * linear.out_features));
    HEXPORT_RETURN_IF_ERROR(decoder::ReadLinear(checkpoint_, linear, values));
    weights_[linear.name] = std::move(values);
  }
  return OkStatus();
}

Status LayerStages::OpenStage() {
  const Stage& stage = stages_[next_];
  HEXPORT_RETURN_IF_ERROR(LoadWeights(stage));
  written_.clear();
  const size_t samples = state_.begin()->second.size();
  for (size_t i = 0; i < stage.writes.size(); ++i) {
    if (i > 0 || stage.keep_target)
      written_.emplace(stage.writes[i], SampleTensors(budget_, samples));
  }
  if (stage.graph.nodes.empty()) return OkStatus();
  HEXPORT_ASSIGN_OR_RETURN(const std::string bytes, graph::SerializeOnnx(stage.graph));
  ort::SessionOptions options;
  options.prepack = false;
  options.spin = false;
  HEXPORT_ASSIGN_OR_RETURN(session_, ort::Session::CreateFromBytes(bytes, options));
  return OkStatus();
}

Status LayerStages::OpenGroup() {
  if (next_ >= groups_.size())
    return FailedPrecondition("layer stages: expected a group that is left, got none");
  return OpenStage();
}

Result<std::span<const float>> LayerStages::Run(size_t sample) {
  const Stage& stage = stages_[next_];
  const ModelConfig& config = checkpoint_.config();
  const int64_t tokens = state_.begin()->second.shape(sample).at(1);
  const int64_t context = options_.context_length > 0 ? options_.context_length : tokens;
  const decoder::StepInputs step{config, tokens, tokens, 0, tokens, context, kMaskFloor};
  const float empty = 0.0f;
  std::map<std::string, std::vector<float>> scratch;
  std::map<std::string, ort::TensorView> inputs;
  for (const ValueInfo& input : stage.graph.inputs) {
    ort::TensorView& view = inputs[input.name];
    if (const auto weight = weights_.find(input.name); weight != weights_.end()) {
      view = {DType::kFloat32, input.shape, weight->second.data()};
    } else if (const auto state = state_.find(input.name); state != state_.end()) {
      HEXPORT_ASSIGN_OR_RETURN(const std::span<const float> values,
                               state->second.Get(sample, scratch[input.name]));
      view = {DType::kFloat32, state->second.shape(sample), values.data()};
    } else if (auto values = decoder::StepInput(step, input.name); values.has_value()) {
      std::vector<float>& kept = scratch[input.name] = *std::move(values);
      view = {
          DType::kFloat32, {1, 1, tokens, static_cast<int64_t>(kept.size()) / tokens}, kept.data()};
    } else {
      const bool key = input.name.starts_with("past_key");
      const int64_t heads = config.num_key_value_heads;
      view = {DType::kFloat32,
              {heads, 1, key ? config.head_dim : 0, key ? 0 : config.head_dim},
              &empty};
    }
  }
  HEXPORT_ASSIGN_OR_RETURN(tensors_, session_->Run(inputs, stage.writes));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto kept = written_.find(stage.writes[i]);
    if (kept == written_.end()) continue;
    HEXPORT_RETURN_IF_ERROR(kept->second.Put(sample, tensors_[i].shape, tensors_[i].as<float>()));
  }
  return tensors_[0].as<float>();
}

Result<std::span<const float>> LayerStages::Residual(size_t sample,
                                                     std::vector<float>& scratch) const {
  const std::string& name = groups_[next_].residual;
  const Stage& stage = stages_[next_];
  const auto written = std::find(stage.writes.begin(), stage.writes.end(), name);
  if (written != stage.writes.end() && !tensors_.empty())
    return tensors_[static_cast<size_t>(written - stage.writes.begin())].as<float>();
  const auto state = state_.find(name);
  if (state == state_.end()) return NotFound(name + ": expected a residual that is kept");
  return state->second.Get(sample, scratch);
}

void LayerStages::CloseGroup() {
  for (const std::string& name : stages_[next_].weights) weights_.erase(name);
  for (auto& [name, tensors] : written_) state_.insert_or_assign(name, std::move(tensors));
  written_.clear();
  session_.reset();
  tensors_.clear();
  ++next_;
  std::erase_if(state_, [&](const auto& entry) {
    if (entry.first == kHiddenOut) return false;
    return std::none_of(stages_.begin() + static_cast<std::ptrdiff_t>(next_), stages_.end(),
                        [&](const Stage& stage) {
                          const auto& reads = stage.reads;
                          return std::find(reads.begin(), reads.end(), entry.first) != reads.end();
                        });
  });
}

Result<SampleTensors> LayerStages::Finish() {
  while (next_ < stages_.size()) {
    HEXPORT_RETURN_IF_ERROR(OpenStage());
    const size_t samples = state_.begin()->second.size();
    for (size_t s = 0; s < samples; ++s) {
      const Result<std::span<const float>> run = Run(s);
      if (!run.ok()) return run.status();
    }
    CloseGroup();
  }
  return std::move(state_.at(kHiddenOut));
}

}  // namespace hexport::quant
