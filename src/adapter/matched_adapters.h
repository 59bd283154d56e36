// What Match builds; private to this folder.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "adapter/adapter.h"

namespace hexport::adapter {

// Changes to one tensor of the merged model.
struct Change {
  // A low-rank update of one adapter: A and B, or the bias of lora_B alone.
  struct LowRankPart {
    const AdapterTensor* a = nullptr;
    const AdapterTensor* b = nullptr;
    const AdapterTensor* magnitude = nullptr;
    const AdapterTensor* bias = nullptr;
    int64_t rank = 0;
    double scale = 1.0, weight = 1.0;
    int64_t interleaved_heads = 0;  // of B's rows in a GGUF; 0: rows stand as in Hugging Face
    InitKind init = InitKind::kBaseUntouched;
    const AdapterTensor* initial_a = nullptr;  // of the initial adapter, when it is given
    const AdapterTensor* initial_b = nullptr;
    double initial_scale = 1.0;
  };
  struct Rows {
    const AdapterTensor* values = nullptr;
    std::vector<int64_t> rows;
    double weight = 1.0;
  };
  const AdapterTensor* whole = nullptr;  // takes the base's place
  double whole_weight = 1.0;
  bool whole_is_copy = false;  // modules_to_save: a module of its own even where weights are tied
  std::vector<Rows> rows;
  std::vector<LowRankPart> low_rank;
  bool empty() const { return whole == nullptr && rows.empty() && low_rank.empty(); }
};

struct Target {
  std::string name;
  Shape shape;
  std::string values_of;  // base tensor that holds the values before any change; empty: zeros
  Change change;
};

class Matched final : public MatchedAdapters {
 public:
  const std::vector<Source>& sources() const override { return sources_; }
  const std::vector<AdapterKey>& keys() const override { return keys_; }
  std::vector<std::pair<std::string, std::string>> SuggestedRename() const override;
  const std::vector<std::string>& warnings() const override { return warnings_; }
  const std::vector<MergedTensor>& tensors() const override { return tensors_; }
  Result<std::vector<LowRankUpdate>> LowRank(const std::string& tensor) const override;
  Status ReadRows(const std::string& tensor, int64_t first_row,
                  std::span<float> out) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  bool tie_word_embeddings() const override { return tied_; }
  const std::vector<std::string>& bias_fields() const override { return bias_fields_; }

 private:
  friend class Matcher;
  Result<const Target*> Find(const std::string& tensor) const;
  Result<LowRankUpdate> MakeUpdate(const Target& target, const Change::LowRankPart& part) const;
  // Fills initial_left and initial_right, from the initial adapter or from W itself.
  Status AddInitial(const Target& target, const Change::LowRankPart& part,
                    LowRankUpdate& update) const;

  const BaseTensors* base_ = nullptr;
  std::vector<Source> sources_;
  std::unique_ptr<Adapter> initial_;
  std::vector<AdapterKey> keys_;
  std::vector<std::string> unmatched_modules_;  // with ".weight" or ".bias", before renaming
  std::vector<Target> targets_;
  std::map<std::string, size_t> index_;
  std::vector<MergedTensor> tensors_;
  std::vector<std::string> warnings_, bias_fields_;
  int64_t vocab_size_ = -1;
  bool tied_ = false;
  struct Initial {
    std::vector<float> left, right;
    int64_t rank = 0;
  };
  mutable std::mutex rebuilt_mutex_;
  mutable std::map<std::string, Initial> rebuilt_;  // decompositions take long
};

// Whether two tensors hold the same values in the same type and shape. Releases their pages.
bool SameBytes(const AdapterTensor& a, const AdapterTensor& b);

// Prefixes {"from", "to"} that would make tensor names of the base out of `unmatched`; empty when
// none fits. Every pair mends at least one name.
std::vector<std::pair<std::string, std::string>> SuggestRename(
    const std::vector<std::string>& unmatched, const std::vector<BaseTensor>& base);

// What PiSSA takes out of W [rows, columns]: scale * left * right is the best rank-r approximation
// (arXiv:2404.02948); OLoRA: left * right are the first r columns and rows of Q and R
// (arXiv:2406.01775). `left` [rows, r], `right` [r, columns]. r is at most min(rows, columns).
// Errors: kResourceExhausted (no memory), kInvalidArgument (r), kInternal (no convergence).
Status RebuildPissa(std::span<const float> weight, int64_t rows, int64_t columns, int64_t rank,
                    double scale, std::vector<float>& left, std::vector<float>& right);
Status RebuildOlora(std::span<const float> weight, int64_t rows, int64_t columns, int64_t rank,
                    std::vector<float>& left, std::vector<float>& right);

}  // namespace hexport::adapter
