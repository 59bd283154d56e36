// The file of quantized weights: writing it tensor by tensor, and reading it back.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "quant/weight_store_writer.h"
#include "quant/weights.h"

namespace hexport::quant {
namespace {

// Rows of a vocabulary-sized table held as float at a time.
constexpr int64_t kRowsAtOnce = 4096;
constexpr const char* kEmbeddingTensor = "model.embed_tokens.weight";

std::string CodesName(const std::string& name, WeightFormat format) {
  return name + (format == WeightFormat::kInt8 ? ".int8" : ".int4");
}

std::vector<SafetensorsEntry> DeclareEntries(const decoder::DecoderGraph& graph,
                                             const ModelConfig& config,
                                             const LinearOptions& options_of) {
  std::vector<SafetensorsEntry> entries;
  const auto declare = [&entries](std::string name, std::string dtype, Shape shape) {
    entries.push_back({std::move(name), std::move(dtype), std::move(shape)});
  };
  if (!graph.embedding.empty()) {
    declare(graph.embedding + ".uint16", "U16", {config.vocab_size, config.hidden_size});
    declare(graph.embedding + ".scale", "F32", {1});
    declare(graph.embedding + ".zero_point", "I32", {1});
  }
  for (const decoder::LinearWeight& linear : graph.linears) {
    const WeightOptions options = options_of(linear);
    const WeightFormat format = options.format;
    declare(CodesName(linear.name, format), "I8", {linear.in_features, linear.out_features});
    declare(linear.name + ".scales", "F32", {linear.out_features});
    if (format == WeightFormat::kLpbq) {
      declare(linear.name + ".block_scales", "U8",
              {linear.in_features / options.block_size, linear.out_features});
    }
  }
  return entries;
}

template <typename T>
Status AppendVector(SafetensorsWriter& writer, const std::vector<T>& values) {
  return writer.Append(std::as_bytes(std::span<const T>(values)));
}

// Calls `visit(first_row, rows)` for pieces of a 2-D tensor.
template <typename Visit>
Status VisitRows(const Checkpoint& checkpoint, const std::string& tensor, int64_t rows,
                 int64_t columns, const Visit& visit, int64_t first_row = 0) {
  std::vector<float> piece;
  for (int64_t first = 0; first < rows; first += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, rows - first);
    piece.resize(static_cast<size_t>(count * columns));
    HEXPORT_RETURN_IF_ERROR(checkpoint.ReadRows(tensor, first_row + first, piece));
    HEXPORT_RETURN_IF_ERROR(visit(first, std::span<float>(piece)));
  }
  return OkStatus();
}

// `given`: of the table times embedding_scale, as it is stored; else over the table's range.
Status WriteEmbedding(const Checkpoint& checkpoint, std::optional<Encoding> given,
                      SafetensorsWriter& writer) {
  const ModelConfig& config = checkpoint.config();
  Range range;
  HEXPORT_RETURN_IF_ERROR(
      VisitRows(checkpoint, kEmbeddingTensor, config.vocab_size, config.hidden_size,
                [&](int64_t first, std::span<const float> piece) -> Status {
                  for (const float value : piece) {
                    if (!std::isfinite(value)) {
                      return DataLoss(std::string(kEmbeddingTensor) +
                                      ": expected finite numbers in rows from " +
                                      std::to_string(first) + ", got " + std::to_string(value));
                    }
                    range.min = std::min(range.min, value);
                    range.max = std::max(range.max, value);
                  }
                  return OkStatus();
                }));
  Encoding encoding = MakeEncoding(range, 16, /*symmetric=*/false);
  if (given.has_value()) {
    encoding = *given;
    encoding.scale = static_cast<float>(static_cast<double>(given->scale) / config.embedding_scale);
  }
  std::vector<uint16_t> codes(static_cast<size_t>(config.vocab_size * config.hidden_size));
  HEXPORT_RETURN_IF_ERROR(VisitRows(
      checkpoint, kEmbeddingTensor, config.vocab_size, config.hidden_size,
      [&](int64_t first, std::span<const float> piece) {
        const std::span<uint16_t> all(codes);
        QuantizeValues(piece, encoding,
                       all.subspan(static_cast<size_t>(first * config.hidden_size), piece.size()));
        return OkStatus();
      }));
  HEXPORT_RETURN_IF_ERROR(AppendVector(writer, codes));
  // The table is stored as it is; what rows are multiplied by goes into their scale.
  const float scale =
      given.has_value()
          ? given->scale
          : static_cast<float>(static_cast<double>(encoding.scale) * config.embedding_scale);
  HEXPORT_RETURN_IF_ERROR(AppendVector(writer, std::vector<float>{scale}));
  return AppendVector(writer, std::vector<int32_t>{encoding.zero_point});
}

// The output projection is as large as the vocabulary: its rows are output channels, quantized
// piece by piece.
Result<QuantizedWeight> QuantizeHead(const Checkpoint& checkpoint,
                                     const decoder::LinearWeight& linear,
                                     const WeightOptions& options,
                                     const QuantizeColumns& quantize) {
  QuantizedWeight out;
  out.format = options.format;
  out.block_size = options.format == WeightFormat::kLpbq ? options.block_size : 0;
  out.in_features = linear.in_features;
  out.out_features = linear.out_features;
  out.codes.resize(static_cast<size_t>(linear.in_features * linear.out_features));
  const size_t in = static_cast<size_t>(linear.in_features);
  const size_t columns = static_cast<size_t>(linear.out_features);
  const size_t blocks = out.block_size > 0 ? in / static_cast<size_t>(out.block_size) : 0;
  out.block_scales.resize(blocks * columns);
  const auto paste = [columns](const auto& rows, size_t count, size_t first_column, auto& whole) {
    for (size_t row = 0; row * count < rows.size(); ++row) {
      std::memcpy(whole.data() + row * columns + first_column, rows.data() + row * count, count);
    }
  };
  std::vector<float> transposed;
  HEXPORT_RETURN_IF_ERROR(VisitRows(
      checkpoint, linear.tensor, linear.out_features, linear.in_features,
      [&](int64_t first, std::span<const float> piece) -> Status {
        const size_t count = piece.size() / in;
        transposed.resize(piece.size());
        for (size_t n = 0; n < count; ++n) {
          for (size_t k = 0; k < in; ++k) {
            transposed[k * count + n] =
                static_cast<float>(static_cast<double>(piece[n * in + k]) * linear.scale);
          }
        }
        HEXPORT_ASSIGN_OR_RETURN(const QuantizedWeight part,
                                 quantize(transposed, static_cast<int64_t>(count)));
        paste(part.codes, count, static_cast<size_t>(first), out.codes);
        paste(part.block_scales, count, static_cast<size_t>(first), out.block_scales);
        out.channel_scales.insert(out.channel_scales.end(), part.channel_scales.begin(),
                                  part.channel_scales.end());
        return OkStatus();
      },
      linear.first_row));
  return out;
}

Status CheckBlockSize(const decoder::LinearWeight& linear, const WeightOptions& options) {
  if (options.format != WeightFormat::kLpbq || options.block_size == 16 ||
      options.block_size == 32 || options.block_size == 64) {
    return OkStatus();
  }
  return InvalidArgument(linear.name + ": LPBQ block_size: expected 16, 32 or 64, got " +
                         std::to_string(options.block_size));
}

// int8 where the LPBQ block does not divide the inputs.
WeightOptions Fitting(const decoder::LinearWeight& linear, WeightOptions options) {
  if (options.format == WeightFormat::kLpbq && linear.in_features % options.block_size != 0) {
    options.format = WeightFormat::kInt8;
  }
  return options;
}

}  // namespace

LinearOptions UniformOptions(const WeightOptions& options) {
  return [options](const decoder::LinearWeight& linear) {
    WeightOptions out = options;
    if (linear.lm_head) out.format = WeightFormat::kInt8;
    return out;
  };
}

Result<std::unique_ptr<WeightStoreWriter>> WeightStoreWriter::Create(
    const Checkpoint& checkpoint, const decoder::DecoderGraph& graph, LinearOptions options_of,
    const std::filesystem::path& path, Progress& progress, std::optional<Encoding> embedding) {
  for (const decoder::LinearWeight& linear : graph.linears) {
    const WeightOptions wanted = options_of(linear);
    HEXPORT_RETURN_IF_ERROR(CheckBlockSize(linear, wanted));
    if (Fitting(linear, wanted).format == wanted.format) continue;
    progress.Note(linear.tensor + ": int8, since blocks of " + std::to_string(wanted.block_size) +
                  " do not divide its " + std::to_string(linear.in_features) + " inputs");
  }
  std::unique_ptr<WeightStoreWriter> out(new WeightStoreWriter(checkpoint, std::move(options_of)));
  HEXPORT_ASSIGN_OR_RETURN(
      out->writer_,
      SafetensorsWriter::Create(path,
                                DeclareEntries(graph, checkpoint.config(),
                                               [&out](const decoder::LinearWeight& linear) {
                                                 return out->OptionsOf(linear);
                                               }),
                                {{"format", "hexport-weights-1"}}));
  if (!graph.embedding.empty())
    HEXPORT_RETURN_IF_ERROR(WriteEmbedding(checkpoint, embedding, *out->writer_));
  return out;
}

WeightOptions WeightStoreWriter::OptionsOf(const decoder::LinearWeight& linear) const {
  return Fitting(linear, options_of_(linear));
}

Status WeightStoreWriter::Append(const QuantizedWeight& weight) {
  HEXPORT_RETURN_IF_ERROR(AppendVector(*writer_, weight.codes));
  HEXPORT_RETURN_IF_ERROR(AppendVector(*writer_, weight.channel_scales));
  if (weight.block_scales.empty()) return OkStatus();
  return AppendVector(*writer_, weight.block_scales);
}

Status WeightStoreWriter::AppendRtn(const decoder::LinearWeight& linear) {
  const auto quantize = [&](std::span<const float> weights, int64_t columns) {
    return QuantizeRtn(weights, linear.in_features, columns, OptionsOf(linear));
  };
  if (linear.lm_head) return AppendByColumns(linear, quantize);
  std::vector<float> weights(static_cast<size_t>(linear.in_features * linear.out_features));
  HEXPORT_RETURN_IF_ERROR(decoder::ReadLinear(checkpoint_, linear, weights));
  const Result<QuantizedWeight> weight = quantize(weights, linear.out_features);
  if (!weight.ok()) return weight.status().WithContext(linear.tensor);
  return Append(*weight);
}

Status WeightStoreWriter::AppendByColumns(const decoder::LinearWeight& linear,
                                          const QuantizeColumns& quantize) {
  const Result<QuantizedWeight> weight =
      QuantizeHead(checkpoint_, linear, OptionsOf(linear), quantize);
  if (!weight.ok()) return weight.status().WithContext(linear.tensor);
  return Append(*weight);
}

Status WeightStoreWriter::Commit() { return writer_->Commit(); }

Status QuantizeWeights(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
                       const WeightOptions& options, const std::filesystem::path& path,
                       Progress& progress) {
  HEXPORT_ASSIGN_OR_RETURN(
      std::unique_ptr<WeightStoreWriter> writer,
      WeightStoreWriter::Create(checkpoint, graph, UniformOptions(options), path, progress));
  const int64_t total = static_cast<int64_t>(graph.linears.size());
  int64_t done = 0;
  for (const decoder::LinearWeight& linear : graph.linears) {
    progress.Update("quantize", done++, total);
    HEXPORT_RETURN_IF_ERROR(writer->AppendRtn(linear));
  }
  progress.Update("quantize", total, total);
  return writer->Commit();
}

Result<std::unique_ptr<WeightStore>> WeightStore::Open(const std::filesystem::path& path) {
  std::unique_ptr<WeightStore> store(new WeightStore());
  HEXPORT_ASSIGN_OR_RETURN(store->file_, SafetensorsFile::Open(path));
  return store;
}

bool WeightStore::Has(const std::string& name) const {
  return file_->Find(name + ".int8") != nullptr || file_->Find(name + ".int4") != nullptr;
}

Result<const SafetensorsEntry*> WeightStore::Entry(const std::string& tensor) const {
  const SafetensorsEntry* entry = file_->Find(tensor);
  if (entry == nullptr) {
    return NotFound(file_->file().path().string() + ": expected the tensor " + tensor +
                    "; quantize the weights of this checkpoint again");
  }
  return entry;
}

namespace {

template <typename T>
Result<std::vector<T>> Values(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  const std::span<const std::byte> bytes = file.Bytes(entry);
  if (NumElements(entry.shape) * static_cast<int64_t>(sizeof(T)) !=
      static_cast<int64_t>(bytes.size())) {
    return DataLoss(file.file().path().string() + ": " + entry.name + ": expected elements of " +
                    std::to_string(sizeof(T)) + " bytes, got dtype " + entry.dtype);
  }
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

Status BadShape(const SafetensorsFile& file, const SafetensorsEntry& entry,
                const std::string& expected) {
  return DataLoss(file.file().path().string() + ": " + entry.name + ": expected " + expected +
                  ", got " + ShapeString(entry.shape));
}

}  // namespace

Result<QuantizedWeight> WeightStore::Describe(const std::string& name) const {
  QuantizedWeight out;
  const SafetensorsEntry* codes = file_->Find(name + ".int8");
  if (codes == nullptr) {
    HEXPORT_ASSIGN_OR_RETURN(codes, Entry(name + ".int4"));
    out.format = WeightFormat::kInt4;
  }
  if (codes->shape.size() != 2) return BadShape(*file_, *codes, "[in_features, out_features]");
  out.in_features = codes->shape[0];
  out.out_features = codes->shape[1];
  HEXPORT_ASSIGN_OR_RETURN(const SafetensorsEntry* scales, Entry(name + ".scales"));
  if (scales->shape != Shape{out.out_features})
    return BadShape(*file_, *scales, ShapeString({out.out_features}));
  if (const SafetensorsEntry* blocks = file_->Find(name + ".block_scales"); blocks != nullptr) {
    if (blocks->shape.size() != 2 || blocks->shape[0] <= 0 ||
        out.in_features % blocks->shape[0] != 0 || blocks->shape[1] != out.out_features) {
      return BadShape(*file_, *blocks, "[blocks, out_features]");
    }
    out.format = WeightFormat::kLpbq;
    out.block_size = static_cast<int>(out.in_features / blocks->shape[0]);
  }
  return out;
}

Result<QuantizedWeight> WeightStore::Read(const std::string& name) const {
  HEXPORT_ASSIGN_OR_RETURN(QuantizedWeight out, ReadScales(name));
  HEXPORT_ASSIGN_OR_RETURN(const SafetensorsEntry* codes, Entry(CodesName(name, out.format)));
  HEXPORT_ASSIGN_OR_RETURN(out.codes, Values<int8_t>(*file_, *codes));
  return out;
}

Result<QuantizedWeight> WeightStore::ReadScales(const std::string& name) const {
  HEXPORT_ASSIGN_OR_RETURN(QuantizedWeight out, Describe(name));
  HEXPORT_ASSIGN_OR_RETURN(const SafetensorsEntry* scales, Entry(name + ".scales"));
  HEXPORT_ASSIGN_OR_RETURN(out.channel_scales, Values<float>(*file_, *scales));
  if (out.format == WeightFormat::kLpbq) {
    HEXPORT_ASSIGN_OR_RETURN(const SafetensorsEntry* blocks, Entry(name + ".block_scales"));
    HEXPORT_ASSIGN_OR_RETURN(out.block_scales, Values<uint8_t>(*file_, *blocks));
  }
  return out;
}

Result<Encoding> WeightStore::EmbeddingEncoding(const std::string& name) const {
  HEXPORT_ASSIGN_OR_RETURN(const SafetensorsEntry* scale_entry, Entry(name + ".scale"));
  HEXPORT_ASSIGN_OR_RETURN(const SafetensorsEntry* zero_entry, Entry(name + ".zero_point"));
  HEXPORT_ASSIGN_OR_RETURN(const std::vector<float> scale, Values<float>(*file_, *scale_entry));
  HEXPORT_ASSIGN_OR_RETURN(const std::vector<int32_t> zero_point,
                           Values<int32_t>(*file_, *zero_entry));
  if (scale.size() != 1) return BadShape(*file_, *scale_entry, "[1]");
  if (zero_point.size() != 1) return BadShape(*file_, *zero_entry, "[1]");
  return Encoding{scale[0], zero_point[0], 16};
}

}  // namespace hexport::quant
