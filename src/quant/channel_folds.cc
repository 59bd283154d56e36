#include "quant/channel_folds.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "checkpoint/safetensors.h"
#include "quant/quant_config.h"

namespace hexport::quant {
namespace {

constexpr std::string_view kWeightTail = ".weight";

enum class Kind { kNorm, kUp, kValue, kKey };

struct Place {
  Kind kind;
  std::string prefix;  // "layers.3."
  std::string part;    // "mlp.up_proj"
};

// "layers.3.mlp.up_proj" -> its parts.
std::optional<Place> PlaceOf(const ModelConfig& config, const std::string& producer) {
  const size_t first = producer.find('.'), second = producer.find('.', first + 1);
  if (!producer.starts_with("layers.") || second == std::string::npos) return std::nullopt;
  const std::string prefix = producer.substr(0, second + 1), part = producer.substr(second + 1);
  const std::string mlp_norm =
      config.branch_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm";
  if (part == "input_layernorm" || part == mlp_norm) return Place{Kind::kNorm, prefix, part};
  if (part == "mlp.up_proj") return Place{Kind::kUp, prefix, part};
  if (part == "self_attn.v_proj") return Place{Kind::kValue, prefix, part};
  if (part == "self_attn.k_proj") return Place{Kind::kKey, prefix, part};
  return std::nullopt;
}

const decoder::LinearWeight* FindLinear(const decoder::DecoderGraph& graph,
                                        const std::string& node) {
  const auto found =
      std::find_if(graph.linears.begin(), graph.linears.end(),
                   [&](const decoder::LinearWeight& linear) { return ModuleOf(linear) == node; });
  return found == graph.linears.end() ? nullptr : &*found;
}

// Linears whose input is what the norm `producer` gives.
std::vector<std::string> ReadersOfNorm(const decoder::DecoderGraph& graph,
                                       const std::string& producer) {
  std::vector<std::string> out;
  for (const graph::Node& node : graph.graph.nodes) {
    if (node.op_type != "MatMul" || node.inputs[0] != producer) continue;
    for (const decoder::LinearWeight& linear : graph.linears) {
      if (linear.name == node.inputs[1]) out.emplace_back(ModuleOf(linear));
    }
  }
  return out;
}

// Factors of a tensor's rows [first_row, first_row + rows) and of its columns.
struct Scaling {
  int64_t first_row = 0, rows = 0;
  std::vector<float> row_factors;     // [rows] or empty
  std::vector<float> column_factors;  // [columns] or empty
};

class FoldedCheckpoint : public Checkpoint {
 public:
  explicit FoldedCheckpoint(const Checkpoint& base) : base_(base) {}

  const ModelConfig& config() const override { return base_.config(); }
  const std::vector<TensorInfo>& tensors() const override { return base_.tensors(); }
  const TensorInfo* Find(const std::string& name) const override { return base_.Find(name); }
  Result<TextAssets> Text() const override { return base_.Text(); }
  std::vector<std::filesystem::path> Files() const override { return base_.Files(); }

  Status Read(const std::string& name, std::span<float> out) const override {
    HEXPORT_RETURN_IF_ERROR(base_.Read(name, out));
    return Scale(name, 0, out);
  }
  Status ReadRows(const std::string& name, int64_t first_row, std::span<float> out) const override {
    HEXPORT_RETURN_IF_ERROR(base_.ReadRows(name, first_row, out));
    return Scale(name, first_row, out);
  }

  // A norm's gain is a tensor of single columns with an offset that is not stored.
  void DivideNorm(const std::string& tensor, std::span<const float> factors) {
    std::vector<float>& gains = norms_[tensor];
    gains.resize(factors.size(), 1.0f);
    for (size_t i = 0; i < factors.size(); ++i) gains[i] /= factors[i];
  }
  void ScaleRows(const decoder::LinearWeight& linear, std::vector<float> factors) {
    const std::string bias =
        linear.tensor.substr(0, linear.tensor.size() - kWeightTail.size()) + ".bias";
    if (base_.Find(bias) != nullptr)
      scalings_[bias].push_back({linear.first_row, linear.out_features, factors, {}});
    scalings_[linear.tensor].push_back(
        {linear.first_row, linear.out_features, std::move(factors), {}});
  }
  void ScaleColumns(const decoder::LinearWeight& linear, std::vector<float> factors) {
    scalings_[linear.tensor].push_back(
        {linear.first_row, linear.out_features, {}, std::move(factors)});
  }

 private:
  Status Scale(const std::string& name, int64_t first_row, std::span<float> out) const {
    if (const auto norm = norms_.find(name); norm != norms_.end()) {
      const auto offset = static_cast<float>(base_.config().norm_offset);
      for (size_t i = 0; i < out.size(); ++i) out[i] = (out[i] + offset) * norm->second[i] - offset;
    }
    const auto found = scalings_.find(name);
    if (found == scalings_.end()) return OkStatus();
    const Shape& shape = base_.Find(name)->shape;
    const int64_t columns = shape.size() > 1 ? shape[1] : 1;
    const int64_t rows = static_cast<int64_t>(out.size()) / columns;
    for (const Scaling& scaling : found->second) {
      const int64_t begin = std::max(first_row, scaling.first_row);
      const int64_t end = std::min(first_row + rows, scaling.first_row + scaling.rows);
      for (int64_t row = begin; row < end; ++row) {
        const std::span<float> values = out.subspan(
            static_cast<size_t>((row - first_row) * columns), static_cast<size_t>(columns));
        if (!scaling.row_factors.empty()) {
          const float factor = scaling.row_factors[static_cast<size_t>(row - scaling.first_row)];
          for (float& value : values) value *= factor;
        }
        for (size_t k = 0; k < scaling.column_factors.size(); ++k)
          values[k] *= scaling.column_factors[k];
      }
    }
    return OkStatus();
  }

  const Checkpoint& base_;
  std::map<std::string, std::vector<Scaling>> scalings_;
  std::map<std::string, std::vector<float>> norms_;
};

std::vector<float> Inverse(std::span<const float> factors) {
  std::vector<float> out(factors.begin(), factors.end());
  for (float& factor : out) factor = 1.0f / factor;
  return out;
}

// [key/value heads * head_dim] -> [query heads * head_dim]: query heads that share a key/value head
// stand together.
std::vector<float> ForQueryHeads(const ModelConfig& config, std::span<const float> factors) {
  const auto d = static_cast<size_t>(config.head_dim);
  const int64_t shared = config.num_attention_heads / config.num_key_value_heads;
  std::vector<float> out;
  for (size_t first = 0; first < factors.size(); first += d) {
    for (int64_t i = 0; i < shared; ++i)
      out.insert(out.end(), factors.begin() + static_cast<std::ptrdiff_t>(first),
                 factors.begin() + static_cast<std::ptrdiff_t>(first + d));
  }
  return out;
}

// The two elements that RoPE turns together stand rotary_dim / 2 apart.
Status CheckPairs(const ModelConfig& config, const ChannelFold& fold, int64_t layer) {
  if (!config.UsesRope(layer)) return OkStatus();
  const bool local = config.local_rope.has_value() && config.IsSliding(layer);
  const int64_t rotary = (local ? *config.local_rope : config.rope).rotary_dim;
  for (int64_t first = 0; first < static_cast<int64_t>(fold.factors.size());
       first += config.head_dim) {
    for (int64_t i = first; i < first + rotary / 2; ++i) {
      if (fold.factors[static_cast<size_t>(i)] == fold.factors[static_cast<size_t>(i + rotary / 2)])
        continue;
      return InvalidArgument(fold.producer + ": expected one factor for channels " +
                             std::to_string(i) + " and " + std::to_string(i + rotary / 2) +
                             ", which RoPE turns together");
    }
  }
  return OkStatus();
}

Status CheckConsumers(const ChannelFold& fold, const std::vector<std::string>& readers) {
  const std::set<std::string> listed(fold.consumers.begin(), fold.consumers.end());
  for (const std::string& reader : readers) {
    if (!listed.contains(reader)) {
      return InvalidArgument(fold.producer + ": expected every reader among the consumers, but " +
                             reader + " also reads it; add it");
    }
  }
  for (const std::string& consumer : fold.consumers) {
    if (std::find(readers.begin(), readers.end(), consumer) == readers.end()) {
      return InvalidArgument(fold.producer + ": expected consumers that read it, got " + consumer +
                             "; take it out");
    }
  }
  return OkStatus();
}

Status CheckFactors(const ChannelFold& fold, int64_t channels) {
  if (static_cast<int64_t>(fold.factors.size()) != channels) {
    return InvalidArgument(fold.producer + ": expected " + std::to_string(channels) +
                           " factors, got " + std::to_string(fold.factors.size()));
  }
  for (size_t i = 0; i < fold.factors.size(); ++i) {
    if (std::isfinite(fold.factors[i]) && fold.factors[i] > 0.0f) continue;
    return InvalidArgument(fold.producer + ": factor " + std::to_string(i) +
                           ": expected a positive, finite number, got " +
                           std::to_string(fold.factors[i]));
  }
  return OkStatus();
}

Status Apply(const decoder::DecoderGraph& graph, const ChannelFold& fold, const Checkpoint& base,
             FoldedCheckpoint& out) {
  const ModelConfig& config = base.config();
  HEXPORT_ASSIGN_OR_RETURN(const std::vector<std::string> readers,
                           ConsumersOf(graph, config, fold.producer));
  HEXPORT_RETURN_IF_ERROR(CheckConsumers(fold, readers));
  const Place place = *PlaceOf(config, fold.producer);
  if (place.kind == Kind::kNorm) {
    HEXPORT_RETURN_IF_ERROR(CheckFactors(fold, config.hidden_size));
    out.DivideNorm("model." + fold.producer + ".weight", fold.factors);
    for (const std::string& reader : readers)
      out.ScaleColumns(*FindLinear(graph, reader), fold.factors);
    return OkStatus();
  }
  const decoder::LinearWeight* producer = FindLinear(graph, fold.producer);
  const decoder::LinearWeight* consumer = FindLinear(graph, readers.front());
  HEXPORT_RETURN_IF_ERROR(CheckFactors(fold, producer->out_features));
  out.ScaleRows(*producer, Inverse(fold.factors));
  switch (place.kind) {
    case Kind::kUp:
      out.ScaleColumns(*consumer, fold.factors);
      break;
    case Kind::kValue:
      out.ScaleColumns(*consumer, ForQueryHeads(config, fold.factors));
      break;
    default:
      HEXPORT_RETURN_IF_ERROR(CheckPairs(config, fold, producer->layer));
      out.ScaleRows(*consumer, ForQueryHeads(config, fold.factors));
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<std::string>> ConsumersOf(const decoder::DecoderGraph& graph,
                                             const ModelConfig& config,
                                             const std::string& producer) {
  const std::optional<Place> place = PlaceOf(config, producer);
  std::vector<std::string> out;
  if (place.has_value()) {
    switch (place->kind) {
      case Kind::kNorm:
        out = ReadersOfNorm(graph, producer);
        break;
      case Kind::kUp:
        out = {place->prefix + "mlp.down_proj"};
        break;
      case Kind::kValue:
        out = {place->prefix + "self_attn.o_proj"};
        break;
      case Kind::kKey:
        if (config.qk_norm) {
          return InvalidArgument(producer + ": expected keys that no norm reads, got " +
                                 config.architecture + "'s, which are normed head by head");
        }
        out = {place->prefix + "self_attn.q_proj"};
        break;
    }
    if (place->kind != Kind::kNorm && FindLinear(graph, producer) == nullptr) out.clear();
  }
  std::erase_if(out, [&](const std::string& name) { return FindLinear(graph, name) == nullptr; });
  if (!out.empty()) return out;
  return InvalidArgument(producer +
                         ": expected a norm before linears, an up_proj, a v_proj or a k_proj of a "
                         "layer, like layers.0.input_layernorm");
}

Result<std::unique_ptr<Checkpoint>> FoldChannels(const Checkpoint& base,
                                                 const std::vector<ChannelFold>& folds) {
  HEXPORT_ASSIGN_OR_RETURN(const decoder::DecoderGraph graph, decoder::BuildDecoder(base, {}));
  auto out = std::make_unique<FoldedCheckpoint>(base);
  for (const ChannelFold& fold : folds) HEXPORT_RETURN_IF_ERROR(Apply(graph, fold, base, *out));
  return std::unique_ptr<Checkpoint>(std::move(out));
}

Status WriteFolds(const std::vector<ChannelFold>& folds, const std::filesystem::path& path) {
  std::vector<SafetensorsEntry> declared;
  for (const ChannelFold& fold : folds)
    declared.push_back({fold.producer, "F32", {static_cast<int64_t>(fold.factors.size())}});
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsWriter> writer,
                           SafetensorsWriter::Create(path, std::move(declared), {}));
  for (const ChannelFold& fold : folds)
    HEXPORT_RETURN_IF_ERROR(writer->Append(std::as_bytes(std::span(fold.factors))));
  return writer->Commit();
}

Result<std::vector<ChannelFold>> ReadFolds(const Checkpoint& checkpoint,
                                           const std::filesystem::path& path) {
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsFile> file,
                           SafetensorsFile::Open(path));
  HEXPORT_ASSIGN_OR_RETURN(const decoder::DecoderGraph graph,
                           decoder::BuildDecoder(checkpoint, {}));
  std::vector<ChannelFold> out;
  for (const SafetensorsEntry& entry : file->entries()) {
    if (entry.dtype != "F32" || entry.shape.size() != 1) {
      return DataLoss(path.string() + ": " + entry.name + ": expected F32 of one dimension, got " +
                      entry.dtype + " " + ShapeString(entry.shape));
    }
    ChannelFold fold;
    fold.producer = entry.name;
    HEXPORT_ASSIGN_OR_RETURN(fold.consumers, ConsumersOf(graph, checkpoint.config(), entry.name));
    const std::span<const std::byte> bytes = file->Bytes(entry);
    fold.factors.resize(bytes.size() / sizeof(float));
    std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span(fold.factors)).begin());
    out.push_back(std::move(fold));
  }
  return out;
}

}  // namespace hexport::quant
