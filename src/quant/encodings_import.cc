#include "quant/encodings_import.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "quant/activation_groups.h"
#include "quant/encodings_check.h"
#include "quant/encodings_export.h"
#include "quant/weight_store_writer.h"

namespace hexport::quant {
namespace {

constexpr double kMostClipped = 0.05;

std::string Describe(const TensorEncoding& encoding) {
  return std::string(EncodingTypeName(encoding.type)) + " of " + std::to_string(encoding.bits) +
         (encoding.is_float    ? " bit floats"
          : encoding.symmetric ? " symmetric bits"
                               : " bits");
}

Status Refuse(const TensorEncoding& encoding, const std::string& expected) {
  return InvalidArgument(encoding.name + ": expected " + expected + ", got " + Describe(encoding) +
                         "; the NPU's graph has no other");
}

using ByName = std::map<std::string, const TensorEncoding*>;

ByName NamesOf(const std::vector<TensorEncoding>& encodings) {
  ByName out;
  for (const TensorEncoding& encoding : encodings) out[encoding.name] = &encoding;
  return out;
}

// 16 bits per tensor: embeddings, norm weights, biases.
Result<Encoding> WideEncoding(const TensorEncoding& encoding) {
  if (encoding.type != EncodingType::kPerTensor || encoding.is_float || encoding.bits != 16)
    return Refuse(encoding, "PER_TENSOR of 16 bits");
  return ToEncoding(encoding);
}

// The scales and sizes of a linear, without codes.
Result<QuantizedWeight> GridOf(const TensorEncoding& encoding,
                               const decoder::LinearWeight& linear) {
  const std::string expected =
      "symmetric int8 or int4 per channel, or LPBQ of 4 bits in 8 with blocks of 16, 32 or 64";
  const auto outs = static_cast<size_t>(linear.out_features);
  QuantizedWeight grid;
  grid.in_features = linear.in_features;
  grid.out_features = linear.out_features;
  grid.channel_scales = encoding.scales;
  if (encoding.type == EncodingType::kPerTensor)
    grid.channel_scales.assign(outs, encoding.scales.at(0));
  const int middle = -(1 << (encoding.bits - 1));
  const bool symmetric = std::all_of(encoding.offsets.begin(), encoding.offsets.end(),
                                     [middle](int32_t offset) { return offset == middle; });
  if (encoding.is_float || !symmetric || encoding.type == EncodingType::kPerBlock)
    return Refuse(encoding, expected);
  if (encoding.type != EncodingType::kLpbq) {
    if (encoding.bits != 8 && encoding.bits != 4) return Refuse(encoding, expected);
    grid.format = encoding.bits == 8 ? WeightFormat::kInt8 : WeightFormat::kInt4;
    return grid;
  }
  const bool block =
      encoding.block_size == 16 || encoding.block_size == 32 || encoding.block_size == 64;
  if (encoding.bits != 8 || encoding.compressed_bits != 4 || !block)
    return Refuse(encoding, expected);
  grid.format = WeightFormat::kLpbq;
  grid.block_size = encoding.block_size;
  const size_t blocks = encoding.block_scales.size() / outs;
  grid.block_scales.resize(encoding.block_scales.size());
  for (size_t n = 0; n < outs; ++n) {
    for (size_t b = 0; b < blocks; ++b) {
      const uint16_t scale = encoding.block_scales[n * blocks + b];
      if (scale < 1 || scale > 16) return Refuse(encoding, expected);
      grid.block_scales[b * outs + n] = static_cast<uint8_t>(scale);
    }
  }
  return grid;
}

class Import {
 public:
  Import(const EncodingsFile& file, const decoder::DecoderGraph& graph, const QuantConfig& config)
      : graph_(graph),
        groups_(graph),
        activations_(NamesOf(file.activations)),
        params_(NamesOf(file.params)) {
    out_.config = config;
  }

  Result<ImportedEncodings> Run() {
    HEXPORT_RETURN_IF_ERROR(TakeLinears());
    HEXPORT_RETURN_IF_ERROR(TakeConstants());
    for (const decoder::Activation& activation : graph_.activations)
      members_[groups_.Root(activation.name)].push_back(activation.name);
    for (const auto& [root, members] : members_) HEXPORT_RETURN_IF_ERROR(TakeGroup(root, members));
    if (cache_bits_.has_value()) out_.config.kv_bits = *cache_bits_;
    return std::move(out_);
  }

 private:
  // The commonest format is the config's, the others are rules.
  Status TakeLinears() {
    std::map<std::pair<WeightFormat, int>, int> counts;
    std::map<std::string, std::pair<WeightFormat, int>> formats;
    for (const decoder::LinearWeight& linear : graph_.linears) {
      HEXPORT_ASSIGN_OR_RETURN(const QuantizedWeight grid,
                               GridOf(*params_.at(linear.name), linear));
      formats[linear.name] = {grid.format, grid.block_size};
      if (!linear.lm_head) ++counts[formats[linear.name]];
      ++out_.used;
    }
    const auto commonest =
        std::max_element(counts.begin(), counts.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (commonest == counts.end()) return OkStatus();
    const auto [format, block] = commonest->first;
    QuantConfig& config = out_.config;
    config.method = Method::kRtn;
    config.weights = {format, block > 0 ? block : config.weights.block_size};
    for (const decoder::LinearWeight& linear : graph_.linears) {
      const auto [own, own_block] = formats.at(linear.name);
      const auto usual = linear.lm_head ? WeightFormat::kInt8 : format;
      if (own == usual && (own != WeightFormat::kLpbq || own_block == block)) continue;
      LinearRule rule{std::string(ModuleOf(linear)), own, std::nullopt, std::nullopt};
      if (own == WeightFormat::kLpbq) rule.block_size = own_block;
      config.linears.push_back(std::move(rule));
    }
    return OkStatus();
  }

  // The embedding, norm weights and biases. Biases may be absent.
  Status TakeConstants() {
    std::set<std::string> linears;
    for (const decoder::LinearWeight& linear : graph_.linears) linears.insert(linear.name);
    for (const graph::Initializer& initializer : graph_.graph.initializers) {
      const auto found = params_.find(initializer.name);
      if (found == params_.end() || linears.contains(initializer.name)) continue;
      HEXPORT_ASSIGN_OR_RETURN(const Encoding encoding, WideEncoding(*found->second));
      ++out_.used;
      if (initializer.name == graph_.embedding) {
        embedding_ = encoding;
      } else {
        Keep(initializer.name, encoding);
      }
    }
    return OkStatus();
  }

  // Tensors that share codes. CheckEncodings has seen that those of the same bits agree.
  Status TakeGroup(const std::string& root, const std::vector<std::string>& members) {
    const ActivationGroups::Group& group = groups_.group(root);
    std::optional<Range> ends;
    for (const std::string& name : members) {
      const auto found = activations_.find(name);
      if (found == activations_.end()) continue;
      const TensorEncoding& given = *found->second;
      ++out_.used;
      if (given.is_float) {
        if (given.bits != 16) return Refuse(given, "16 bit floats, or 8 or 16 bits");
        out_.config.activations.push_back({name, std::nullopt, true});
        continue;
      }
      if (given.bits != 8 && given.bits != 16) return Refuse(given, "8 or 16 bits");
      const Encoding encoding = ToEncoding(given);
      if (group.cache) {
        HEXPORT_RETURN_IF_ERROR(TakeCache(given));
      } else if (group.embedding) {
        HEXPORT_RETURN_IF_ERROR(CheckTable(given));
      } else if (encoding.bits == 8) {
        out_.config.activations.push_back({name, 8, false});
      }
      if (!ends.has_value() || encoding.bits == 16) ends = EndsOf(encoding);
      Keep(name, encoding);
    }
    for (const std::string& name : members)
      out_.ranges.emplace(name, ends.value_or(Range{0.0f, 1.0f}));
    return OkStatus();
  }

  Status TakeCache(const TensorEncoding& given) {
    if (given.offsets[0] != -(1 << (given.bits - 1))) return Refuse(given, "symmetric codes");
    if (cache_bits_.value_or(given.bits) != given.bits) {
      return InvalidArgument(given.name + ": expected " + std::to_string(*cache_bits_) +
                             " bits as of the caches before it, got " + std::to_string(given.bits) +
                             "; all caches have one width");
    }
    cache_bits_ = given.bits;
    return OkStatus();
  }

  // What is looked up has the table's own codes.
  Status CheckTable(const TensorEncoding& given) const {
    const Encoding encoding = ToEncoding(given);
    if (embedding_.has_value() && encoding.bits == embedding_->bits &&
        encoding.scale == embedding_->scale && encoding.zero_point == embedding_->zero_point)
      return OkStatus();
    return InvalidArgument(given.name + ": expected the encoding of " + graph_.embedding +
                           ", whose codes it holds, got another one");
  }

  void Keep(const std::string& name, const Encoding& encoding) {
    Range range = EndsOf(encoding);
    range.exact = encoding;
    out_.ranges[name] = range;
  }

  const decoder::DecoderGraph& graph_;
  const ActivationGroups groups_;
  const ByName activations_, params_;
  std::map<std::string, std::vector<std::string>> members_;
  std::optional<Encoding> embedding_;
  std::optional<int> cache_bits_;
  ImportedEncodings out_;
};

// Codes of `weights`, [in, out], to the nearest of the grid; how many lie more than half a step
// beyond its ends.
size_t RoundOnGrid(std::span<const float> weights, QuantizedWeight& grid) {
  const int last = grid.format == WeightFormat::kInt8 ? 127 : 7;
  const auto outs = static_cast<size_t>(grid.out_features);
  size_t clipped = 0;
  grid.codes.resize(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    double scale = grid.channel_scales[i % outs];
    if (!grid.block_scales.empty())
      scale *= grid.block_scales[i / outs / static_cast<size_t>(grid.block_size) * outs + i % outs];
    const double code = std::nearbyint(static_cast<double>(weights[i]) / scale);
    if (code < -last - 1 || code > last) ++clipped;
    grid.codes[i] = static_cast<int8_t>(std::clamp<double>(code, -last - 1, last));
  }
  return clipped;
}

Result<QuantizedWeight> RoundLinear(const Checkpoint& checkpoint,
                                    const decoder::LinearWeight& linear,
                                    const TensorEncoding& encoding) {
  HEXPORT_ASSIGN_OR_RETURN(QuantizedWeight weight, GridOf(encoding, linear));
  std::vector<float> values(static_cast<size_t>(linear.in_features * linear.out_features));
  HEXPORT_RETURN_IF_ERROR(decoder::ReadLinear(checkpoint, linear, values));
  const double clipped = static_cast<double>(RoundOnGrid(values, weight));
  if (clipped <= kMostClipped * static_cast<double>(values.size())) return weight;
  return InvalidArgument(
      linear.name + ": expected an encoding that holds this weight, got one with " +
      std::to_string(std::lround(100.0 * clipped / static_cast<double>(values.size()))) +
      " % of the weights beyond its ends; encodings belong to one model's weights, rotated "
      "(hexport's default) or not (--no-rotation)");
}

}  // namespace

Result<ImportedEncodings> ImportEncodings(const EncodingsFile& file,
                                          const decoder::DecoderGraph& graph,
                                          const QuantConfig& config) {
  HEXPORT_RETURN_IF_ERROR(FindingsStatus(CheckEncodings(file, graph)));
  return Import(file, graph, config).Run();
}

Status WriteOnGrids(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
                    const EncodingsFile& file, const std::filesystem::path& path,
                    Progress& progress) {
  const ByName params = NamesOf(file.params);
  std::map<std::string, WeightOptions> formats;
  for (const decoder::LinearWeight& linear : graph.linears) {
    HEXPORT_ASSIGN_OR_RETURN(const QuantizedWeight grid, GridOf(*params.at(linear.name), linear));
    formats[linear.name] = {grid.format, grid.block_size > 0 ? grid.block_size : 32};
  }
  HEXPORT_ASSIGN_OR_RETURN(const Encoding embedding, WideEncoding(*params.at(graph.embedding)));
  HEXPORT_ASSIGN_OR_RETURN(
      const std::unique_ptr<WeightStoreWriter> writer,
      WeightStoreWriter::Create(
          checkpoint, graph,
          [&formats](const decoder::LinearWeight& linear) { return formats.at(linear.name); }, path,
          progress, embedding));
  int64_t done = 0;
  for (const decoder::LinearWeight& linear : graph.linears) {
    progress.Update("weights", done++, static_cast<int64_t>(graph.linears.size()));
    HEXPORT_ASSIGN_OR_RETURN(const QuantizedWeight weight,
                             RoundLinear(checkpoint, linear, *params.at(linear.name)));
    HEXPORT_RETURN_IF_ERROR(writer->Append(weight));
  }
  return writer->Commit();
}

}  // namespace hexport::quant
