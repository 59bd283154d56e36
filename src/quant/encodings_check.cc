#include "quant/encodings_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include "quant/activation_groups.h"
#include "quant/encoding.h"
#include "quant/near_name.h"

namespace hexport::quant {
namespace {

// Looking for near names costs the number of tensors each; a file for another model has only
// unknown ones.
constexpr int kMostSuggestions = 32;
constexpr int64_t kErrorsInFull = 5;

constexpr std::array<std::pair<EncodingFault, std::string_view>, 7> kFaultNames = {
    {{EncodingFault::kMissing, "missing"},
     {EncodingFault::kWeightAmongActivations, "weight_among_activations"},
     {EncodingFault::kActivationAmongParams, "activation_among_params"},
     {EncodingFault::kUnknownName, "unknown_name"},
     {EncodingFault::kAbsurd, "absurd"},
     {EncodingFault::kConflict, "conflict"},
     {EncodingFault::kUnfit, "unfit"}}};

std::string Short(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

double Magnitude(const TensorEncoding& encoding) {
  double out = 0.0;
  for (size_t i = 0; i < encoding.scales.size(); ++i) {
    const GridEnds ends = EndsOf(encoding, i);
    out = std::max({out, -ends.low, ends.high});
  }
  return out;
}

std::string GridText(const TensorEncoding& encoding) {
  return std::to_string(encoding.bits) + " bits, scale " +
         Short(static_cast<double>(encoding.scales[0])) + ", offset " +
         std::to_string(encoding.offsets[0]);
}

class Checker {
 public:
  Checker(const EncodingsFile& file, const decoder::DecoderGraph& graph)
      : file_(file), graph_(graph), groups_(graph) {
    for (const decoder::Activation& activation : graph.activations)
      activations_.insert(activation.value.name);
    for (const graph::Initializer& initializer : graph.graph.initializers) {
      if (initializer.dtype == DType::kFloat32) params_[initializer.name] = initializer.shape;
    }
    for (const decoder::LinearWeight& linear : graph.linears) linears_[linear.name] = &linear;
    for (const TensorEncoding& encoding : file.activations) given_.insert(encoding.name);
    for (const TensorEncoding& encoding : file.params) given_.insert(encoding.name);
    candidates_.assign(activations_.begin(), activations_.end());
    for (const auto& [name, shape] : params_) candidates_.push_back(name);
    std::stable_partition(candidates_.begin(), candidates_.end(),
                          [this](const std::string& name) { return !given_.contains(name); });
  }

  std::vector<EncodingFinding> Run() {
    median_ = MedianMagnitude();
    for (const TensorEncoding& encoding : file_.activations) CheckActivation(encoding);
    for (const TensorEncoding& encoding : file_.params) CheckParam(encoding);
    FindMissingActivations();
    FindMissingParams();
    return std::move(findings_);
  }

 private:
  void Add(EncodingFault fault, const std::string& tensor, const std::string& text,
           bool error = true) {
    findings_.push_back({fault, error, tensor, tensor + ": " + text});
  }

  double MedianMagnitude() const {
    std::vector<double> magnitudes;
    for (const TensorEncoding& encoding : file_.activations) {
      if (!encoding.is_float) magnitudes.push_back(Magnitude(encoding));
    }
    if (magnitudes.empty()) return 0.0;
    const auto middle = magnitudes.begin() + static_cast<std::ptrdiff_t>(magnitudes.size() / 2);
    std::nth_element(magnitudes.begin(), middle, magnitudes.end());
    return *middle;
  }

  void AddUnknown(const std::string& name, const char* list) {
    std::string text = "expected the name of a tensor of this model, got one that is none, in " +
                       std::string(list);
    if (suggestions_++ < kMostSuggestions) {
      const std::string* near = NearName(name, candidates_);
      if (near != nullptr) {
        text += DidYouMean(*near);
        misspelt_.insert(*near);
      }
    }
    Add(EncodingFault::kUnknownName, name, text);
  }

  void CheckActivation(const TensorEncoding& encoding) {
    const std::string& name = encoding.name;
    if (params_.contains(name)) {
      Add(EncodingFault::kWeightAmongActivations, name,
          "expected the weight under param_encodings, got it under activation_encodings, where "
          "the converter does not look for it; move it");
      return;
    }
    if (!activations_.contains(name)) return AddUnknown(name, "activation_encodings");
    if (encoding.is_float) {
      encoded_roots_.insert(groups_.Root(name));
      return;
    }
    if (encoding.type != EncodingType::kPerTensor) {
      encoded_roots_.insert(groups_.Root(name));
      Add(EncodingFault::kUnfit, name,
          "expected one scale for the activation, got " +
              std::string(EncodingTypeName(encoding.type)) + " with " +
              std::to_string(encoding.scales.size()));
      return;
    }
    CheckRange(encoding);
    CheckGroup(encoding);
  }

  void CheckRange(const TensorEncoding& encoding) {
    const GridEnds ends = EndsOf(encoding);
    const double magnitude = Magnitude(encoding);
    const std::string range = "[" + Short(ends.low) + ", " + Short(ends.high) + "]";
    const bool beyond = magnitude > kLargestFloat16;
    const std::string advice =
        std::string("; calibrate without the sample that made it") +
        (beyond ? " (float16 ends at 65504, so leaving the tensor float does not help)"
                : ", or leave the tensor float");
    if (IsAbsurd(magnitude, median_)) {
      Add(EncodingFault::kAbsurd, encoding.name,
          "expected a range within 1e6 times the activations' median of " + Short(median_) +
              ", got " + range + advice);
    } else if (beyond) {
      Add(EncodingFault::kAbsurd, encoding.name, "a range beyond float16: " + range + advice,
          /*error=*/false);
    }
  }

  void CheckGroup(const TensorEncoding& encoding) {
    const std::string& root = groups_.Root(encoding.name);
    encoded_roots_.insert(root);
    const auto [found, fresh] = grids_.try_emplace({root, encoding.bits}, &encoding);
    const TensorEncoding& other = *found->second;
    if (fresh || (other.scales == encoding.scales && other.offsets == encoding.offsets)) return;
    Add(EncodingFault::kConflict, encoding.name,
        "expected the encoding of " + other.name + ", whose codes it holds (" + GridText(other) +
            "), got " + GridText(encoding));
  }

  void CheckParam(const TensorEncoding& encoding) {
    const std::string& name = encoding.name;
    if (activations_.contains(name)) {
      Add(EncodingFault::kActivationAmongParams, name,
          "expected the activation under activation_encodings, got it under param_encodings, "
          "where the converter ignores it; move it");
      return;
    }
    const auto param = params_.find(name);
    if (param == params_.end()) return AddUnknown(name, "param_encodings");
    if (encoding.is_float || encoding.type == EncodingType::kPerTensor) return;
    const auto linear = linears_.find(name);
    if (linear != linears_.end()) return CheckLinear(encoding, *linear->second);
    const auto channels = static_cast<int64_t>(encoding.scales.size());
    const Shape& shape = param->second;
    if (encoding.type != EncodingType::kPerChannel ||
        std::find(shape.begin(), shape.end(), channels) == shape.end()) {
      Add(EncodingFault::kUnfit, name,
          "expected one scale, or one a channel of " + ShapeString(shape) + ", got " +
              std::string(EncodingTypeName(encoding.type)) + " with " + std::to_string(channels));
    }
  }

  void CheckLinear(const TensorEncoding& encoding, const decoder::LinearWeight& linear) {
    const auto unfit = [&](const std::string& text) {
      Add(EncodingFault::kUnfit, encoding.name,
          std::string(EncodingTypeName(encoding.type)) + ": expected " + text);
    };
    const auto scales = static_cast<int64_t>(encoding.scales.size());
    int64_t blocks = 1;
    if (encoding.type != EncodingType::kPerChannel) {
      if (linear.in_features % encoding.block_size != 0) {
        return unfit("blocks that divide its " + std::to_string(linear.in_features) +
                     " inputs, got " + std::to_string(encoding.block_size));
      }
      blocks = linear.in_features / encoding.block_size;
    }
    const bool lpbq = encoding.type == EncodingType::kLpbq;
    const int64_t expected = linear.out_features * (lpbq ? 1 : blocks);
    if (scales != expected)
      return unfit(std::to_string(expected) + " scales, got " + std::to_string(scales));
    const auto integers = static_cast<int64_t>(encoding.block_scales.size());
    if (lpbq && integers != linear.out_features * blocks) {
      return unfit(std::to_string(linear.out_features * blocks) + " block scales, got " +
                   std::to_string(integers));
    }
  }

  bool IsElsewhere(const std::string& name) const {
    return given_.contains(name) || misspelt_.contains(name);
  }

  void FindMissingActivations() {
    std::set<std::string> seen;
    for (const decoder::Activation& activation : graph_.activations) {
      const std::string& root = groups_.Root(activation.value.name);
      if (!seen.insert(root).second || encoded_roots_.contains(root)) continue;
      std::vector<std::string> members;
      for (const std::string& member : groups_.group(root).members) {
        if (activations_.contains(member)) members.push_back(member);
      }
      const auto elsewhere = [this](const std::string& name) { return IsElsewhere(name); };
      if (std::any_of(members.begin(), members.end(), elsewhere)) continue;
      const std::string others =
          members.size() > 1
              ? " (or of one of " + std::to_string(members.size() - 1) + " that hold its codes)"
              : "";
      Add(EncodingFault::kMissing, activation.value.name,
          "expected an encoding under activation_encodings" + others +
              ", got none; the converter would take one from its own calibration");
    }
  }

  void FindMissingParams() {
    for (const auto& [name, shape] : params_) {
      if (IsElsewhere(name)) continue;
      Add(EncodingFault::kMissing, name,
          "expected an encoding under param_encodings, got none; the converter would take one "
          "from the tensor's own values",
          /*error=*/name.ends_with(".weight"));
    }
  }

  const EncodingsFile& file_;
  const decoder::DecoderGraph& graph_;
  const ActivationGroups groups_;
  std::set<std::string> activations_, given_, misspelt_, encoded_roots_;
  std::map<std::string, Shape> params_;
  std::map<std::string, const decoder::LinearWeight*> linears_;
  std::map<std::pair<std::string, int>, const TensorEncoding*> grids_;  // by group root and bits
  std::vector<std::string> candidates_;  // those without an encoding first
  double median_ = 0.0;
  int suggestions_ = 0;
  std::vector<EncodingFinding> findings_;
};

}  // namespace

std::string_view EncodingFaultName(EncodingFault fault) {
  for (const auto& [value, name] : kFaultNames) {
    if (value == fault) return name;
  }
  return "unknown";
}

std::vector<EncodingFinding> CheckEncodings(const EncodingsFile& file,
                                            const decoder::DecoderGraph& graph) {
  return Checker(file, graph).Run();
}

int64_t CountErrors(const std::vector<EncodingFinding>& findings) {
  return std::count_if(findings.begin(), findings.end(),
                       [](const EncodingFinding& finding) { return finding.error; });
}

Status FindingsStatus(const std::vector<EncodingFinding>& findings) {
  const int64_t errors = CountErrors(findings);
  if (errors == 0) return OkStatus();
  std::string text;
  int64_t told = 0;
  for (const EncodingFinding& finding : findings) {
    if (finding.error && told++ < kErrorsInFull) text += "\n  " + finding.message;
  }
  const std::string more =
      errors > kErrorsInFull ? "\n  and " + std::to_string(errors - kErrorsInFull) + " more" : "";
  return InvalidArgument("expected encodings that fit the model, got " + std::to_string(errors) +
                         " faults:" + text + more);
}

}  // namespace hexport::quant
