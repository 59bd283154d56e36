#include "quant/weight_initializers.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace hexport::quant {
namespace {

using graph::DataSource;
using graph::Graph;
using graph::Initializer;
using graph::Node;

Status WrongSize(const std::string& name, size_t expected, size_t got) {
  return Internal(name + ": expected a buffer of " + std::to_string(expected) + " bytes, got " +
                  std::to_string(got));
}

// The bytes of a stored tensor as they are.
Result<DataSource> StoredBytes(const WeightStore& store, const std::string& tensor) {
  HEXPORT_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, store.Entry(tensor));
  return DataSource([&store, entry](std::span<std::byte> out) -> Status {
    const std::span<const std::byte> bytes = store.file().Bytes(*entry);
    if (bytes.size() != out.size()) return WrongSize(entry->name, bytes.size(), out.size());
    std::memcpy(out.data(), bytes.data(), bytes.size());
    store.file().file().Release(entry->begin, entry->end - entry->begin);
    return OkStatus();
  });
}

// Codes stored one a byte, packed two a byte, low nibble first.
Result<DataSource> PackedInt4(const WeightStore& store, const std::string& tensor) {
  HEXPORT_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, store.Entry(tensor));
  return DataSource([&store, entry](std::span<std::byte> out) -> Status {
    const std::span<const std::byte> codes = store.file().Bytes(*entry);
    if ((codes.size() + 1) / 2 != out.size())
      return WrongSize(entry->name, (codes.size() + 1) / 2, out.size());
    for (size_t i = 0; i < out.size(); ++i) {
      const std::byte low = codes[2 * i] & std::byte{15};
      const std::byte high =
          2 * i + 1 < codes.size() ? codes[2 * i + 1] & std::byte{15} : std::byte{0};
      out[i] = low | (high << 4);
    }
    store.file().file().Release(entry->begin, entry->end - entry->begin);
    return OkStatus();
  });
}

DataSource Zeros() {
  return [](std::span<std::byte> out) {
    std::fill(out.begin(), out.end(), std::byte{0});
    return OkStatus();
  };
}

Node Dequantize(std::vector<std::string> inputs, const std::string& output, int64_t axis,
                int64_t block_size) {
  Node node;
  node.op_type = "DequantizeLinear";
  node.name = output;
  node.inputs = std::move(inputs);
  node.outputs = {output};
  node.attributes["axis"] = axis;
  if (block_size > 0) node.attributes["block_size"] = block_size;
  return node;
}

// How a stored weight is laid out for MatMulNBits.
struct NBitsLayout {
  size_t k = 0, n = 0;
  size_t bits = 8, block = 32, blocks = 0;
  size_t blob_bytes() const { return block * bits / 8; }
};

NBitsLayout LayoutFor(const QuantizedWeight& weight) {
  NBitsLayout layout;
  layout.k = static_cast<size_t>(weight.in_features);
  layout.n = static_cast<size_t>(weight.out_features);
  layout.bits = weight.format == WeightFormat::kInt8 ? 8 : 4;
  if (weight.format == WeightFormat::kLpbq) {
    layout.block = static_cast<size_t>(weight.block_size);
  } else {
    // The largest block that needs no padding holds the fewest repeated scales.
    for (const size_t block : {size_t{128}, size_t{64}, size_t{32}, size_t{16}}) {
      layout.block = block;
      if (layout.k % block == 0) break;
    }
    if (layout.k % layout.block != 0) layout.block = 32;
  }
  layout.blocks = (layout.k + layout.block - 1) / layout.block;
  return layout;
}

// [n, blocks, blob]: codes made unsigned around 2^(bits-1), the operator's default zero point.
void PackNBits(const QuantizedWeight& weight, const NBitsLayout& layout, std::span<std::byte> out) {
  const int zero_point = 1 << (layout.bits - 1);
  const unsigned padding = layout.bits == 8 ? 128u : 0x88u;
  std::fill(out.begin(), out.end(), static_cast<std::byte>(padding));
  const size_t row_bytes = layout.blocks * layout.blob_bytes();
  for (size_t k = 0; k < layout.k; ++k) {
    const int8_t* codes = weight.codes.data() + k * layout.n;
    for (size_t n = 0; n < layout.n; ++n) {
      const auto code = static_cast<std::byte>(codes[n] + zero_point);
      if (layout.bits == 8) {
        out[n * row_bytes + k] = code;
        continue;
      }
      std::byte& pair = out[n * row_bytes + k / 2];
      pair = k % 2 == 0 ? (pair & std::byte{0xf0}) | code : (pair & std::byte{0x0f}) | (code << 4);
    }
  }
}

void PackNBitsScales(const QuantizedWeight& weight, const NBitsLayout& layout,
                     std::span<std::byte> out) {
  for (size_t n = 0; n < layout.n; ++n) {
    for (size_t b = 0; b < layout.blocks; ++b) {
      float scale = weight.channel_scales[n];
      if (!weight.block_scales.empty())
        scale *= static_cast<float>(weight.block_scales[b * layout.n + n]);
      std::memcpy(out.data() + (n * layout.blocks + b) * sizeof(float), &scale, sizeof(float));
    }
  }
}

DataSource FromStored(const WeightStore& store, const std::string& name, const NBitsLayout& layout,
                      void (*pack)(const QuantizedWeight&, const NBitsLayout&,
                                   std::span<std::byte>)) {
  return [&store, name, layout, pack](std::span<std::byte> out) -> Status {
    HEXPORT_ASSIGN_OR_RETURN(const QuantizedWeight weight, store.Read(name));
    pack(weight, layout, out);
    return OkStatus();
  };
}

}  // namespace

Status AddNpuWeight(const WeightStore& store, const std::string& name, Graph& graph) {
  HEXPORT_ASSIGN_OR_RETURN(const QuantizedWeight weight, store.Describe(name));
  const Shape shape = {weight.in_features, weight.out_features};
  const Shape channels = {weight.out_features};
  const auto add = [&graph](std::string tensor, DType dtype, Shape tensor_shape,
                            DataSource source) {
    graph.initializers.push_back(
        {std::move(tensor), dtype, std::move(tensor_shape), std::move(source)});
  };
  HEXPORT_ASSIGN_OR_RETURN(DataSource scales, StoredBytes(store, name + ".scales"));
  add(name + ".scales", DType::kFloat32, channels, std::move(scales));
  if (weight.format == WeightFormat::kInt8) {
    HEXPORT_ASSIGN_OR_RETURN(DataSource codes, StoredBytes(store, name + ".int8"));
    add(name + ".int8", DType::kInt8, shape, std::move(codes));
    add(name + ".zero_points", DType::kInt8, channels, Zeros());
    graph.nodes.push_back(
        Dequantize({name + ".int8", name + ".scales", name + ".zero_points"}, name + ".dq", 1, 0));
    return OkStatus();
  }
  HEXPORT_ASSIGN_OR_RETURN(DataSource codes, PackedInt4(store, name + ".int4"));
  add(name + ".int4", DType::kInt4, shape, std::move(codes));
  if (weight.format == WeightFormat::kInt4) {
    add(name + ".zero_points", DType::kInt4, channels, Zeros());
    graph.nodes.push_back(
        Dequantize({name + ".int4", name + ".scales", name + ".zero_points"}, name + ".dq", 1, 0));
    return OkStatus();
  }
  const Shape blocks = {weight.in_features / weight.block_size, weight.out_features};
  HEXPORT_ASSIGN_OR_RETURN(DataSource block_scales, StoredBytes(store, name + ".block_scales"));
  add(name + ".block_scales", DType::kUInt8, blocks, std::move(block_scales));
  add(name + ".block_scales.zero_points", DType::kUInt8, channels, Zeros());
  add(name + ".zero_points", DType::kInt4, blocks, Zeros());
  graph.nodes.push_back(
      Dequantize({name + ".block_scales", name + ".scales", name + ".block_scales.zero_points"},
                 name + ".block_scales.dq", 1, 0));
  graph.nodes.push_back(
      Dequantize({name + ".int4", name + ".block_scales.dq", name + ".zero_points"}, name + ".dq",
                 0, weight.block_size));
  return OkStatus();
}

Status AddCpuLinear(const WeightStore& store, const std::string& name, const Node& matmul,
                    const CpuOptions& options, Graph& graph) {
  HEXPORT_ASSIGN_OR_RETURN(const QuantizedWeight weight, store.Describe(name));
  const NBitsLayout layout = LayoutFor(weight);
  const auto blocks = static_cast<int64_t>(layout.blocks);
  graph.initializers.push_back(
      {name + ".nbits",
       DType::kUInt8,
       {weight.out_features, blocks, static_cast<int64_t>(layout.blob_bytes())},
       FromStored(store, name, layout, PackNBits)});
  graph.initializers.push_back({name + ".nbits_scales",
                                DType::kFloat32,
                                {weight.out_features, blocks},
                                FromStored(store, name, layout, PackNBitsScales)});
  Node node = matmul;
  node.op_type = "MatMulNBits";
  node.domain = "com.microsoft";
  node.inputs = {matmul.inputs[0], name + ".nbits", name + ".nbits_scales"};
  node.attributes["K"] = weight.in_features;
  node.attributes["N"] = weight.out_features;
  node.attributes["bits"] = static_cast<int64_t>(layout.bits);
  node.attributes["block_size"] = static_cast<int64_t>(layout.block);
  // 1: float32 sums, so that the quality measured is that of the codes alone; 4: int8 products.
  node.attributes["accuracy_level"] = options.int8_activations ? int64_t{4} : int64_t{1};
  graph.nodes.push_back(std::move(node));
  return OkStatus();
}

Status AddEmbedding(const WeightStore& store, const std::string& name, Graph& graph) {
  HEXPORT_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, store.Entry(name + ".uint16"));
  HEXPORT_ASSIGN_OR_RETURN(DataSource codes, StoredBytes(store, name + ".uint16"));
  HEXPORT_ASSIGN_OR_RETURN(const Encoding encoding, store.EmbeddingEncoding(name));
  graph.initializers.push_back({name + ".uint16", DType::kUInt16, entry->shape, std::move(codes)});
  AddEncoding(name, encoding, graph);
  return OkStatus();
}

void AddEncoding(const std::string& name, const Encoding& encoding, Graph& graph) {
  graph.initializers.push_back(
      graph::MakeConstant<float>(name + ".scale", DType::kFloat32, {}, {encoding.scale}));
  graph.initializers.push_back(
      encoding.bits == 8
          ? graph::MakeConstant<uint8_t>(name + ".zero_point", DType::kUInt8, {},
                                         {static_cast<uint8_t>(encoding.zero_point)})
          : graph::MakeConstant<uint16_t>(name + ".zero_point", DType::kUInt16, {},
                                          {static_cast<uint16_t>(encoding.zero_point)}));
}

Node DequantizeNode(const std::string& codes, const std::string& encoding,
                    const std::string& output) {
  Node node;
  node.op_type = "DequantizeLinear";
  node.name = output;
  node.inputs = {codes, encoding + ".scale", encoding + ".zero_point"};
  node.outputs = {output};
  return node;
}

}  // namespace hexport::quant
