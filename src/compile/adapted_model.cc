#include "compile/adapted_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "decoder/low_rank.h"

namespace hexport::compile {
namespace {

using adapter::LowRankUpdate;
using adapter::MatchedAdapters;

constexpr int64_t kBlockValues = int64_t{1} << 20;  // of a weight, held at a time

// Turns rows [first_row, ...) of W, in `rows`, into those of V = W + scale * (left * right -
// initial).
void AddLowRank(const LowRankUpdate& update, int64_t first_row, std::span<float> rows) {
  const int64_t columns = update.columns;
  const auto add = [&](const std::vector<float>& left, const std::vector<float>& right,
                       int64_t rank, double scale) {
    for (int64_t row = 0; row * columns < static_cast<int64_t>(rows.size()); ++row) {
      float* out = rows.data() + row * columns;
      for (int64_t r = 0; r < rank; ++r) {
        const double factor =
            scale * static_cast<double>(left[static_cast<size_t>((first_row + row) * rank + r)]);
        const float* values = right.data() + r * columns;
        for (int64_t column = 0; column < columns; ++column)
          out[column] += static_cast<float>(factor * static_cast<double>(values[column]));
      }
    }
  };
  if (update.initial_rank > 0)
    add(update.initial_left, update.initial_right, update.initial_rank, -update.scale);
  add(update.left, update.right, update.rank, update.scale);
}

// V of rows [first_row, first_row + count) of a tensor, a block at a time.
Status ForEachBlock(
    const MatchedAdapters& adapters, const std::string& tensor, const LowRankUpdate& update,
    int64_t first_row, int64_t count,
    const std::function<void(int64_t first_row, std::span<const float> rows)>& visit) {
  const int64_t block = std::max<int64_t>(1, kBlockValues / update.columns);
  std::vector<float> rows;
  for (int64_t done = 0; done < count; done += block) {
    rows.resize(static_cast<size_t>(std::min(block, count - done) * update.columns));
    HEXPORT_RETURN_IF_ERROR(adapters.ReadRows(tensor, first_row + done, rows));
    AddLowRank(update, first_row + done, rows);
    visit(first_row + done, rows);
  }
  return OkStatus();
}

// DoRA's magnitude / |V|, of each row of [first_row, first_row + count) or, for embeddings, of each
// column. Empty when the update has no magnitude.
Result<std::vector<double>> ReadGains(const MatchedAdapters& adapters, const std::string& tensor,
                                      const LowRankUpdate& update, int64_t first_row,
                                      int64_t count) {
  std::vector<double> gains;
  if (update.magnitude.empty()) return gains;
  const bool by_column = update.magnitude_per_column;
  if (by_column) first_row = 0, count = update.rows;
  std::vector<double> squares(static_cast<size_t>(by_column ? update.columns : count), 0.0);
  const auto add = [&](int64_t first, std::span<const float> rows) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / update.columns;
      const int64_t at =
          by_column ? static_cast<int64_t>(i) % update.columns : first - first_row + row;
      squares[static_cast<size_t>(at)] +=
          static_cast<double>(rows[i]) * static_cast<double>(rows[i]);
    }
  };
  HEXPORT_RETURN_IF_ERROR(ForEachBlock(adapters, tensor, update, first_row, count, add));
  const int64_t first_gain = by_column ? 0 : first_row;
  for (size_t i = 0; i < squares.size(); ++i) {
    gains.push_back(static_cast<double>(update.magnitude[static_cast<size_t>(first_gain) + i]) /
                    std::sqrt(squares[i]));
  }
  return gains;
}

// Applies one update, with gains of all its rows or columns, to rows of W in place.
void ApplyToRows(const LowRankUpdate& update, const std::vector<double>& gains, int64_t first_row,
                 std::span<float> rows) {
  const std::vector<float> before(rows.begin(), rows.end());
  AddLowRank(update, first_row, rows);
  if (gains.empty()) return;
  const auto columns = static_cast<size_t>(update.columns);
  for (size_t i = 0; i < rows.size(); ++i) {
    const double gain = update.magnitude_per_column
                            ? gains[i % columns]
                            : gains[static_cast<size_t>(first_row) + i / columns];
    const double w = static_cast<double>(before[i]);
    rows[i] =
        static_cast<float>(w + update.dora_weight * (gain * static_cast<double>(rows[i]) - w));
  }
}

// Rows of `left` that belong to the linear, times scale and the gains.
std::vector<float> LeftOf(const std::vector<float>& left, int64_t rank, int64_t first_row,
                          int64_t count, double scale, const std::vector<double>& gains,
                          double dora_weight) {
  const auto begin = left.begin() + first_row * rank;
  std::vector<float> out(begin, begin + count * rank);
  for (size_t i = 0; i < out.size(); ++i) {
    const double gain = gains.empty() ? 1.0 : dora_weight * gains[i / static_cast<size_t>(rank)];
    out[i] = static_cast<float>(static_cast<double>(out[i]) * scale * gain);
  }
  return out;
}

Result<decoder::LowRankBranch> MakeBranch(const MatchedAdapters& adapters,
                                          const decoder::LinearWeight& linear,
                                          const std::vector<LowRankUpdate>& updates) {
  decoder::LowRankBranch branch;
  const int64_t first_row = linear.first_row, rows = linear.out_features;
  for (const LowRankUpdate& update : updates) {
    HEXPORT_ASSIGN_OR_RETURN(const std::vector<double> gains,
                             ReadGains(adapters, linear.tensor, update, first_row, rows));
    if (!gains.empty()) {
      for (const double gain : gains) {
        branch.base_gain.push_back(
            static_cast<float>(1.0 - update.dora_weight + update.dora_weight * gain));
      }
    }
    if (update.initial_rank > 0) {
      branch.terms.push_back({update.initial_rank,
                              LeftOf(update.initial_left, update.initial_rank, first_row, rows,
                                     -update.scale, gains, update.dora_weight),
                              update.initial_right});
    }
    branch.terms.push_back(
        {update.rank,
         LeftOf(update.left, update.rank, first_row, rows, update.scale, gains, update.dora_weight),
         update.right});
  }
  return branch;
}

}  // namespace

class AdaptedModel::View : public Checkpoint {
 public:
  View(const Checkpoint& merged, const MatchedAdapters& adapters)
      : merged_(merged), adapters_(adapters) {
    for (const auto& tensor : adapters.tensors()) low_rank_[tensor.name] = tensor.low_rank;
  }

  const ModelConfig& config() const override { return merged_.config(); }
  const std::vector<TensorInfo>& tensors() const override { return merged_.tensors(); }
  const TensorInfo* Find(const std::string& name) const override { return merged_.Find(name); }
  Status Read(const std::string& name, std::span<float> out) const override {
    return ReadRows(name, 0, out);
  }
  Status ReadRows(const std::string& name, int64_t first_row, std::span<float> out) const override {
    HEXPORT_RETURN_IF_ERROR(adapters_.ReadRows(name, first_row, out));
    const auto found = low_rank_.find(name);
    // The embedding, lm_head and biases are read through here alone; Amend sees to the rest.
    const bool edge =
        name == "model.embed_tokens.weight" || name == "lm_head.weight" || name.ends_with(".bias");
    if (!edge || found == low_rank_.end() || !found->second) return OkStatus();
    HEXPORT_RETURN_IF_ERROR(LoadEdge(name));
    for (const auto& [update, gains] : edge_.at(name)) ApplyToRows(update, gains, first_row, out);
    return OkStatus();
  }
  Result<TextAssets> Text() const override { return merged_.Text(); }
  std::vector<std::filesystem::path> Files() const override { return merged_.Files(); }

 private:
  // Rows of the embedding are read one token at a time: its update is kept.
  Status LoadEdge(const std::string& name) const {
    if (edge_.contains(name)) return OkStatus();
    HEXPORT_ASSIGN_OR_RETURN(std::vector<LowRankUpdate> updates, adapters_.LowRank(name));
    std::vector<std::pair<LowRankUpdate, std::vector<double>>> loaded;
    for (LowRankUpdate& update : updates) {
      HEXPORT_ASSIGN_OR_RETURN(std::vector<double> gains,
                               ReadGains(adapters_, name, update, 0, update.rows));
      loaded.emplace_back(std::move(update), std::move(gains));
    }
    edge_[name] = std::move(loaded);
    return OkStatus();
  }

  const Checkpoint& merged_;
  const MatchedAdapters& adapters_;
  std::map<std::string, bool> low_rank_;
  mutable std::map<std::string, std::vector<std::pair<LowRankUpdate, std::vector<double>>>> edge_;
};

AdaptedModel::AdaptedModel(const Checkpoint& merged, const MatchedAdapters& adapters)
    : adapters_(adapters), view_(std::make_unique<View>(merged, adapters)) {}
AdaptedModel::~AdaptedModel() = default;

const Checkpoint& AdaptedModel::checkpoint() const { return *view_; }

Status AdaptedModel::Amend(decoder::DecoderGraph& graph) const {
  for (size_t i = 0; i < graph.linears.size(); ++i) {
    const decoder::LinearWeight linear = graph.linears[i];
    if (linear.lm_head) continue;  // in the view
    HEXPORT_ASSIGN_OR_RETURN(const std::vector<LowRankUpdate> updates,
                             adapters_.LowRank(linear.tensor));
    if (updates.empty()) continue;
    HEXPORT_ASSIGN_OR_RETURN(const decoder::LowRankBranch branch,
                             MakeBranch(adapters_, linear, updates));
    HEXPORT_RETURN_IF_ERROR(decoder::AddLowRankBranch(graph, i, branch));
  }
  return OkStatus();
}

}  // namespace hexport::compile
