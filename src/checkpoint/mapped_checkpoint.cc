#include "checkpoint/mapped_checkpoint.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "checkpoint/tensor_layout.h"

namespace hexport::checkpoint {
namespace {

// Mapped bytes that are widened before their pages are given back.
constexpr int64_t kChunkBytes = 4 << 20;

int64_t RowElements(const Shape& shape) { return shape.empty() ? 1 : shape.back(); }

// The stored row that holds Hugging Face's row `row`.
int64_t StoredRow(const StoredTensor& tensor, int64_t row) {
  if (tensor.interleaved_heads == 0) return row;
  const int64_t head_dim = tensor.info.shape[0] / tensor.interleaved_heads;
  const int64_t head = row / head_dim;
  const int64_t in_head = row % head_dim;
  const int64_t half = in_head / (head_dim / 2);
  return head * head_dim + 2 * (in_head % (head_dim / 2)) + half;
}

class MappedCheckpoint final : public Checkpoint {
 public:
  explicit MappedCheckpoint(CheckpointParts parts) : parts_(std::move(parts)) {
    for (const StoredTensor& tensor : parts_.tensors) {
      index_.emplace(tensor.info.name, infos_.size());
      infos_.push_back(tensor.info);
      infos_.back().stored_bytes =
          tensor.packed.has_value() ? tensor.packed->stored_bytes() : tensor.bytes;
    }
  }

  const ModelConfig& config() const override { return parts_.config; }
  const std::vector<TensorInfo>& tensors() const override { return infos_; }
  const TensorInfo* Find(const std::string& name) const override {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &infos_[found->second];
  }
  Status Read(const std::string& name, std::span<float> out) const override;
  Status ReadRows(const std::string& name, int64_t first_row, std::span<float> out) const override;
  Result<std::optional<PackedWeight>> ReadPacked(const std::string& name) const override;
  Result<TextAssets> Text() const override { return parts_.text(); }
  std::vector<std::filesystem::path> Files() const override { return parts_.files; }

 private:
  Result<const StoredTensor*> Lookup(const std::string& name) const;
  // `row_elements` divides out.size(); rows are in range. A vector is one row, unless it is
  // interleaved.
  Status WidenRows(const StoredTensor& tensor, int64_t row_elements, int64_t first_row,
                   std::span<float> out) const;

  CheckpointParts parts_;
  std::vector<TensorInfo> infos_;
  std::map<std::string, size_t> index_;
};

Result<const StoredTensor*> MappedCheckpoint::Lookup(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) return NotFound("tensor " + name + ": not in " + parts_.config.name);
  return &parts_.tensors[found->second];
}

Status MappedCheckpoint::WidenRows(const StoredTensor& tensor, int64_t row_elements,
                                   int64_t first_row, std::span<float> out) const {
  if (tensor.packed.has_value()) {
    tensor.packed->ReadRows(first_row, out);
    return OkStatus();
  }
  const BlockFormat& format = *tensor.format;
  const int64_t row_bytes = row_elements / format.elements * format.bytes;
  const int64_t rows = static_cast<int64_t>(out.size()) / row_elements;
  const int64_t chunk = std::max<int64_t>(1, kChunkBytes / std::max<int64_t>(row_bytes, 1));
  for (int64_t done = 0; done < rows; done += chunk) {
    const int64_t count = std::min(chunk, rows - done);
    for (int64_t row = done; row < done + count; ++row) {
      const int64_t stored = StoredRow(tensor, first_row + row);
      HEXPORT_RETURN_IF_ERROR(Widen(format,
                                    tensor.file->bytes().subspan(
                                        tensor.offset + static_cast<uint64_t>(stored * row_bytes),
                                        static_cast<size_t>(row_bytes)),
                                    out.subspan(static_cast<size_t>(row * row_elements),
                                                static_cast<size_t>(row_elements)))
                                  .WithContext(tensor.info.name));
    }
    // Interleaved rows stay within their head, so neighbours of the chunk may be read again; no
    // matter.
    tensor.file->Release(tensor.offset + static_cast<uint64_t>((first_row + done) * row_bytes),
                         static_cast<size_t>(count * row_bytes));
  }
  return OkStatus();
}

Status MappedCheckpoint::Read(const std::string& name, std::span<float> out) const {
  HEXPORT_ASSIGN_OR_RETURN(const StoredTensor* tensor, Lookup(name));
  if (static_cast<int64_t>(out.size()) != NumElements(tensor->info.shape)) {
    return InvalidArgument("tensor " + name + ": expected room for " +
                           ShapeString(tensor->info.shape) + " values, got " +
                           std::to_string(out.size()));
  }
  const bool one_column = tensor->info.shape.size() == 1 && tensor->interleaved_heads != 0;
  return WidenRows(*tensor, one_column ? 1 : RowElements(tensor->info.shape), 0, out);
}

Status MappedCheckpoint::ReadRows(const std::string& name, int64_t first_row,
                                  std::span<float> out) const {
  HEXPORT_ASSIGN_OR_RETURN(const StoredTensor* tensor, Lookup(name));
  const Shape& shape = tensor->info.shape;
  if (shape.size() != 2) {
    return InvalidArgument("tensor " + name + ": expected two dimensions, got " +
                           ShapeString(shape));
  }
  const auto size = static_cast<int64_t>(out.size());
  if (size % shape[1] != 0 || first_row < 0 || first_row > shape[0] ||
      size / shape[1] > shape[0] - first_row) {
    return InvalidArgument("tensor " + name + ": expected whole rows within " + ShapeString(shape) +
                           ", got " + std::to_string(size) + " values from row " +
                           std::to_string(first_row));
  }
  return WidenRows(*tensor, shape[1], first_row, out);
}

// Blocks of GGUF as packed weights, a row (an output feature) after the other.
PackedWeight UnpackRows(const StoredTensor& tensor) {
  const BlockFormat& format = *tensor.format;
  PackedWeight out;
  out.bits = format.code_bits;
  out.out_features = tensor.info.shape[0];
  out.in_features = tensor.info.shape[1];
  const auto columns = static_cast<size_t>(out.out_features);
  const auto features = static_cast<size_t>(out.in_features);
  const auto size = static_cast<size_t>(format.elements);
  const size_t groups = features / size;
  out.codes.resize(features * columns);
  out.scales.resize(groups * columns);
  out.offsets.resize(groups * columns);
  out.zero_points.assign(groups * columns, format.zero_point);
  for (size_t k = 0; k < features; ++k) out.group_of.push_back(static_cast<int32_t>(k / size));
  std::vector<uint8_t> codes(size);
  for (size_t n = 0; n < columns; ++n) {
    const auto row = static_cast<size_t>(StoredRow(tensor, static_cast<int64_t>(n)));
    for (size_t group = 0; group < groups; ++group) {
      const std::byte* block = tensor.file->bytes().data() + tensor.offset +
                               (row * groups + group) * static_cast<size_t>(format.bytes);
      const size_t at = group * columns + n;
      format.unpack(block, codes.data(), out.scales[at], out.offsets[at]);
      for (size_t k = 0; k < size; ++k) out.codes[(group * size + k) * columns + n] = codes[k];
    }
  }
  tensor.file->Release(tensor.offset, tensor.bytes);
  return out;
}

Result<std::optional<PackedWeight>> MappedCheckpoint::ReadPacked(const std::string& name) const {
  HEXPORT_ASSIGN_OR_RETURN(const StoredTensor* tensor, Lookup(name));
  if (tensor->packed.has_value()) return std::optional(tensor->packed->Unpack());
  if (tensor->format->unpack == nullptr || tensor->info.shape.size() != 2)
    return std::optional<PackedWeight>();
  return std::optional(UnpackRows(*tensor));
}

// The tensor `name` as a part of a packed linear; nullopt when it is not among `tensors`.
std::optional<PackedPart> PartOf(const std::map<std::string, const StoredTensor*>& tensors,
                                 const std::string& name) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) return std::nullopt;
  const StoredTensor& tensor = *found->second;
  return PackedPart{tensor.info.stored_dtype, tensor.info.shape,
                    tensor.file->bytes().subspan(tensor.offset, tensor.bytes), tensor.file};
}

}  // namespace

Status CombinePackedLinears(const PackedConfig& packed, CheckpointParts& parts,
                            const std::string& where) {
  std::map<std::string, const StoredTensor*> by_name;
  for (const StoredTensor& tensor : parts.tensors) by_name.emplace(tensor.info.name, &tensor);
  std::vector<StoredTensor> combined;
  for (const ExpectedTensor& expected : ExpectedTensors(parts.config)) {
    constexpr std::string_view kEnd = ".weight";
    if (expected.shape.size() != 2 || !expected.name.ends_with(kEnd)) continue;
    const std::string linear = expected.name.substr(0, expected.name.size() - kEnd.size());
    const PackedParts of_linear = {
        PartOf(by_name, linear + ".qweight"), PartOf(by_name, linear + ".qzeros"),
        PartOf(by_name, linear + ".scales"), PartOf(by_name, linear + ".g_idx")};
    if (!of_linear.qweight.has_value()) continue;  // a float tensor, or missing
    if (by_name.contains(expected.name)) {
      return DataLoss(where + ": tensor " + expected.name + ": expected this or " + linear +
                      ".qweight, got both");
    }
    Result<PackedLinear> made = PackedLinear::Create(packed, linear, expected.shape, of_linear);
    if (!made.ok()) return made.status().WithContext(where);
    StoredTensor tensor;
    tensor.info = {expected.name, expected.shape, std::string(made->stored_dtype())};
    tensor.packed = *std::move(made);
    combined.push_back(std::move(tensor));
  }
  std::move(combined.begin(), combined.end(), std::back_inserter(parts.tensors));
  return OkStatus();
}

Status KeepExpectedTensors(CheckpointParts& parts, const std::string& where) {
  std::map<std::string, size_t> by_name;
  for (size_t i = 0; i < parts.tensors.size(); ++i) {
    by_name.emplace(parts.tensors[i].info.name, i);
  }
  std::vector<StoredTensor> kept;
  for (const ExpectedTensor& expected : ExpectedTensors(parts.config)) {
    const auto found = by_name.find(expected.name);
    if (found == by_name.end()) {
      return NotFound(where + ": tensor " + expected.name + ": expected " +
                      ShapeString(expected.shape) + " (" + parts.config.architecture +
                      " needs it), got nothing");
    }
    StoredTensor& tensor = parts.tensors[found->second];
    if (tensor.info.shape != expected.shape) {
      return DataLoss(where + ": tensor " + expected.name + ": expected " +
                      ShapeString(expected.shape) + " by the config, got " +
                      ShapeString(tensor.info.shape));
    }
    if (tensor.packed.has_value()) {
      kept.push_back(std::move(tensor));
      continue;
    }
    if (tensor.format == nullptr || tensor.format->widen == nullptr) {
      return Unimplemented(where + ": tensor " + expected.name +
                           ": expected F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or "
                           "Q6_K, got " +
                           tensor.info.stored_dtype);
    }
    kept.push_back(std::move(tensor));
  }
  parts.tensors = std::move(kept);
  return OkStatus();
}

std::unique_ptr<Checkpoint> MakeCheckpoint(CheckpointParts parts) {
  // The name ends up in file names.
  for (char& c : parts.config.name) {
    const bool safe = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '.' || c == '_' || c == '-';
    if (!safe) c = '-';
  }
  if (parts.config.name.find_first_not_of('.') == std::string::npos) parts.config.name = "model";
  return std::make_unique<MappedCheckpoint>(std::move(parts));
}

}  // namespace hexport::checkpoint
