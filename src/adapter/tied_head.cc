// What becomes of a head that shares its weights with the embedding.
#include <algorithm>
#include <cstring>
#include <utility>

#include "adapter/matcher.h"

namespace hexport::adapter {
namespace {

bool SameRows(const std::vector<Change::Rows>& a, const std::vector<Change::Rows>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.rows == y.rows && x.weight == y.weight &&
           (x.values == y.values || SameBytes(*x.values, *y.values));
  });
}

Result<std::vector<float>> Values(const AdapterTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(NumElements(tensor.shape)));
  HEXPORT_RETURN_IF_ERROR(ReadValues(tensor, values));
  return values;
}

// PEFT ties adapters as lora_A = embedding_B^T and lora_B = embedding_A^T.
Result<bool> IsTransposed(const AdapterTensor& a, const AdapterTensor& b) {
  if (a.shape.size() != 2 || a.shape[0] != b.shape[1] || a.shape[1] != b.shape[0]) return false;
  HEXPORT_ASSIGN_OR_RETURN(const std::vector<float> left, Values(a));
  HEXPORT_ASSIGN_OR_RETURN(const std::vector<float> right, Values(b));
  const auto rows = static_cast<size_t>(a.shape[0]), columns = static_cast<size_t>(a.shape[1]);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      if (left[row * columns + column] != right[column * rows + row]) return false;
    }
  }
  return true;
}

// The embedding's part and the head's part change the shared matrix alike.
Result<bool> SamePart(const Change::LowRankPart& embed, const Change::LowRankPart& head) {
  if (embed.scale != head.scale || embed.weight != head.weight || embed.magnitude != nullptr ||
      head.magnitude != nullptr || embed.init != InitKind::kBaseUntouched ||
      head.init != InitKind::kBaseUntouched || embed.a->role != TensorRole::kEmbeddingA ||
      head.a->role != TensorRole::kLoraA || embed.a->transposed) {
    return false;
  }
  HEXPORT_ASSIGN_OR_RETURN(const bool same_a, IsTransposed(*head.b, *embed.a));
  if (!same_a) return false;
  return IsTransposed(*head.a, *embed.b);
}

}  // namespace

// Piece by piece: the tensors may be as large as the model's largest.
bool SameBytes(const AdapterTensor& a, const AdapterTensor& b) {
  static constexpr size_t kPiece = size_t{16} << 20;
  if (a.shape != b.shape || a.format != b.format || a.bytes.size() != b.bytes.size()) return false;
  for (size_t at = 0; at < a.bytes.size(); at += kPiece) {
    const size_t count = std::min(kPiece, a.bytes.size() - at);
    const bool same = std::memcmp(a.bytes.data() + at, b.bytes.data() + at, count) == 0;
    a.Release(at, count);
    b.Release(at, count);
    if (!same) return false;
  }
  return true;
}

Result<bool> Matcher::SameChange(const Target& embed, const Target& head) const {
  const Change& a = embed.change;
  const Change& b = head.change;
  if (embed.shape != head.shape || (a.whole == nullptr) != (b.whole == nullptr) ||
      a.whole_weight != b.whole_weight || a.low_rank.size() != b.low_rank.size() ||
      !SameRows(a.rows, b.rows)) {
    return false;
  }
  if (a.whole != nullptr && a.whole != b.whole && !SameBytes(*a.whole, *b.whole)) return false;
  for (size_t i = 0; i < a.low_rank.size(); ++i) {
    HEXPORT_ASSIGN_OR_RETURN(const bool same, SamePart(a.low_rank[i], b.low_rank[i]));
    if (!same) return false;
  }
  return true;
}

Status Matcher::SettleTiedHead() {
  if (!tied_ || embed_name_.empty()) return OkStatus();
  const bool touched = std::any_of(targets_.begin(), targets_.end(), [&](const auto& entry) {
    return (entry.first == embed_name_ || entry.first == head_name_) &&
           !entry.second.change.empty();
  });
  if (!touched) {
    targets_.erase(embed_name_);
    targets_.erase(head_name_);
    return OkStatus();
  }
  Target& embed = *FindTarget(embed_name_);
  Target& head = *FindTarget(head_name_);
  // Loading a plain tensor into a tied model sets the one matrix that both share, and trained token
  // rows are tied by PEFT; modules_to_save and LoRA make a module of their own.
  const auto follow = [&](const Change& from, Target& to, const Shape& shape) {
    if (to.change.whole == nullptr && from.whole != nullptr &&
        (!from.whole_is_copy || ensure_tying_)) {
      to.change.whole = from.whole;
      to.change.whole_weight = from.whole_weight;
      to.shape = shape;
    }
    if (to.change.rows.empty()) to.change.rows = from.rows;
  };
  const Change embed_before = embed.change, head_before = head.change;
  const Shape embed_shape = embed.shape, head_shape = head.shape;
  follow(embed_before, head, embed_shape);
  follow(head_before, embed, head_shape);
  HEXPORT_ASSIGN_OR_RETURN(const bool same, SameChange(embed, head));
  if (same) {
    // One matrix, as before. A head that the base stores besides it stays equal to it.
    head.change = embed.change;
    if (!head_stored_) targets_.erase(head_name_);
    return OkStatus();
  }
  tied_ = false;
  Warn("the adapter changes " + embed_name_ + " and " + head_name_ +
       " differently, which the base shares (tie_word_embeddings); as when the adapter is applied "
       "unmerged, they become two tensors and tie_word_embeddings becomes false");
  return OkStatus();
}

}  // namespace hexport::adapter
