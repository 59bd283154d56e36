#include "diagnose/findings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <span>

#include "quant/encoding.h"

namespace hexport::diagnose {
namespace {

// A channel this many times as large as the median one is called an outlier.
constexpr double kOutlier = 20.0;
// An encoding this many times as wide as what it holds is called wide.
constexpr double kWide = 4.0;

std::string Number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.5g", value);
  return text.data();
}

std::string Interval(double low, double high) { return Number(low) + " to " + Number(high); }

double Largest(const TensorReport& report) {
  return std::max(std::abs(static_cast<double>(report.seen.min)),
                  std::abs(static_cast<double>(report.seen.max)));
}

bool IsWeight(const TensorReport& report) { return report.tensor.ends_with(".weight"); }

Cause CauseOfWeight(const TensorReport& report) {
  return report.dead.empty() ? Cause::kWeight : Cause::kDeadScale;
}

Cause CauseOf(const TensorReport& report, bool narrow_inputs) {
  if (IsWeight(report)) return CauseOfWeight(report);
  if (report.float16 && Largest(report) > quant::kLargestFloat16) return Cause::kFloat16Overflow;
  // The encoding is at fault where it alone makes half of the error.
  const bool encoding =
      report.encoding.has_value() && !(report.encoded.noise < 0.5 * report.own.noise);
  if (!encoding) {
    return report.op_type == "MatMul" && narrow_inputs ? Cause::kNarrowLinear : Cause::kOperator;
  }
  if (report.clipped > 0.5) return Cause::kSaturation;
  const quant::Range ends = quant::EndsOf(*report.encoding);
  const double seen = static_cast<double>(std::max(report.seen.max, 0.0f)) -
                      static_cast<double>(std::min(report.seen.min, 0.0f));
  if (static_cast<double>(ends.max) - static_cast<double>(ends.min) > kWide * seen)
    return Cause::kWideRange;
  if (report.median_peak > 0.0 && report.peak > kOutlier * report.median_peak)
    return Cause::kOutlierChannel;
  return Cause::kFewBits;
}

Remedy FirstRemedy(Cause cause, const TensorReport& report) {
  const bool coarse = report.encoding.has_value() && report.encoding->bits < 16;
  switch (cause) {
    case Cause::kFloat16Overflow:
      return Remedy::kIntegers;
    case Cause::kSaturation:
    case Cause::kWideRange:
      return Remedy::kCalibrate;
    case Cause::kOutlierChannel:
    case Cause::kFewBits:
      return coarse ? Remedy::kSixteenBits : Remedy::kNone;
    case Cause::kNarrowLinear:
      return Remedy::kSixteenBits;
    case Cause::kDeadScale:
    case Cause::kWeight:
      return Remedy::kRound;
    case Cause::kOperator:
    case Cause::kEarlier:
      break;
  }
  return Remedy::kNone;
}

std::string ReasonOf(Cause cause, const TensorReport& report) {
  const std::string seen = Interval(report.seen.min, report.seen.max);
  std::string held;
  if (report.encoding.has_value()) {
    const quant::Range ends = quant::EndsOf(*report.encoding);
    held =
        std::to_string(report.encoding->bits) + " bit codes hold " + Interval(ends.min, ends.max);
  }
  switch (cause) {
    case Cause::kFloat16Overflow:
      return "float16 overflow: values reach " + Number(Largest(report)) +
             ", and float16 ends at 65504";
    case Cause::kSaturation:
      return "saturation: values are " + seen + ", and its " + held;
    case Cause::kWideRange:
      return "range: values are " + seen + ", and its " + held;
    case Cause::kOutlierChannel:
      return "outlier channel: channel " + std::to_string(report.peak_channel) + " reaches " +
             Number(report.peak) + ", the median channel " + Number(report.median_peak) + "; its " +
             held;
    case Cause::kFewBits:
      return "few bits: its " + held + ", and most values are small";
    case Cause::kNarrowLinear:
      return "few bits: its linear multiplies 8 bit inputs and so writes 8 bits; values are " +
             seen;
    case Cause::kDeadScale:
      return "dead scale: " + std::to_string(report.dead.size()) +
             " output features are zero that are not in the float weight, the first " +
             std::to_string(report.dead.front());
    case Cause::kWeight:
      return "weight: its codes differ from the float weight by " +
             Number(std::sqrt(report.own.noise)) + " of its length";
    case Cause::kOperator:
      return "operator: " + report.op_type + " gives other values from good inputs";
    case Cause::kEarlier:
      break;
  }
  return "";
}

}  // namespace

std::string RemedyInWords(Remedy remedy, const std::string& tensor) {
  const std::string module = tensor.substr(0, tensor.rfind(".weight"));
  switch (remedy) {
    case Remedy::kNone:
      return "none known that costs less than a better method for the weights";
    case Remedy::kIntegers:
      return "compute it in 16 bit integers in place of float16";
    case Remedy::kCalibrate:
      return "choose its range anew from the calibration samples";
    case Remedy::kSixteenBits:
      return tensor.starts_with("past_")
                 ? "\"kv_bits\": 16 in the config"
                 : "the rule {\"pattern\": \"" + tensor + "\", \"bits\": 16} in the config";
    case Remedy::kRound:
      return "round the weight of " + module + " to nearest anew";
    case Remedy::kInt8Weight:
      return "the rule {\"pattern\": \"" + module + "\", \"weights\": \"int8\"} in the config";
  }
  return "";
}

namespace {

class Judge {
 public:
  Judge(const Measurement& measurement, double threshold)
      : measurement_(measurement), threshold_(threshold) {
    for (const TensorReport& report : measurement.tensors) {
      by_name_[report.tensor] = &report;
      if (std::any_of(report.inputs.begin(), report.inputs.end(),
                      [&](const std::string& input) { return Taints(input, report.layer); }))
        tainted_.insert(report.tensor);
    }
  }

  std::vector<Finding> Run() {
    std::vector<Finding> own, inherited;
    for (auto report = measurement_.tensors.rbegin(); report != measurement_.tensors.rend();
         ++report) {
      if (IsGuilty(*report)) {
        own.push_back(OwnFault(*report));
      } else if (IsBad(*report) || report->inherited.IsBelow(threshold_)) {
        inherited.push_back(Inherited(*report));
      }
    }
    std::reverse(inherited.begin(), inherited.end());
    for (Finding& finding : inherited) BlameFirst(own, finding);
    std::stable_sort(own.begin(), own.end(),
                     [](const Finding& a, const Finding& b) { return a.sqnr_db < b.sqnr_db; });
    own.insert(own.end(), inherited.begin(), inherited.end());
    return own;
  }

 private:
  bool IsBad(const TensorReport& report) const { return report.own.IsBelow(threshold_); }

  // Bad, though nothing before it in its layer is.
  bool IsGuilty(const TensorReport& report) const {
    return IsBad(report) && !tainted_.contains(report.tensor);
  }

  // Whether a reader in `layer` gets bad values: of what another layer made, its encoding alone
  // counts, since it is measured with float inputs to the layer.
  bool Taints(const std::string& input, int64_t layer) const {
    const auto found = by_name_.find(input);
    if (found == by_name_.end()) return false;
    const TensorReport& report = *found->second;
    if (report.layer != layer) return report.encoded.IsBelow(threshold_);
    return IsBad(report) || tainted_.contains(input);
  }

  bool HasNarrowInputs(const TensorReport& report) const {
    return std::any_of(report.inputs.begin(), report.inputs.end(), [&](const std::string& name) {
      const auto input = by_name_.find(name);
      return input != by_name_.end() && input->second->encoding.has_value() &&
             input->second->encoding->bits < 16;
    });
  }

  static Finding Start(const TensorReport& report, Kind kind) {
    const Agreement& agreement = kind == Kind::kOwn ? report.own : report.inherited;
    Finding out;
    out.tensor = report.tensor;
    out.layer = report.layer;
    out.kind = kind;
    out.cosine = agreement.cosine;
    out.sqnr_db = agreement.SqnrDb();
    out.readers = report.readers;
    return out;
  }

  Finding OwnFault(const TensorReport& report) const {
    Finding out = Start(report, Kind::kOwn);
    out.cause = CauseOf(report, HasNarrowInputs(report));
    out.reason = ReasonOf(out.cause, report);
    out.remedy = FirstRemedy(out.cause, report);
    out.fix = RemedyInWords(out.remedy, report.tensor);
    return out;
  }

  Finding Inherited(const TensorReport& report) const {
    Finding out = Start(report, Kind::kInherited);
    out.cause = Cause::kEarlier;
    return out;
  }

  // The first guilty tensor before it; `own` is from the last to the first.
  void BlameFirst(const std::vector<Finding>& own, Finding& finding) const {
    const TensorReport* report = by_name_.at(finding.tensor);
    for (const Finding& guilty : own) {
      if (by_name_.at(guilty.tensor) < report) finding.source = guilty.tensor;
    }
    if (finding.source.empty()) {
      finding.reason =
          "the errors of earlier layers add up; none of their tensors is at fault alone";
      finding.fix =
          "a better method or more bits for the weights (gptq, --auto), or \"kv_bits\": 16";
    } else {
      finding.reason = "inherited from " + finding.source;
      finding.fix = "repair " + finding.source;
    }
  }

  const Measurement& measurement_;
  const double threshold_;
  std::map<std::string, const TensorReport*> by_name_;
  std::set<std::string> tainted_;
};

}  // namespace

std::string_view KindName(Kind kind) { return kind == Kind::kOwn ? "own" : "inherited"; }

std::vector<Finding> FindGuilty(const Measurement& measurement, double threshold) {
  return Judge(measurement, threshold).Run();
}

Remedy NextRemedy(Cause cause, Remedy tried) {
  switch (cause) {
    case Cause::kSaturation:
    case Cause::kWideRange:
      return tried == Remedy::kCalibrate ? Remedy::kSixteenBits : Remedy::kNone;
    case Cause::kDeadScale:
    case Cause::kWeight:
      return tried == Remedy::kRound ? Remedy::kInt8Weight : Remedy::kNone;
    default:
      return Remedy::kNone;
  }
}

}  // namespace hexport::diagnose
