#include "quant/import_codes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "quant/find_folds.h"

namespace hexport::quant {
namespace {

// Codes with the zero point taken off, and the scale of each group.
struct Centred {
  int64_t in = 0, columns = 0, groups = 0;
  std::vector<int8_t> codes;   // [in, columns]
  std::vector<double> scales;  // [groups, columns], not negative
};

// The real number that a group adds to each code before its scale: offset / scale - zero point, in
// whole steps.
Result<int> Shift(const PackedWeight& packed, size_t at) {
  if (packed.offsets.empty() || packed.offsets[at] == 0.0f) return -packed.zero_points[at];
  const double steps =
      static_cast<double>(packed.offsets[at]) / static_cast<double>(packed.scales[at]);
  const double whole = std::nearbyint(steps);
  if (packed.scales[at] == 0.0f || std::abs(whole) > 255.0 || std::abs(steps - whole) > 1e-4)
    return Unimplemented("its offsets are no whole number of steps");
  return static_cast<int>(whole) - packed.zero_points[at];
}

Result<Centred> Centre(const PackedWeight& packed, int64_t first, int64_t columns, double scale) {
  Centred out;
  out.in = packed.in_features;
  out.columns = columns;
  const auto width = static_cast<size_t>(packed.out_features);
  const auto wanted = static_cast<size_t>(columns), start = static_cast<size_t>(first);
  out.groups = static_cast<int64_t>(packed.scales.size() / width);
  const int low = packed.bits == 4 ? -8 : -128;
  std::vector<int> shifts(static_cast<size_t>(out.groups) * wanted);
  out.scales.resize(shifts.size());
  for (size_t i = 0; i < shifts.size(); ++i) {
    const size_t at = i / wanted * width + start + i % wanted;
    if (!std::isfinite(packed.scales[at]))
      return DataLoss("expected finite scales, got NaN or Inf");
    HEXPORT_ASSIGN_OR_RETURN(shifts[i], Shift(packed, at));
    out.scales[i] = std::abs(static_cast<double>(packed.scales[at])) * scale;
  }
  out.codes.resize(static_cast<size_t>(out.in) * wanted);
  for (size_t k = 0; k < static_cast<size_t>(out.in); ++k) {
    const auto group = static_cast<size_t>(packed.group_of[k]);
    for (size_t n = 0; n < wanted; ++n) {
      const float of_group = packed.scales[group * width + start + n];
      int code = packed.codes[k * width + start + n] + shifts[group * wanted + n];
      if (of_group < 0.0f) code = -code;
      if (of_group == 0.0f) code = 0;
      if (code < low || code > -low - 1) {
        return Unimplemented("its zero points or negative scales give codes beyond " +
                             std::to_string(low) + " to " + std::to_string(-low - 1));
      }
      out.codes[k * wanted + n] = static_cast<int8_t>(code);
    }
  }
  return out;
}

// Whether every column has one scale.
bool IsPerChannel(const Centred& centred) {
  const auto columns = static_cast<size_t>(centred.columns);
  for (size_t i = columns; i < centred.scales.size(); ++i)
    if (centred.scales[i] != centred.scales[i % columns]) return false;
  return true;
}

// The largest block of LPBQ that keeps within the groups; 0: none does.
int BlockWithin(const PackedWeight& packed) {
  for (const int block : {64, 32, 16}) {
    if (packed.in_features % block != 0) continue;
    bool within = true;
    for (size_t k = 0; k < packed.group_of.size() && within; ++k)
      within = packed.group_of[k] == packed.group_of[k - k % static_cast<size_t>(block)];
    if (within) return block;
  }
  return 0;
}

std::string StoredDtype(const Checkpoint& checkpoint, const std::string& tensor) {
  const TensorInfo* info = checkpoint.Find(tensor);
  return info == nullptr ? "nothing" : info->stored_dtype;
}

float Positive(double scale) { return std::max(static_cast<float>(scale), 1e-30f); }

// The integers 1..16 and the channel scale nearest to `scales`, each block's error weighed with
// `energies`, the sums of its squared codes. The largest scale is tried as every integer.
BlockScales NearestScales(const std::vector<double>& scales, const std::vector<double>& energies,
                          double& error) {
  const double largest = *std::max_element(scales.begin(), scales.end());
  BlockScales best;
  error = -1.0;
  for (int top = 16; top >= 1; --top) {
    BlockScales candidate{Positive(largest / top), {}};
    const auto channel = static_cast<double>(candidate.channel);
    double sum = 0.0;
    for (size_t b = 0; b < scales.size(); ++b) {
      const double integer = std::clamp(std::nearbyint(scales[b] / channel), 1.0, 16.0);
      candidate.integers.push_back(static_cast<uint8_t>(integer));
      sum += energies[b] * (scales[b] - integer * channel) * (scales[b] - integer * channel);
    }
    if (error >= 0.0 && sum >= error) continue;
    error = sum;
    best = std::move(candidate);
  }
  return best;
}

TakenCodes ToBlocks(Centred centred, const PackedWeight& packed, int block) {
  const auto columns = static_cast<size_t>(centred.columns), size = static_cast<size_t>(block);
  const size_t blocks = static_cast<size_t>(centred.in) / size;
  TakenCodes out;
  QuantizedWeight& weight = out.weight;
  weight.block_size = block;
  weight.channel_scales.resize(columns);
  weight.block_scales.resize(blocks * columns);
  double lost = 0.0, whole = 0.0;
  std::vector<double> scales(blocks), energies(blocks);
  for (size_t n = 0; n < columns; ++n) {
    for (size_t b = 0; b < blocks; ++b) {
      const auto group = static_cast<size_t>(packed.group_of[b * size]);
      scales[b] = centred.scales[group * columns + n];
      energies[b] = 0.0;
      for (size_t k = b * size; k < (b + 1) * size; ++k) {
        const double code = centred.codes[k * columns + n];
        energies[b] += code * code;
      }
      whole += energies[b] * scales[b] * scales[b];
    }
    double error = 0.0;
    const BlockScales nearest = NearestScales(scales, energies, error);
    lost += error;
    weight.channel_scales[n] = nearest.channel;
    for (size_t b = 0; b < blocks; ++b) weight.block_scales[b * columns + n] = nearest.integers[b];
  }
  weight.codes = std::move(centred.codes);
  out.scale_error = std::sqrt(lost / std::max(whole, 1e-30));
  return out;
}

// TakeLinear, but kUnimplemented where `config` excludes a linear from the format of its codes.
Result<TakenCodes> TakeAsPlanned(const Checkpoint& checkpoint, const decoder::LinearWeight& linear,
                                 const QuantConfig& config) {
  HEXPORT_ASSIGN_OR_RETURN(TakenCodes taken, TakeLinear(checkpoint, linear));
  const bool excluded = std::any_of(
      config.exclude.begin(), config.exclude.end(),
      [&](const std::string& pattern) { return MatchesPattern(pattern, ModuleOf(linear)); });
  if (excluded && taken.weight.format != WeightFormat::kInt8)
    return Unimplemented("the config excludes it from all formats but int8");
  return taken;
}

int BlockOf(const QuantizedWeight& weight, const QuantConfig& config) {
  return weight.format == WeightFormat::kLpbq ? weight.block_size : config.weights.block_size;
}

LinearRule RuleFor(const std::string& module, const WeightOptions& weights, Method method) {
  LinearRule rule{module, weights.format, {}, method};
  if (weights.format == WeightFormat::kLpbq) rule.block_size = weights.block_size;
  return rule;
}

// kInvalidArgument when none of the linears that `config` wants imported is stored as codes.
Status CheckAnyCodes(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
                     const QuantConfig& config) {
  std::string stored;
  for (const decoder::LinearWeight& linear : graph.linears) {
    if (PlanLinear(config, linear).method != Method::kImport) continue;
    HEXPORT_ASSIGN_OR_RETURN(const std::optional<PackedWeight> packed,
                             checkpoint.ReadPacked(linear.tensor));
    if (packed.has_value()) return OkStatus();
    if (stored.empty())
      stored = std::string(ModuleOf(linear)) + " as " + StoredDtype(checkpoint, linear.tensor);
  }
  if (stored.empty()) return OkStatus();
  return InvalidArgument(
      "method import: expected linears stored as GPTQ, AWQ or GGUF's Q4_0, Q4_1 or Q8_0, got " +
      stored + "; use gptq, rtn or another method");
}

// "layers.0.self_attn.q_proj", "... and 3 more"
std::string SomeOf(const std::vector<std::string>& names) {
  return names.front() +
         (names.size() > 1 ? " and " + std::to_string(names.size() - 1) + " more" : "");
}

}  // namespace

Result<TakenCodes> TakeCodes(const PackedWeight& packed, int64_t first, int64_t columns,
                             double scale) {
  HEXPORT_ASSIGN_OR_RETURN(Centred centred, Centre(packed, first, columns, scale));
  TakenCodes out;
  if (IsPerChannel(centred)) {
    out.weight.format = packed.bits == 4 ? WeightFormat::kInt4 : WeightFormat::kInt8;
    for (size_t n = 0; n < static_cast<size_t>(columns); ++n)
      out.weight.channel_scales.push_back(Positive(centred.scales[n]));
    out.weight.codes = std::move(centred.codes);
  } else {
    if (packed.bits != 4) return Unimplemented("its 8 bit codes have several scales a channel");
    const int block = BlockWithin(packed);
    if (block == 0) return Unimplemented("blocks of 16 input features do not keep to its groups");
    out = ToBlocks(std::move(centred), packed, block);
    if (!(out.scale_error <= kMostScaleError)) {
      return Unimplemented("LPBQ's integers 1 to 16 are too far from its scales");
    }
    out.weight.format = WeightFormat::kLpbq;
  }
  out.weight.in_features = packed.in_features;
  out.weight.out_features = columns;
  return out;
}

Result<TakenCodes> TakeLinear(const Checkpoint& checkpoint, const decoder::LinearWeight& linear) {
  HEXPORT_ASSIGN_OR_RETURN(const std::optional<PackedWeight> packed,
                           checkpoint.ReadPacked(linear.tensor));
  if (!packed.has_value()) {
    return Unimplemented("it is stored as " + StoredDtype(checkpoint, linear.tensor) +
                         ", which has no codes to take over");
  }
  return TakeCodes(*packed, linear.first_row, linear.out_features, linear.scale);
}

bool UsesImport(const QuantConfig& config) {
  return config.method == Method::kImport ||
         std::any_of(config.linears.begin(), config.linears.end(),
                     [](const LinearRule& rule) { return rule.method == Method::kImport; });
}

Result<ImportPlan> PlanImport(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
                              const QuantConfig& config) {
  if (NeedsFolds(config, graph)) {
    return InvalidArgument(
        "method import: expected a config without channel folds (fold_channels, awq, smoothquant): "
        "they change the weights that the codes are of");
  }
  HEXPORT_RETURN_IF_ERROR(CheckAnyCodes(checkpoint, graph, config));
  ImportPlan plan;
  plan.config = config;
  std::map<std::string, std::vector<std::string>> reasons;
  for (const decoder::LinearWeight& linear : graph.linears) {
    if (PlanLinear(config, linear).method != Method::kImport) continue;
    const std::string module(ModuleOf(linear));
    const LinearPlan planned = PlanLinear(config, linear);
    const Result<TakenCodes> taken = TakeAsPlanned(checkpoint, linear, config);
    if (!taken.ok() && taken.status().code() != StatusCode::kUnimplemented)
      return taken.status().WithContext(linear.tensor);
    if (!taken.ok()) {
      ++plan.counts.requantized;
      reasons[taken.status().message()].push_back(module);
      plan.config.linears.push_back(
          RuleFor(module, planned.weights, linear.lm_head ? Method::kRtn : Method::kGptq));
      continue;
    }
    if (plan.counts.held + plan.counts.rounded == 0)
      plan.config.weights = {taken->weight.format, BlockOf(taken->weight, config)};
    ++(taken->scale_error <= kExactScaleError ? plan.counts.held : plan.counts.rounded);
    plan.config.linears.push_back(
        RuleFor(module, {taken->weight.format, BlockOf(taken->weight, config)}, Method::kImport));
  }
  for (const auto& [reason, modules] : reasons)
    plan.warnings.push_back("quantized anew, because " + reason + ": " + SomeOf(modules));
  return plan;
}

}  // namespace hexport::quant
