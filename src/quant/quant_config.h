// How each tensor of a model is quantized: one JSON file of defaults and rules.
//
//   { "method": "gptq", "weights": "lpbq", "block_size": 32, "activation_bits": 16, "kv_bits": 8,
//     "ranges": "percentile", "percentile": 99.99, "fold_channels": true,
//     "exclude": ["lm_head", "layers.0.*"],
//     "linears": [{"pattern": "layers.*.mlp.down_proj", "weights": "int8", "method": "rtn"}],
//     "activations": [{"pattern": "layers.*.mlp.gated", "bits": 8}],
//     "float16": ["norm", "softmax", "layers.3.mlp.gated"] }
//
// Every field may be absent. Patterns are whole names in which '*' stands for any text, dots too.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "decoder/decoder.h"
#include "quant/weights.h"

namespace hexport::quant {

// How a linear's codes are chosen: round to nearest; GPTQ (arXiv:2210.17323); AWQ
// (arXiv:2306.00978); SmoothQuant (arXiv:2211.10438); SeqMSE, scales searched for the least error
// of a linear's output; import, the codes of a quantized checkpoint (quant/import_codes.h).
enum class Method { kRtn, kGptq, kAwq, kSmoothQuant, kSeqMse, kImport };
// "rtn", "gptq", "awq", "smoothquant", "seqmse", "import". kInvalidArgument listing them.
Result<Method> ParseMethod(std::string_view text);
std::string_view MethodName(Method method);

// How an activation's range is chosen from what calibration saw; quant/histogram.h says how.
enum class RangeMethod { kMinMax, kMovingAverage, kPercentile, kMse, kEntropy };
// "minmax", "moving_average", "percentile", "mse", "entropy". kInvalidArgument listing them.
Result<RangeMethod> ParseRangeMethod(std::string_view text);
std::string_view RangeMethodName(RangeMethod method);

// Patterns of linears match names like "layers.3.mlp.down_proj" and "lm_head".
struct LinearRule {
  std::string pattern;
  std::optional<WeightFormat> weights;
  std::optional<int> block_size;  // 16, 32 or 64
  std::optional<Method> method;
};

// Patterns of activations match names as BuildDecoder gives them in the whole graph:
// "layers.3.mlp.gated", "past_key_3_out", "logits".
struct ActivationRule {
  std::string pattern;
  std::optional<int> bits;  // 8 or 16
  bool float16 = false;
};

struct QuantConfig {
  Method method = Method::kGptq;
  WeightOptions weights;     // decoder linears
  int activation_bits = 16;  // 8: what linears read, all else stays at 16; see quant/qdq.h
  int kv_bits = 8;           // 8 or 16
  RangeMethod ranges = RangeMethod::kMinMax;
  double percentile = 99.99;                // of kPercentile: above 50, up to 100
  bool fold_channels = false;               // scales of channels are moved: quant/find_folds.h
  std::vector<std::string> exclude;         // linears kept at int8 per channel, whatever rules say
  std::vector<LinearRule> linears;          // later rules win
  std::vector<ActivationRule> activations;  // later rules win
  std::vector<std::string> float16;         // "norm", "softmax", or activation patterns
};

// kInvalidArgument (unknown keys, wrong types and values) or kDataLoss (no JSON), with `where`, the
// JSON path, and a suggestion where a name is close.
Result<QuantConfig> ParseQuantConfig(std::string_view json, const std::string& where);
// Parses back to the same config.
std::string QuantConfigToJson(const QuantConfig& config);

// kInvalidArgument naming the first pattern that matches nothing in `graph`, the whole decoder.
// "embed_tokens" may be excluded: it is 16 bit in any case.
Status CheckConfig(const QuantConfig& config, const decoder::DecoderGraph& graph,
                   const std::string& where = "quantization config");

// The linear as patterns name it: without ".weight". A view of its name.
std::string_view ModuleOf(const decoder::LinearWeight& linear);

// Whether `name` as a whole matches `pattern`.
bool MatchesPattern(std::string_view pattern, std::string_view name);

struct LinearPlan {
  WeightOptions weights;
  Method method = Method::kRtn;
  bool block_does_not_divide = false;  // LPBQ was asked for; int8 it is
};
// Format, block and method of one linear after all rules. Unless a rule says otherwise lm_head is
// int8, by GPTQ where that is the config's method and else rounded to nearest.
LinearPlan PlanLinear(const QuantConfig& config, const decoder::LinearWeight& linear);

struct ActivationPlan {
  int bits = 16;
  bool ruled = false;    // a rule named the bits
  bool float16 = false;  // not quantized
};
// What the rules say of one activation, or of several that share one encoding (a rule that matches
// one of them counts for all). Without a rule: kv_bits for the cache ("past_..."), else 16. The
// words "norm" and "softmax" of `float16` are about nodes, so they do not show here.
ActivationPlan PlanActivation(const QuantConfig& config, const std::string& name);
ActivationPlan PlanActivations(const QuantConfig& config, std::span<const std::string> names);

}  // namespace hexport::quant
