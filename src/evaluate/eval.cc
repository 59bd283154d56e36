#include "evaluate/eval.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "decoder/logit_metrics.h"
#include "evaluate/logit_source.h"
#include "evaluate/target.h"
#include "evaluate/windows.h"
#include "text/tokenizer.h"

namespace hexport::evaluate {
namespace {

constexpr int64_t kDefaultContext = 512;
constexpr int64_t kDefaultTokens = 8192, kDefaultEmulatorTokens = 256;
constexpr int64_t kTaskBatchTokens = 16384;  // bounds the hidden states of a walk

int64_t CountTokens(const std::vector<TokenIds>& windows) {
  int64_t tokens = 0;
  for (const TokenIds& window : windows) tokens += static_cast<int64_t>(window.size());
  return tokens;
}

// Many runs as one line of progress, counted in tokens, so that the time left is that of all.
class TokenProgress : public Progress {
 public:
  TokenProgress(Progress& outer, std::string stage, int64_t total)
      : outer_(outer), stage_(std::move(stage)), total_(total) {}
  // The next Run is over this many tokens.
  void Begin(int64_t tokens) {
    done_ += current_;
    current_ = tokens;
  }
  void Update(std::string_view /*stage*/, int64_t done, int64_t total) override {
    const int64_t part = total > 0 ? current_ * done / total : 0;
    outer_.Update(stage_, done_ + part, total_);
  }
  void Note(std::string_view line) override { outer_.Note(line); }

 private:
  Progress& outer_;
  std::string stage_;
  int64_t total_, done_ = 0, current_ = 0;
};

Status NotFinite(const char* what, size_t window, size_t token) {
  return DataLoss(std::string(what) + " " + std::to_string(window) + ", token " +
                  std::to_string(token) +
                  ": expected finite logits, got NaN or infinity; `hexport verify` and `hexport "
                  "inspect` look closer");
}

// Reference logits of some windows: [tokens, vocab_size] each.
class ReferenceLogits {
 public:
  Status Fill(LogitSource& source, const std::vector<TokenIds>& windows, Progress& progress) {
    vocab_size_ = static_cast<size_t>(source.vocab_size());
    rows_.assign(windows.size(), {});
    for (size_t i = 0; i < windows.size(); ++i) rows_[i].resize(windows[i].size() * vocab_size_);
    const auto keep = [&](const LogitPiece& piece) {
      const auto columns = static_cast<size_t>(piece.columns);
      for (size_t row = 0; row < windows[piece.window].size(); ++row) {
        const auto values = piece.values.subspan(row * columns, columns);
        std::copy(values.begin(), values.end(),
                  rows_[piece.window].begin() + static_cast<std::ptrdiff_t>(row * vocab_size_) +
                      piece.first_column);
      }
      return OkStatus();
    };
    return source.Run(windows, keep, progress);
  }
  std::span<const float> Row(size_t window, size_t row, int64_t first, int64_t columns) const {
    return std::span<const float>(rows_[window])
        .subspan(row * vocab_size_ + static_cast<size_t>(first), static_cast<size_t>(columns));
  }

 private:
  size_t vocab_size_ = 0;
  std::vector<std::vector<float>> rows_;
};

// Runs `windows` and adds every predicted token to `metrics`. `reference` may be null.
Status Measure(LogitSource& engine, const std::vector<TokenIds>& windows, size_t first_window,
               const ReferenceLogits* reference, decoder::TextMetrics& metrics,
               Progress& progress) {
  std::vector<std::vector<decoder::Position>> positions(windows.size());
  for (size_t w = 0; w < windows.size(); ++w) {
    for (size_t row = 0; row + 1 < windows[w].size(); ++row)
      positions[w].emplace_back(windows[w][row + 1]);
  }
  const auto visit = [&](const LogitPiece& piece) {
    const auto columns = static_cast<size_t>(piece.columns);
    std::vector<decoder::Position>& rows = positions[piece.window];
    for (size_t row = 0; row < rows.size(); ++row) {
      std::span<const float> of_reference;
      if (reference != nullptr)
        of_reference = reference->Row(piece.window, row, piece.first_column, piece.columns);
      rows[row].Add(piece.first_column, piece.values.subspan(row * columns, columns), of_reference);
      if (!rows[row].finite()) return NotFinite("window", first_window + piece.window, row);
    }
    return OkStatus();
  };
  HEXPORT_RETURN_IF_ERROR(engine.Run(windows, visit, progress));
  for (const std::vector<decoder::Position>& rows : positions) {
    for (const decoder::Position& position : rows) metrics.Add(position, reference != nullptr);
  }
  return OkStatus();
}

// The end of the batch that begins at window `first` and whose reference logits fit in memory.
size_t BatchEnd(const std::vector<TokenIds>& windows, size_t first, int64_t vocab_size) {
  const int64_t fits = kReferenceBytes / (vocab_size * static_cast<int64_t>(sizeof(float)));
  int64_t tokens = 0;
  size_t end = first;
  do {
    tokens += static_cast<int64_t>(windows[end++].size());
  } while (end < windows.size() && tokens + static_cast<int64_t>(windows[end].size()) <= fits);
  return end;
}

Result<TextResult> EvaluateText(Target& target, const std::vector<TokenIds>& windows,
                                Progress& outer) {
  decoder::TextMetrics metrics;
  const int64_t tokens = CountTokens(windows);
  TextResult result;
  if (target.reference == nullptr) {
    TokenProgress progress(outer, "eval", tokens);
    progress.Begin(tokens);
    HEXPORT_RETURN_IF_ERROR(Measure(*target.engine, windows, 0, nullptr, metrics, progress));
    result.perplexity = result.perplexity_float = metrics.Perplexity();
    result.top1_vs_float = result.cosine_vs_float = 1;
  } else {
    TokenProgress progress(outer, "eval", 2 * tokens);
    ReferenceLogits reference;
    for (size_t first = 0; first < windows.size();) {
      const size_t end = BatchEnd(windows, first, target.engine->vocab_size());
      const std::vector<TokenIds> batch(windows.begin() + static_cast<std::ptrdiff_t>(first),
                                        windows.begin() + static_cast<std::ptrdiff_t>(end));
      progress.Begin(CountTokens(batch));
      HEXPORT_RETURN_IF_ERROR(
          reference.Fill(*target.reference, batch, progress).WithContext("the float model"));
      progress.Begin(CountTokens(batch));
      HEXPORT_RETURN_IF_ERROR(Measure(*target.engine, batch, first, &reference, metrics, progress));
      first = end;
    }
    result.perplexity = metrics.Perplexity();
    result.perplexity_float = metrics.ReferencePerplexity();
    result.kl_vs_float = metrics.Divergence();
    result.top1_vs_float = metrics.Top1();
    result.cosine_vs_float = metrics.Cosine();
  }
  result.tokens = metrics.tokens();
  return result;
}

// ln p of candidates [first, end)'s choices, added to `out`.
Status Likelihoods(LogitSource& source, const std::vector<Candidate>& candidates, size_t first,
                   size_t end, std::vector<double>& out, Progress& progress) {
  std::vector<TokenIds> texts;
  std::vector<std::vector<decoder::Position>> positions;  // of the choice's tokens alone
  for (size_t i = first; i < end; ++i) {
    const Candidate& candidate = candidates[i];
    texts.push_back(candidate.ids);
    std::vector<decoder::Position>& rows = positions.emplace_back();
    for (size_t t = candidate.first; t < candidate.ids.size(); ++t)
      rows.emplace_back(candidate.ids[t]);
  }
  const auto visit = [&](const LogitPiece& piece) {
    const auto columns = static_cast<size_t>(piece.columns);
    const size_t before = candidates[first + piece.window].first - 1;
    std::vector<decoder::Position>& rows = positions[piece.window];
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].Add(piece.first_column, piece.values.subspan((before + i) * columns, columns), {});
      if (!rows[i].finite()) return NotFinite("choice", first + piece.window, before + i);
    }
    return OkStatus();
  };
  HEXPORT_RETURN_IF_ERROR(source.Run(texts, visit, progress));
  for (const std::vector<decoder::Position>& rows : positions) {
    double sum = 0;
    for (const decoder::Position& position : rows) sum -= position.Loss();
    out.push_back(sum);
  }
  return OkStatus();
}

Result<TaskScores> RunTasks(LogitSource& source, const std::vector<Question>& questions,
                            const std::vector<Candidate>& candidates, TokenProgress& progress) {
  std::vector<double> likelihoods;
  for (size_t first = 0; first < candidates.size();) {
    int64_t tokens = 0;
    size_t end = first;
    while (end < candidates.size() && (end == first || tokens < kTaskBatchTokens))
      tokens += static_cast<int64_t>(candidates[end++].ids.size());
    progress.Begin(tokens);
    HEXPORT_RETURN_IF_ERROR(Likelihoods(source, candidates, first, end, likelihoods, progress));
    first = end;
  }
  return ScoreTasks(questions, candidates, likelihoods);
}

Result<TaskResult> EvaluateTasks(const EvalOptions& options, Target& target, int64_t context,
                                 Progress& outer) {
  HEXPORT_ASSIGN_OR_RETURN(const std::vector<Question> questions, LoadTasks(options.tasks));
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                           Tokenizer::FromJson(target.text.tokenizer_json));
  HEXPORT_ASSIGN_OR_RETURN(const std::vector<Candidate> candidates,
                           MakeCandidates(questions, *tokenizer, context, options.tasks.string()));
  int64_t tokens = 0;
  for (const Candidate& candidate : candidates)
    tokens += static_cast<int64_t>(candidate.ids.size());
  TokenProgress progress(outer, "tasks", target.reference == nullptr ? tokens : 2 * tokens);
  TaskResult result;
  HEXPORT_ASSIGN_OR_RETURN(result.engine,
                           RunTasks(*target.engine, questions, candidates, progress));
  result.reference = result.engine;
  if (target.reference != nullptr) {
    HEXPORT_ASSIGN_OR_RETURN(result.reference,
                             RunTasks(*target.reference, questions, candidates, progress));
  }
  return result;
}

Result<int64_t> ContextFor(const EvalOptions& options, const Target& target) {
  const int64_t longest = target.longest_context;
  if (options.context == 0)
    return longest > 0 ? std::min(longest, kDefaultContext) : kDefaultContext;
  if (options.context < 2 || (longest > 0 && options.context > longest)) {
    return InvalidArgument(
        "--context: expected 2 or more" +
        (longest > 0 ? " and at most the bundle's " + std::to_string(longest) : std::string()) +
        ", got " + std::to_string(options.context));
  }
  return options.context;
}

}  // namespace

Result<EvalEngine> ParseEvalEngine(std::string_view text) {
  for (const EvalEngine engine :
       {EvalEngine::kFloat, EvalEngine::kCpu, EvalEngine::kQdq, EvalEngine::kEmulator}) {
    if (text == EvalEngineName(engine)) return engine;
  }
  return InvalidArgument("--engine: expected float, cpu, qdq or emulator, got " +
                         std::string(text));
}

std::string_view EvalEngineName(EvalEngine engine) {
  switch (engine) {
    case EvalEngine::kFloat:
      return "float";
    case EvalEngine::kCpu:
      return "cpu";
    case EvalEngine::kQdq:
      return "qdq";
    case EvalEngine::kEmulator:
      return "emulator";
  }
  return "";
}

Result<EvalResult> Evaluate(const EvalOptions& options, Progress& progress) {
  if (options.text.empty() && options.tasks.empty())
    return InvalidArgument("nothing to evaluate on: pass --text, --tasks or both");
  if (options.max_tokens < 0) {
    return InvalidArgument("--max-tokens: expected 2 or more, got " +
                           std::to_string(options.max_tokens));
  }
  HEXPORT_ASSIGN_OR_RETURN(Target target, OpenTarget(options, progress));
  if (target.reference != nullptr &&
      target.reference->vocab_size() != target.engine->vocab_size()) {
    return InvalidArgument("the float model: vocab_size: expected " +
                           std::to_string(target.engine->vocab_size()) + ", got " +
                           std::to_string(target.reference->vocab_size()));
  }
  EvalResult result;
  result.engine = EvalEngineName(options.engine);
  result.bits_per_weight = target.bits_per_weight;
  HEXPORT_ASSIGN_OR_RETURN(result.context, ContextFor(options, target));
  if (!options.text.empty()) {
    const int64_t usual =
        options.engine == EvalEngine::kEmulator ? kDefaultEmulatorTokens : kDefaultTokens;
    const int64_t max_tokens = options.max_tokens > 0 ? options.max_tokens : usual;
    HEXPORT_ASSIGN_OR_RETURN(const std::vector<TokenIds> windows,
                             LoadWindows(options.text, target.text, result.context, max_tokens));
    HEXPORT_ASSIGN_OR_RETURN(result.text, EvaluateText(target, windows, progress));
  }
  if (!options.tasks.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(result.tasks,
                             EvaluateTasks(options, target, result.context, progress));
  }
  return result;
}

}  // namespace hexport::evaluate
