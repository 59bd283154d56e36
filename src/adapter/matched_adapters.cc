#include "adapter/matched_adapters.h"

#include <algorithm>

#include "adapter/float_values.h"

namespace hexport::adapter {
namespace {

Result<std::vector<float>> Values(const AdapterTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(NumElements(tensor.shape)));
  HEXPORT_RETURN_IF_ERROR(ReadValues(tensor, values));
  return values;
}

std::vector<float> Transposed(const std::vector<float>& values, int64_t rows, int64_t columns) {
  std::vector<float> out(values.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      out[static_cast<size_t>(column * rows + row)] =
          values[static_cast<size_t>(row * columns + column)];
    }
  }
  return out;
}

// GGUF's llama rows hold the pairs that RoPE turns side by side; Hugging Face has the first halves
// of a head's pairs before the second halves.
std::vector<float> Deinterleaved(const std::vector<float>& values, int64_t rows, int64_t columns,
                                 int64_t heads) {
  std::vector<float> out(values.size());
  const int64_t head_dim = rows / heads;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = row / head_dim, in_head = row % head_dim;
    const int64_t stored =
        head * head_dim + 2 * (in_head % (head_dim / 2)) + in_head / (head_dim / 2);
    std::copy_n(values.begin() + stored * columns, columns, out.begin() + row * columns);
  }
  return out;
}

// left [rows, rank] and right [rank, columns] of a pair.
Status ReadPair(const AdapterTensor& a, const AdapterTensor& b, int64_t interleaved_heads,
                std::vector<float>& left, std::vector<float>& right) {
  HEXPORT_ASSIGN_OR_RETURN(std::vector<float> values_a, Values(a));
  HEXPORT_ASSIGN_OR_RETURN(std::vector<float> values_b, Values(b));
  if (a.role == TensorRole::kEmbeddingA) {
    left = a.transposed ? std::move(values_a) : Transposed(values_a, a.shape[0], a.shape[1]);
    right = Transposed(values_b, b.shape[0], b.shape[1]);
    return OkStatus();
  }
  right = std::move(values_a);
  left = interleaved_heads == 0
             ? std::move(values_b)
             : Deinterleaved(values_b, b.shape[0], b.shape[1], interleaved_heads);
  return OkStatus();
}

// Rows of an adapter's tensor.
Status ReadTensorRows(const AdapterTensor& tensor, int64_t first_row, int64_t columns,
                      std::span<float> out) {
  const auto bytes_per_row = static_cast<size_t>(columns * tensor.format->bytes);
  const size_t rows = out.size() / static_cast<size_t>(columns);
  const size_t first = static_cast<size_t>(first_row) * bytes_per_row;
  const Status status =
      WidenValues(*tensor.format, tensor.bytes.subspan(first, rows * bytes_per_row), out)
          .WithContext(tensor.key);
  tensor.Release(first, rows * bytes_per_row);
  return status;
}

// base + weight * (value - base), exactly `value` for weight 1.
void Blend(std::span<const float> value, double weight, std::span<float> base) {
  if (weight == 1.0) {
    std::copy(value.begin(), value.end(), base.begin());
    return;
  }
  const auto factor = static_cast<float>(weight);
  for (size_t i = 0; i < base.size(); ++i) base[i] += factor * (value[i] - base[i]);
}

}  // namespace

Result<const Target*> Matched::Find(const std::string& tensor) const {
  const auto found = index_.find(tensor);
  if (found == index_.end()) return NotFound("merged model: tensor " + tensor + ": not there");
  return &targets_[found->second];
}

Result<std::vector<LowRankUpdate>> Matched::LowRank(const std::string& tensor) const {
  HEXPORT_ASSIGN_OR_RETURN(const Target* target, Find(tensor));
  std::vector<LowRankUpdate> updates;
  for (const Change::LowRankPart& part : target->change.low_rank) {
    HEXPORT_ASSIGN_OR_RETURN(LowRankUpdate update, MakeUpdate(*target, part));
    updates.push_back(std::move(update));
  }
  return updates;
}

Result<LowRankUpdate> Matched::MakeUpdate(const Target& target,
                                          const Change::LowRankPart& part) const {
  LowRankUpdate update;
  update.rows = target.shape[0];
  update.columns = target.shape.size() < 2 ? 1 : target.shape[1];
  update.rank = part.rank;
  update.scale = part.scale * (part.magnitude == nullptr ? part.weight : 1.0);
  if (part.bias != nullptr) {
    HEXPORT_ASSIGN_OR_RETURN(update.left, Values(*part.bias));
    update.right = {1.0f};
    return update;
  }
  HEXPORT_RETURN_IF_ERROR(
      ReadPair(*part.a, *part.b, part.interleaved_heads, update.left, update.right));
  if (part.magnitude != nullptr) {
    HEXPORT_ASSIGN_OR_RETURN(update.magnitude, Values(*part.magnitude));
    update.magnitude_per_column = part.a->role == TensorRole::kEmbeddingA;
    update.dora_weight = part.weight;
  }
  if (part.init != InitKind::kBaseUntouched) {
    HEXPORT_RETURN_IF_ERROR(AddInitial(target, part, update));
  }
  return update;
}

Status Matched::AddInitial(const Target& target, const Change::LowRankPart& part,
                           LowRankUpdate& update) const {
  if (part.initial_a != nullptr) {
    HEXPORT_RETURN_IF_ERROR(
        ReadPair(*part.initial_a, *part.initial_b, 0, update.initial_left, update.initial_right));
    update.initial_rank = part.initial_a->shape[0];
    const auto ratio = static_cast<float>(part.initial_scale / part.scale);
    if (ratio != 1.0f) {
      for (float& value : update.initial_left) value *= ratio;
    }
    return OkStatus();
  }
  const std::lock_guard lock(rebuilt_mutex_);
  Initial& initial = rebuilt_[target.name];
  if (initial.rank == 0) {
    std::vector<float> weight(static_cast<size_t>(update.rows * update.columns));
    HEXPORT_RETURN_IF_ERROR(base_->ReadRows(target.values_of, 0, weight));
    HEXPORT_RETURN_IF_ERROR((part.init == InitKind::kPissa
                                 ? RebuildPissa(weight, update.rows, update.columns, part.rank,
                                                part.scale, initial.left, initial.right)
                                 : RebuildOlora(weight, update.rows, update.columns, part.rank,
                                                initial.left, initial.right))
                                .WithContext(target.name));
    initial.rank = part.rank;
  }
  update.initial_left = initial.left;
  update.initial_right = initial.right;
  update.initial_rank = initial.rank;
  return OkStatus();
}

Status Matched::ReadRows(const std::string& tensor, int64_t first_row, std::span<float> out) const {
  HEXPORT_ASSIGN_OR_RETURN(const Target* target, Find(tensor));
  const Change& change = target->change;
  const int64_t total = NumElements(target->shape);
  const int64_t rows = target->shape.empty() ? 1 : target->shape[0];
  const int64_t columns = rows == 0 ? 0 : total / rows;
  const auto size = static_cast<int64_t>(out.size());
  if (columns == 0 || size % columns != 0 || first_row < 0 || first_row > rows ||
      size / columns > rows - first_row) {
    return InvalidArgument("merged model: tensor " + tensor + ": expected whole rows within " +
                           ShapeString(target->shape) + ", got " + std::to_string(size) +
                           " values from row " + std::to_string(first_row));
  }
  if (change.whole == nullptr || change.whole_weight != 1.0) {
    if (target->values_of.empty()) {
      std::fill(out.begin(), out.end(), 0.0f);
    } else {
      HEXPORT_RETURN_IF_ERROR(base_->ReadRows(target->values_of, first_row, out));
    }
  }
  if (change.whole != nullptr && change.whole_weight == 1.0) {
    HEXPORT_RETURN_IF_ERROR(ReadTensorRows(*change.whole, first_row, columns, out));
  } else if (change.whole != nullptr) {
    std::vector<float> values(out.size());
    HEXPORT_RETURN_IF_ERROR(ReadTensorRows(*change.whole, first_row, columns, values));
    Blend(values, change.whole_weight, out);
  }
  std::vector<float> row(static_cast<size_t>(columns));
  for (const Change::Rows& trained : change.rows) {
    for (size_t i = 0; i < trained.rows.size(); ++i) {
      const int64_t at = trained.rows[i] - first_row;
      if (at < 0 || at >= size / columns) continue;
      HEXPORT_RETURN_IF_ERROR(
          ReadTensorRows(*trained.values, static_cast<int64_t>(i), columns, row));
      Blend(row, trained.weight, out.subspan(static_cast<size_t>(at * columns), row.size()));
    }
  }
  return OkStatus();
}

}  // namespace hexport::adapter
