// Ranges and warnings from what the observers saw.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <string>
#include <utility>

#include "quant/activation_groups.h"
#include "quant/calibrate.h"

namespace hexport::quant {
namespace {

constexpr int64_t kFewSamples = 8, kFewTokens = 4096;
// A range moves when the second half of the samples widens it by more than this share of it.
constexpr double kMoved = 0.1;
constexpr double kMovingShare = 0.2;  // of the activations

// cos(0) = 1 must not overflow where codes are truncated.
Range RopeRange(const RopeParameters& rope) {
  const auto factor = static_cast<float>(rope.scaling.attention_factor);
  return {-factor, 1.0001f * factor};
}

bool NeedsHistogram(const CalibrateOptions& options) {
  return options.keep_histograms || options.ranges == RangeMethod::kPercentile ||
         options.ranges == RangeMethod::kMse || options.ranges == RangeMethod::kEntropy;
}

std::string Shown(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g", value);
  return text;
}

// Gives values that are moved or copied the observations of their inputs.
void CompleteObservers(const graph::Graph& graph, std::map<std::string, Observer>& observers) {
  for (const graph::Node& node : graph.nodes) {
    if (node.op_type != "Identity" && !MovesData(node.op_type)) continue;
    for (const std::string& input : MovedInputs(node)) {
      const auto found = observers.find(input);
      if (found == observers.end()) continue;  // past_*_in: its output's
      const Observer from = found->second;
      for (const std::string& output : node.outputs) observers[output].Merge(from);
    }
  }
}

// What linears other than lm_head read and write, and what all linears read.
struct LinearValues {
  std::set<std::string> narrow, read;
  explicit LinearValues(const decoder::DecoderGraph& whole) {
    std::map<std::string, bool> heads;
    for (const decoder::LinearWeight& linear : whole.linears) heads[linear.name] = linear.lm_head;
    for (const graph::Node& node : whole.graph.nodes) {
      if (node.op_type != "MatMul" || !heads.contains(node.inputs[1])) continue;
      read.insert(node.inputs[0]);
      if (!heads[node.inputs[1]]) narrow.insert({node.inputs[0], node.outputs[0]});
    }
  }
};

void SetFixedRanges(const graph::Graph& graph, const ModelConfig& config, RangeMap& ranges) {
  ranges["attention_mask"] = ranges["sliding_attention_mask"] = {kMaskFloor, 0.0f};
  for (const char* wave : {"cos", "sin"}) {
    ranges[std::string("position_ids_") + wave] = RopeRange(config.rope);
    ranges[std::string("local_position_ids_") + wave] =
        RopeRange(config.local_rope.value_or(config.rope));
  }
  for (const graph::Node& node : graph.nodes) {
    if (node.op_type == "Softmax" || node.op_type == "Sigmoid")
      ranges[node.outputs[0]] = {0.0f, 1.0f};
  }
}

void WarnOfAbsurdRanges(const std::map<std::string, Observer>& observers,
                        std::vector<std::string>& warnings) {
  for (const auto& [name, observer] : observers) {
    const Range range = observer.minmax();
    const double largest = std::max(std::abs(static_cast<double>(range.min)),
                                    std::abs(static_cast<double>(range.max)));
    const double median = observer.MedianMagnitude();
    const bool overflows = largest > kLargestFloat16;
    if (!overflows && !IsAbsurd(largest, median)) continue;
    warnings.push_back(
        name + ": absurd range [" + Shown(static_cast<double>(range.min)) + ", " +
        Shown(static_cast<double>(range.max)) + "] with a median magnitude of " + Shown(median) +
        (overflows ? ", beyond float16's 65504, so float16 is no way out on the NPU" : "") +
        "; its codes will hold little else: look at this layer's weights, or clip the range "
        "(ranges: percentile or mse)");
  }
}

void WarnOfLittleData(const std::map<std::string, Observer>& observers, int64_t samples,
                      int64_t tokens, std::vector<std::string>& warnings) {
  size_t compared = 0, moved = 0;
  for (const auto& [name, observer] : observers) {
    if (!observer.first_half().has_value()) continue;
    const Range all = observer.minmax(), half = *observer.first_half();
    const double width = static_cast<double>(all.max) - static_cast<double>(all.min);
    const double before = static_cast<double>(half.max) - static_cast<double>(half.min);
    ++compared;
    if (width - before > kMoved * before) ++moved;
  }
  const double share =
      compared > 0 ? static_cast<double>(moved) / static_cast<double>(compared) : 0.0;
  const bool few = samples < kFewSamples || tokens < kFewTokens;
  if (!few && share <= kMovingShare) return;
  warnings.push_back("calibration data: " + std::to_string(samples) + " samples with " +
                     std::to_string(tokens) + " tokens; their second half widened " +
                     std::to_string(std::lround(100.0 * share)) +
                     " % of the ranges by more than a tenth: expected at least " +
                     std::to_string(kFewSamples) + " samples, " + std::to_string(kFewTokens) +
                     " tokens, and at most " + std::to_string(std::lround(100 * kMovingShare)) +
                     " %; give more texts like those the model will see");
}

}  // namespace

RangeRecorder::RangeRecorder(const CalibrateOptions& options, int64_t samples, int64_t tokens)
    : options_(options), samples_(samples), tokens_(tokens) {}
RangeRecorder::~RangeRecorder() = default;

Status RangeRecorder::Visit(const ActivationView& view) {
  HEXPORT_RETURN_IF_ERROR(CheckFinite(view));
  const bool first_half = static_cast<int64_t>(view.sample) < samples_ / 2;
  Observer* observer = nullptr;
  {
    const std::lock_guard lock(mutex_);
    observer = &observers_[view.name];
  }
  observer->Add(view, first_half, NeedsHistogram(options_));
  return OkStatus();
}

Calibration RangeRecorder::Finish(const decoder::DecoderGraph& whole,
                                  const ModelConfig& config) const {
  Calibration out;
  out.samples = samples_;
  out.tokens = tokens_;
  WarnOfAbsurdRanges(observers_, out.warnings);
  WarnOfLittleData(observers_, samples_, tokens_, out.warnings);
  std::map<std::string, Observer> observers = observers_;
  CompleteObservers(whole.graph, observers);
  const LinearValues linears(whole);
  for (const auto& [name, observer] : observers) {
    const bool cache = name.starts_with("past_");
    const int bits = cache                           ? options_.kv_bits
                     : linears.narrow.contains(name) ? options_.activation_bits
                                                     : 16;
    const Range range = observer.Choose(options_.ranges, options_.percentile, bits, cache);
    out.ranges[name] = range;
    if (cache && name.ends_with("_out"))
      out.ranges[name.substr(0, name.size() - 4) + "_in"] = range;
    if (options_.keep_histograms && observer.histogram().has_value())
      out.histograms.emplace(name, *observer.histogram());
    if (!linears.read.contains(name)) continue;
    std::vector<int64_t> dead = observer.DeadChannels();
    if (dead.empty()) continue;
    out.warnings.push_back(name + ": " + std::to_string(dead.size()) +
                           " channels were 0 in all samples, the first is " +
                           std::to_string(dead.front()) +
                           "; if the texts should reach them, give others");
    out.dead_channels.emplace(name, std::move(dead));
  }
  SetFixedRanges(whole.graph, config, out.ranges);
  return out;
}

}  // namespace hexport::quant
