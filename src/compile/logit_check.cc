#include "compile/logit_check.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/mapped_file.h"
#include "compile/adapted_model.h"
#include "quant/layer_walker.h"

namespace hexport::compile {
namespace {

namespace fs = std::filesystem;
using quant::ActivationView;

// The larger one; a NaN, once seen, stays.
double MaxOrNan(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

// The most likely token of every position, as pieces of the vocabulary come in.
class Top1 {
 public:
  explicit Top1(const std::vector<std::vector<int32_t>>& samples) {
    for (const auto& sample : samples)
      best_.emplace_back(sample.size(), std::pair<float, int32_t>(-INFINITY, -1));
  }
  void Add(const ActivationView& piece) {
    auto& rows = best_[piece.sample];
    for (size_t row = 0; row < rows.size(); ++row) {
      const auto values = piece.values.subspan(row * static_cast<size_t>(piece.columns),
                                               static_cast<size_t>(piece.columns));
      const auto best = std::max_element(values.begin(), values.end());
      if (*best > rows[row].first)
        rows[row] = {*best, static_cast<int32_t>(piece.first_column + (best - values.begin()))};
    }
  }
  double Agreement(const Top1& other) const {
    int64_t same = 0, all = 0;
    for (size_t s = 0; s < best_.size(); ++s) {
      for (size_t row = 0; row < best_[s].size(); ++row, ++all)
        same += best_[s][row].second == other.best_[s][row].second ? 1 : 0;
    }
    return all == 0 ? 0 : static_cast<double>(same) / static_cast<double>(all);
  }
  std::vector<int32_t> Last() const {
    std::vector<int32_t> ids;
    for (const auto& rows : best_) ids.push_back(rows.back().second);
    return ids;
  }

 private:
  std::vector<std::vector<std::pair<float, int32_t>>> best_;
};

// A file that is removed with its owner.
class ScratchFile {
 public:
  explicit ScratchFile(const fs::path& folder)
      : path_(folder / (".hexport-logits-" + std::to_string(::getpid()) + ".f32")) {}
  ~ScratchFile() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

using PieceKey = std::pair<size_t, int64_t>;  // sample, first column
struct Piece {
  uint64_t offset;
  int64_t columns;
};

// Logits of base + adapters, in a file.
struct Reference {
  std::map<PieceKey, Piece> pieces;
  std::unique_ptr<MappedFile> file;
};

// Compares the pieces of a second model with the reference's. Models whose vocabularies differ are
// compared where both have tokens.
class Comparison {
 public:
  explicit Comparison(const Reference& reference) : reference_(reference) {}
  Status Add(const ActivationView& piece) {
    const auto found = reference_.pieces.find({piece.sample, piece.first_column});
    if (found == reference_.pieces.end()) return OkStatus();
    const auto rows = static_cast<int64_t>(piece.values.size()) / piece.columns;
    const int64_t columns = std::min(piece.columns, found->second.columns);
    const auto* expected =
        reinterpret_cast<const float*>(reference_.file->bytes().data() + found->second.offset);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const double difference = std::abs(
            static_cast<double>(piece.values[static_cast<size_t>(row * piece.columns + column)]) -
            static_cast<double>(expected[row * found->second.columns + column]));
        result_.max_abs = MaxOrNan(result_.max_abs, difference);
        sum_ += difference;
        ++count_;
      }
    }
    reference_.file->Release(found->second.offset,
                             static_cast<size_t>(rows * found->second.columns) * sizeof(float));
    return OkStatus();
  }
  LogitDifference Finish(double top1_agreement) {
    result_.mean_abs = count_ == 0 ? 0 : sum_ / static_cast<double>(count_);
    result_.top1_agreement = top1_agreement;
    return result_;
  }

 private:
  const Reference& reference_;
  LogitDifference result_;
  double sum_ = 0;
  int64_t count_ = 0;
};

Status WriteReference(const AdaptedModel& model, const LogitCheckOptions& options,
                      const fs::path& path, Reference& reference, Top1& top1, LogitCheck& check,
                      Progress& progress) {
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<FileWriter> writer, FileWriter::Create(path));
  quant::WalkOptions walk;
  walk.stage = "logits of base + adapter";
  walk.amend = [&](decoder::DecoderGraph& graph) { return model.Amend(graph); };
  const auto visit = [&](const ActivationView& piece) -> Status {
    top1.Add(piece);
    for (const float value : piece.values) {
      check.max_abs_logit = MaxOrNan(check.max_abs_logit, std::abs(static_cast<double>(value)));
    }
    reference.pieces[{piece.sample, piece.first_column}] = {writer->offset(), piece.columns};
    return writer->Write(std::as_bytes(piece.values));
  };
  HEXPORT_RETURN_IF_ERROR(
      quant::WalkDecoder(model.checkpoint(), options.samples, walk, visit, progress));
  HEXPORT_RETURN_IF_ERROR(writer->Commit());
  HEXPORT_ASSIGN_OR_RETURN(reference.file, MappedFile::Open(path));
  return OkStatus();
}

Result<LogitDifference> CompareWith(const Checkpoint& model, const Reference& reference,
                                    const LogitCheckOptions& options, const Top1& expected,
                                    std::vector<int32_t>& next, const char* stage,
                                    Progress& progress) {
  Comparison comparison(reference);
  Top1 top1(options.samples);
  quant::WalkOptions walk;
  walk.stage = stage;
  const auto visit = [&](const ActivationView& piece) {
    top1.Add(piece);
    return comparison.Add(piece);
  };
  HEXPORT_RETURN_IF_ERROR(quant::WalkDecoder(model, options.samples, walk, visit, progress));
  next = top1.Last();
  return comparison.Finish(top1.Agreement(expected));
}

Result<std::vector<std::vector<int32_t>>> Answer(
    const Checkpoint& model, const std::function<Status(decoder::DecoderGraph&)>& amend,
    const GreedyOptions& options, const char* stage, Progress& progress) {
  std::vector<std::vector<int32_t>> texts = options.prompts;
  std::vector<bool> ended(texts.size(), false);
  const std::vector<int64_t>& eos = model.config().eos_token_ids;
  for (int64_t step = 0; step < options.max_tokens; ++step) {
    progress.Update(stage, step, options.max_tokens);
    if (std::find(ended.begin(), ended.end(), false) == ended.end()) break;
    Top1 top1(texts);
    quant::WalkOptions walk;
    walk.stage = stage;
    walk.amend = amend;
    const auto visit = [&](const ActivationView& piece) {
      top1.Add(piece);
      return OkStatus();
    };
    HEXPORT_RETURN_IF_ERROR(quant::WalkDecoder(model, texts, walk, visit, NullProgress()));
    const std::vector<int32_t> next = top1.Last();
    for (size_t i = 0; i < texts.size(); ++i) {
      ended[i] = ended[i] || std::find(eos.begin(), eos.end(), next[i]) != eos.end();
      if (!ended[i]) texts[i].push_back(next[i]);
    }
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto length = static_cast<std::ptrdiff_t>(options.prompts[i].size());
    texts[i].erase(texts[i].begin(), texts[i].begin() + length);
  }
  return texts;
}

}  // namespace

Result<GreedyAnswers> CompareAnswers(const Checkpoint& merged,
                                     const adapter::MatchedAdapters& adapters,
                                     const Checkpoint* base, const GreedyOptions& options,
                                     Progress& progress) {
  GreedyAnswers answers;
  const AdaptedModel adapted(merged, adapters);
  const auto amend = [&](decoder::DecoderGraph& graph) { return adapted.Amend(graph); };
  HEXPORT_ASSIGN_OR_RETURN(answers.adapted, Answer(adapted.checkpoint(), amend, options,
                                                   "answers of base + adapter", progress));
  HEXPORT_ASSIGN_OR_RETURN(
      answers.merged, Answer(merged, nullptr, options, "answers of the merged model", progress));
  if (base == nullptr) return answers;
  HEXPORT_ASSIGN_OR_RETURN(answers.base,
                           Answer(*base, nullptr, options, "answers of the base", progress));
  return answers;
}

Result<LogitCheck> CompareLogits(const Checkpoint& merged, const adapter::MatchedAdapters& adapters,
                                 const Checkpoint* base, const LogitCheckOptions& options,
                                 Progress& progress) {
  LogitCheck check;
  check.samples = static_cast<int64_t>(options.samples.size());
  for (const auto& sample : options.samples) check.tokens += static_cast<int64_t>(sample.size());
  const AdaptedModel adapted(merged, adapters);
  const ScratchFile scratch(options.scratch);
  Reference reference;
  Top1 top1(options.samples);
  HEXPORT_RETURN_IF_ERROR(
      WriteReference(adapted, options, scratch.path(), reference, top1, check, progress)
          .WithContext("base + adapter"));
  check.adapted_next = top1.Last();
  HEXPORT_ASSIGN_OR_RETURN(check.merged,
                           CompareWith(merged, reference, options, top1, check.merged_next,
                                       "logits of the merged model", progress));
  if (base == nullptr) return check;
  HEXPORT_ASSIGN_OR_RETURN(check.base, CompareWith(*base, reference, options, top1, check.base_next,
                                                   "logits of the base", progress));
  check.has_base = true;
  return check;
}

}  // namespace hexport::compile
