#include "checkpoint/mapped_checkpoint.h"

#include <algorithm>
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

}  // namespace

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
