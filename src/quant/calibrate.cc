#include "quant/calibrate.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "quant/activation_groups.h"
#include "quant/layer_walker.h"

namespace hexport::quant {
namespace {

// How far below the lowest row's largest score a score may be cut off: exp(-25) of 4096 columns
// together weighs less than one step of the 16 bit probabilities.
constexpr float kScoreDepth = 25.0f;
// cos(0) = 1 must not overflow where codes are truncated.
Range RopeRange(const RopeParameters& rope) {
  const auto factor = static_cast<float>(rope.scaling.attention_factor);
  return {-factor, 1.0001f * factor};
}

// Largest and smallest score that a query can see, and the smallest row maximum. Columns past the
// diagonal are masked and their scores irrelevant.
struct ScoreSpan {
  float min = 0.0f, max = 0.0f, lowest_row_max = 0.0f;
};

ScoreSpan SpanOfScores(const ActivationView& view) {
  const size_t tokens = static_cast<size_t>(view.columns);
  ScoreSpan span{view.values[0], view.values[0], view.values[0]};
  for (size_t row = 0; row < view.values.size() / tokens; ++row) {
    const size_t end = row % tokens + 1, window = static_cast<size_t>(view.window);
    const size_t first = window > 0 && end > window ? end - window : 0;
    const auto visible = view.values.subspan(row * tokens + first, end - first);
    const auto [low, high] = std::minmax_element(visible.begin(), visible.end());
    span.min = std::min(span.min, *low);
    span.max = std::max(span.max, *high);
    span.lowest_row_max = std::min(span.lowest_row_max, *high);
  }
  return span;
}

// MinMax, except for attention scores: masked ones are left out, so that the mask's floor does not
// stretch the encoding (codes saturate at its minimum, which after softmax is zero all the same),
// and so are scores too small to matter.
Range RangeOf(const ActivationView& view) {
  if (view.scores == ActivationView::Scores::kNone) {
    const auto [low, high] = std::minmax_element(view.values.begin(), view.values.end());
    return {*low, *high};
  }
  const ScoreSpan span = SpanOfScores(view);
  const float floor = span.lowest_row_max - kScoreDepth;
  const bool masked = view.scores == ActivationView::Scores::kMasked;
  return {masked ? floor : std::max(span.min, floor), span.max};
}

void Widen(RangeMap& ranges, const std::string& name, Range range) {
  const auto [found, inserted] = ranges.emplace(name, range);
  if (inserted) return;
  found->second.min = std::min(found->second.min, range.min);
  found->second.max = std::max(found->second.max, range.max);
}

Status CheckFinite(const ActivationView& view) {
  for (size_t i = 0; i < view.values.size(); ++i) {
    if (std::isfinite(view.values[i])) continue;
    return DataLoss(view.name + ": expected finite activations, got " +
                    std::to_string(view.values[i]) + " at element " + std::to_string(i) +
                    " of sample " + std::to_string(view.sample) +
                    "; the checkpoint is broken or was saved after training diverged");
  }
  return OkStatus();
}

// Ranges of what the walk does not visit: graph inputs with fixed meaning, and values that are
// moved or copied.
void CompleteRanges(const decoder::DecoderGraph& whole, const ModelConfig& config,
                    RangeMap& ranges) {
  ranges["attention_mask"] = ranges["sliding_attention_mask"] = {kMaskFloor, 0.0f};
  for (const char* wave : {"cos", "sin"}) {
    ranges[std::string("position_ids_") + wave] = RopeRange(config.rope);
    ranges[std::string("local_position_ids_") + wave] =
        RopeRange(config.local_rope.value_or(config.rope));
  }
  for (const graph::Node& node : whole.graph.nodes) {
    const bool identity = node.op_type == "Identity";
    if (!identity && !MovesData(node.op_type)) {
      if (node.op_type == "Softmax") ranges[node.outputs[0]] = {0.0f, 1.0f};
      continue;
    }
    for (const std::string& input : MovedInputs(node)) {
      const auto found = ranges.find(input);
      if (found == ranges.end()) continue;  // past_*_in: below
      const Range range = found->second;
      for (const std::string& output : node.outputs) Widen(ranges, output, range);
      if (!identity || !node.outputs[0].ends_with("_out")) continue;
      std::string past = node.outputs[0];
      past.replace(past.size() - 4, 4, "_in");
      ranges[past] = range;
    }
  }
}

}  // namespace

Result<Calibration> Calibrate(const Checkpoint& checkpoint, const std::vector<TokenIds>& samples,
                              Progress& progress, int64_t context_length) {
  Calibration out;
  const auto visit = [&out](const ActivationView& view) -> Status {
    HEXPORT_RETURN_IF_ERROR(CheckFinite(view));
    Widen(out.ranges, view.name, RangeOf(view));
    return OkStatus();
  };
  HEXPORT_RETURN_IF_ERROR(WalkDecoder(
      checkpoint, samples,
      {.every_activation = true, .context_length = context_length, .stage = "calibrate"}, visit,
      progress));
  HEXPORT_ASSIGN_OR_RETURN(const decoder::DecoderGraph whole,
                           decoder::BuildDecoder(checkpoint, {.context_length = context_length}));
  CompleteRanges(whole, checkpoint.config(), out.ranges);
  out.samples = static_cast<int64_t>(samples.size());
  for (const TokenIds& sample : samples) out.tokens += static_cast<int64_t>(sample.size());
  return out;
}

Result<std::vector<std::vector<float>>> FloatLogits(const Checkpoint& checkpoint,
                                                    const std::vector<TokenIds>& samples,
                                                    Progress& progress, int64_t context_length) {
  const size_t vocab = static_cast<size_t>(checkpoint.config().vocab_size);
  std::vector<std::vector<float>> logits(samples.size());
  const auto visit = [&](const ActivationView& view) -> Status {
    HEXPORT_RETURN_IF_ERROR(CheckFinite(view));
    const size_t rows = samples[view.sample].size(), columns = static_cast<size_t>(view.columns);
    std::vector<float>& out = logits[view.sample];
    out.resize(rows * vocab);
    for (size_t row = 0; row < rows; ++row) {
      const auto piece = view.values.subspan(row * columns, columns);
      std::copy(piece.begin(), piece.end(),
                out.begin() + static_cast<std::ptrdiff_t>(row * vocab) + view.first_column);
    }
    return OkStatus();
  };
  HEXPORT_RETURN_IF_ERROR(WalkDecoder(
      checkpoint, samples,
      {.every_activation = false, .context_length = context_length, .stage = "float reference"},
      visit, progress));
  return logits;
}

}  // namespace hexport::quant
