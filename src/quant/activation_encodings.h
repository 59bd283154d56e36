// Which encoding each activation of a graph gets under a config. Private to src/quant.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "decoder/decoder.h"
#include "quant/activation_groups.h"
#include "quant/encoding.h"
#include "quant/quant_config.h"
#include "quant/weights.h"

namespace hexport::quant {

// Names are those of the graph's values; ranges and rules go by the names of the whole graph. All
// references must outlive this.
class ActivationEncodings {
 public:
  ActivationEncodings(const decoder::DecoderGraph& decoder, const RangeMap& ranges,
                      const WeightStore& store, const QuantConfig& config);

  // kInvalidArgument naming what a rule asks for and the NPU's compiler refuses.
  Status Check() const;
  // The encoding that all activations of one group share: a given one (Range::exact) or one over
  // their ranges. kInvalidArgument naming an activation
  // without a range.
  Result<Encoding> Shared(const std::string& activation);
  // 8 bits: given, or over the same range.
  Result<Encoding> Narrow(const std::string& activation);
  // The given encoding of `name`, an activation or a constant (a norm's weight, a bias).
  std::optional<Encoding> Exact(const std::string& name) const;
  // Whether its readers get 8 bits.
  bool IsNarrow(const std::string& activation) const { return narrow_.contains(activation); }
  // Whether the node is a linear that multiplies 8 bit inputs: its output is then 8 bit too, since
  // the NPU has no linear between two widths.
  bool IsNarrowLinear(const graph::Node& node) const;
  // Whether the activation is not quantized, and whether the node computes in float16.
  bool IsFloat16(const std::string& activation) const;
  bool RunsInFloat16(const graph::Node& node) const;
  const ActivationGroups& groups() const { return groups_; }
  const std::string& FullName(const std::string& activation) const;

 private:
  ActivationPlan PlanOf(const std::string& activation) const;
  Result<Encoding> GroupEncoding(const std::string& root) const;
  Result<Range> GroupRange(const std::string& root) const;
  // Of a member that has it, in `bits`.
  std::optional<Encoding> GroupExact(const std::string& root, int bits) const;
  bool IsLinear(const graph::Node& node) const;
  bool IsFloatValue(const std::string& name) const { return known_.contains(name); }

  const decoder::DecoderGraph& decoder_;
  const RangeMap& ranges_;
  const WeightStore& store_;
  const QuantConfig& config_;
  ActivationGroups groups_;
  std::map<std::string, std::string> full_names_;
  std::map<std::string, const decoder::LinearWeight*> linears_;
  std::set<std::string> known_, narrow_, float16_roots_;
  std::map<std::string, Encoding> encodings_;  // by group root
};

}  // namespace hexport::quant
