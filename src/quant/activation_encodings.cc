#include "quant/activation_encodings.h"

#include <algorithm>

namespace hexport::quant {
namespace {

constexpr const char* kEmbedding = "embed_tokens.weight";
constexpr const char* kFirstResidual = "layers.0.input";

bool IsListed(const QuantConfig& config, const char* word) {
  return std::find(config.float16.begin(), config.float16.end(), word) != config.float16.end();
}

}  // namespace

ActivationEncodings::ActivationEncodings(const decoder::DecoderGraph& decoder,
                                         const RangeMap& ranges, const WeightStore& store,
                                         const QuantConfig& config)
    : decoder_(decoder), ranges_(ranges), store_(store), config_(config), groups_(decoder) {
  for (const decoder::Activation& activation : decoder.activations)
    full_names_[activation.value.name] = activation.name;
  for (const decoder::LinearWeight& linear : decoder.linears) linears_[linear.name] = &linear;
  for (const graph::ValueInfo& input : decoder.graph.inputs) {
    if (input.dtype == DType::kFloat32) known_.insert(input.name);
  }
  for (const graph::Node& node : decoder.graph.nodes)
    known_.insert(node.outputs.begin(), node.outputs.end());
  for (const std::string& name : known_) {
    const std::string& root = groups_.Root(name);
    const ActivationPlan plan = PlanOf(name);
    if (plan.float16) float16_roots_.insert(root);
    if (plan.ruled && plan.bits == 8 && !groups_.group(root).cache) narrow_.insert(name);
  }
  for (const graph::Node& node : decoder.graph.nodes) {
    if (IsNarrowLinear(node)) narrow_.insert(node.inputs[0]);
  }
}

const std::string& ActivationEncodings::FullName(const std::string& activation) const {
  const auto found = full_names_.find(activation);
  return found == full_names_.end() ? activation : found->second;
}

ActivationPlan ActivationEncodings::PlanOf(const std::string& activation) const {
  return PlanActivation(config_, FullName(activation));
}

bool ActivationEncodings::IsLinear(const graph::Node& node) const {
  return node.op_type == "MatMul" && linears_.contains(node.inputs[1]);
}

bool ActivationEncodings::IsNarrowLinear(const graph::Node& node) const {
  if (!IsLinear(node) || RunsInFloat16(node)) return false;
  const ActivationPlan input = PlanOf(node.inputs[0]), output = PlanOf(node.outputs[0]);
  if (output.ruled && output.bits == 16) return false;
  if (input.ruled) return input.bits == 8;
  return config_.activation_bits == 8 && !linears_.at(node.inputs[1])->lm_head;
}

bool ActivationEncodings::IsFloat16(const std::string& activation) const {
  return IsFloatValue(activation) && float16_roots_.contains(groups_.Root(activation));
}

bool ActivationEncodings::RunsInFloat16(const graph::Node& node) const {
  if (node.op_type == "RMSNormalization" && IsListed(config_, "norm")) return true;
  if (node.op_type == "Softmax" && IsListed(config_, "softmax")) return true;
  const auto is_float16 = [this](const std::string& name) { return IsFloat16(name); };
  return std::any_of(node.outputs.begin(), node.outputs.end(), is_float16) ||
         std::any_of(node.inputs.begin(), node.inputs.end(), is_float16);
}

Status ActivationEncodings::Check() const {
  const auto refuse = [this](const std::string& name, const std::string& why) {
    return InvalidArgument(FullName(name) +
                           ": expected a quantized activation, got float16: " + why);
  };
  for (const graph::ValueInfo& input : decoder_.graph.inputs) {
    if (IsFloat16(input.name) && input.name != "hidden_in")
      return refuse(input.name, "inputs of the graph are codes");
  }
  for (const graph::ValueInfo& output : decoder_.graph.outputs) {
    if (IsFloat16(output.name) && output.name != "hidden_out")
      return refuse(output.name, "outputs of the graph are codes");
  }
  for (const graph::Node& node : decoder_.graph.nodes) {
    if (!RunsInFloat16(node)) continue;
    if (IsLinear(node)) {
      return refuse(IsFloat16(node.inputs[0]) ? node.inputs[0] : node.outputs[0],
                    "the linear " + node.name +
                        " has integer weights, and the NPU's compiler takes those with integer "
                        "activations alone (\"QNN EP does not support a standalone DQ op with "
                        "per-channel quantization\")");
    }
    if (node.op_type == "Identity" || node.op_type == "Gather")
      return refuse(node.outputs[0], "caches and the embedding are codes");
  }
  return OkStatus();
}

Result<Encoding> ActivationEncodings::Shared(const std::string& activation) {
  const std::string& root = groups_.Root(activation);
  auto found = encodings_.find(root);
  if (found == encodings_.end()) {
    HEXPORT_ASSIGN_OR_RETURN(const Encoding encoding, GroupEncoding(root));
    found = encodings_.emplace(root, encoding).first;
  }
  return found->second;
}

Result<Encoding> ActivationEncodings::Narrow(const std::string& activation) {
  HEXPORT_ASSIGN_OR_RETURN(const Encoding wide, Shared(activation));
  if (wide.bits == 8) return wide;
  if (const auto exact = GroupExact(groups_.Root(activation), 8); exact.has_value()) return *exact;
  return MakeEncoding(EndsOf(wide), 8, /*symmetric=*/false);
}

Result<Range> ActivationEncodings::GroupRange(const std::string& root) const {
  Range range;
  for (const std::string& member : groups_.group(root).members) {
    const auto found = ranges_.find(FullName(member));
    if (found == ranges_.end()) {
      return InvalidArgument(FullName(member) +
                             ": expected a calibrated range, got none; calibrate this checkpoint "
                             "again");
    }
    range.min = std::min(range.min, found->second.min);
    range.max = std::max(range.max, found->second.max);
  }
  return range;
}

Result<Encoding> ActivationEncodings::GroupEncoding(const std::string& root) const {
  const ActivationGroups::Group& group = groups_.group(root);
  if (group.embedding) return store_.EmbeddingEncoding(decoder_.embedding);
  // The first layer alone: the whole graph looks its input up in the table.
  if (root == "hidden_in" && FullName(root) == kFirstResidual) {
    if (Result<Encoding> table = store_.EmbeddingEncoding(kEmbedding); table.ok()) return table;
  }
  const int bits = group.cache ? PlanActivations(config_, group.members).bits : 16;
  if (const auto exact = GroupExact(root, bits); exact.has_value()) return *exact;
  if (group.probability) return MakeEncoding({0.0f, 1.0f}, 16, /*symmetric=*/false);
  HEXPORT_ASSIGN_OR_RETURN(const Range range, GroupRange(root));
  return MakeEncoding(range, bits, /*symmetric=*/group.cache);
}

std::optional<Encoding> ActivationEncodings::Exact(const std::string& name) const {
  const auto found = ranges_.find(FullName(name));
  return found != ranges_.end() ? found->second.exact : std::nullopt;
}

std::optional<Encoding> ActivationEncodings::GroupExact(const std::string& root, int bits) const {
  for (const std::string& member : groups_.group(root).members) {
    const std::optional<Encoding> exact = Exact(member);
    if (exact.has_value() && exact->bits == bits) return exact;
  }
  return std::nullopt;
}

}  // namespace hexport::quant
