#include "diagnose/fix.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/file.h"
#include "quant/activation_groups.h"
#include "quant/channel_folds.h"
#include "quant/replace_weights.h"

namespace hexport::diagnose {
namespace {

namespace fs = std::filesystem;

// A tensor under repair costs at most two rounds; faults behind faults come to light one by one.
constexpr int kMostRounds = 8;

// The facts and weights that remedies change.
class Patient {
 public:
  Patient(const quant::QuantizedModel& model, Progress& progress)
      : model_(model), progress_(progress), facts_(model.facts()) {}

  Status Prepare() {
    decoder::DecoderOptions options;
    options.context_length = facts_.context_length;
    HEXPORT_ASSIGN_OR_RETURN(graph_, decoder::BuildDecoder(model_.weights(), options));
    groups_.emplace(graph_);
    for (const decoder::Activation& activation : graph_.activations) {
      is_activation_.insert(activation.name);
      members_[groups_->Root(activation.name)].push_back(activation.name);
    }
    return OkStatus();
  }

  // false: it changes nothing.
  Result<bool> Apply(const TensorReport& report, Remedy remedy) {
    switch (remedy) {
      case Remedy::kNone:
        return false;
      case Remedy::kIntegers:
        return LeaveFloat16(report);
      case Remedy::kCalibrate:
        return CalibrateAnew(report.tensor);
      case Remedy::kSixteenBits:
        return Widen(report.tensor);
      case Remedy::kRound:
        return Round(report.tensor, std::nullopt);
      case Remedy::kInt8Weight:
        return Round(report.tensor, quant::WeightFormat::kInt8);
    }
    return false;
  }

  // Everything but folds.safetensors, which no remedy changes.
  Status Write(const fs::path& folder) {
    HEXPORT_RETURN_IF_ERROR(
        WriteFileAtomically(folder / "quant.json", QuantizedFactsToJson(facts_)));
    return quant::ReplaceWeights(model_.weights(), graph_, model_.store(), rounded_,
                                 folder / "weights.safetensors", progress_);
  }

 private:
  std::vector<std::string> SharersOf(const std::string& tensor) const {
    return members_.at(groups_->Root(tensor));
  }

  // What makes a node that touches `tensor` compute in float16: the activations that it reads and
  // writes, as far as the config keeps them in float16.
  std::set<std::string> Float16Around(const std::string& tensor) const {
    std::set<std::string> out;
    const std::string& root = groups_->Root(tensor);
    for (const graph::Node& node : graph_.graph.nodes) {
      std::vector<std::string> touched = node.inputs;
      touched.insert(touched.end(), node.outputs.begin(), node.outputs.end());
      const bool near = std::any_of(touched.begin(), touched.end(), [&](const std::string& name) {
        return is_activation_.contains(name) && groups_->Root(name) == root;
      });
      if (!near) continue;
      for (const std::string& name : touched) {
        if (!is_activation_.contains(name)) continue;
        for (const std::string& sharer : SharersOf(name)) {
          if (quant::PlanActivation(facts_.config, sharer).float16) out.insert(sharer);
        }
      }
    }
    return out;
  }

  bool LeaveFloat16(const TensorReport& report) {
    const std::set<std::string> names = Float16Around(report.tensor);
    for (const std::string& name : names) facts_.config.activations.push_back({name, 16, false});
    if (!names.empty()) return true;
    // A word puts its nodes into float16: all of them.
    return std::erase_if(facts_.config.float16, [](const std::string& entry) {
             return entry == "norm" || entry == "softmax";
           }) > 0;
  }

  Result<bool> CalibrateAnew(const std::string& tensor) {
    if (ranges_.empty()) {
      HEXPORT_ASSIGN_OR_RETURN(
          quant::Calibration calibration,
          quant::Calibrate(model_.weights(), facts_.calibration, progress_,
                           quant::CalibrateOptionsOf(facts_.config, facts_.context_length)));
      ranges_ = std::move(calibration.ranges);
    }
    bool changed = false;
    for (const std::string& name : SharersOf(tensor)) {
      const auto fresh = ranges_.find(name);
      if (fresh == ranges_.end()) continue;
      quant::Range& range = facts_.ranges[name];
      changed |= range.min != fresh->second.min || range.max != fresh->second.max ||
                 range.exact.has_value();
      range = fresh->second;
    }
    return changed;
  }

  bool Widen(const std::string& tensor) {
    if (groups_->group(groups_->Root(tensor)).cache) {
      return std::exchange(facts_.config.kv_bits, 16) != 16;
    }
    const quant::ActivationPlan plan = quant::PlanActivation(facts_.config, tensor);
    if (plan.ruled && plan.bits == 16) return false;
    facts_.config.activations.push_back({tensor, 16, false});
    return true;
  }

  Result<bool> Round(const std::string& name, std::optional<quant::WeightFormat> format) {
    HEXPORT_ASSIGN_OR_RETURN(const quant::QuantizedWeight stored, model_.store().Describe(name));
    const quant::WeightOptions options{format.value_or(stored.format), stored.block_size};
    rounded_[name] = options;
    const std::string module = name.substr(0, name.rfind(".weight"));
    facts_.config.linears.push_back({module, options.format, std::nullopt, quant::Method::kRtn});
    for (quant::LinearLoss& loss : facts_.losses) {
      if (loss.name != name) continue;
      loss.options = options;
      loss.method = quant::Method::kRtn;
      loss.bits = quant::StoredBits(options, stored.in_features, stored.out_features);
      loss.relative_error = -1.0;
    }
    return true;
  }

  const quant::QuantizedModel& model_;
  Progress& progress_;
  quant::QuantizedFacts facts_;
  decoder::DecoderGraph graph_;
  std::optional<quant::ActivationGroups> groups_;
  std::set<std::string> is_activation_;
  std::map<std::string, std::vector<std::string>> members_;  // of groups, by their roots
  quant::RangeMap ranges_;                                   // calibrated anew, when needed
  std::map<std::string, quant::WeightOptions> rounded_;
};

const TensorReport* FindTensor(const Measurement& measurement, const std::string& tensor) {
  for (const TensorReport& report : measurement.tensors) {
    if (report.tensor == tensor) return &report;
  }
  return nullptr;
}

class Treatment {
 public:
  Treatment(const quant::QuantizedModel& model, const FixOptions& options,
            const std::vector<quant::TokenIds>& samples, Progress& progress)
      : model_(model),
        options_(options),
        samples_(samples),
        progress_(progress),
        patient_(model, progress) {}

  Result<FixResult> Run(const Measurement& before) {
    HEXPORT_RETURN_IF_ERROR(patient_.Prepare());
    HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<StagedDirectory> staged,
                             StagedDirectory::Create(options_.out, /*replace=*/false));
    if (model_.facts().folded)
      HEXPORT_RETURN_IF_ERROR(
          LinkOrCopy(options_.facts / quant::kFoldsFile, staged->path() / quant::kFoldsFile));
    const Measurement* latest = &before;
    for (int round = 1; round <= kMostRounds; ++round) {
      HEXPORT_ASSIGN_OR_RETURN(const bool changed, ApplyRemedies(*latest));
      if (!changed) break;
      HEXPORT_RETURN_IF_ERROR(patient_.Write(staged->path()));
      HEXPORT_RETURN_IF_ERROR(MeasureAgain(staged->path(), round));
      latest = &result_.after;
    }
    if (latest == &before) {
      return FailedPrecondition(options_.folder.string() +
                                ": expected a fault that can be repaired, got none; nothing is "
                                "written");
    }
    result_.findings = FindGuilty(result_.after, options_.threshold);
    HEXPORT_RETURN_IF_ERROR(staged->Commit());
    return std::move(result_);
  }

 private:
  struct Course {
    Cause cause = Cause::kOperator;
    Remedy next = Remedy::kNone;
  };

  // A new fault begins a course; one whose repair is not enough goes on with its own.
  Result<bool> ApplyRemedies(const Measurement& measurement) {
    bool changed = false;
    for (const Finding& finding : FindGuilty(measurement, options_.threshold)) {
      if (finding.kind != Kind::kOwn || courses_.contains(finding.tensor)) continue;
      if (finding.remedy == Remedy::kNone) continue;
      courses_[finding.tensor] = {finding.cause, finding.remedy};
      result_.repairs.push_back({finding.tensor, {}, finding.cosine, finding.cosine});
    }
    for (Repair& repair : result_.repairs) {
      const TensorReport* report = FindTensor(measurement, repair.tensor);
      Course& course = courses_.at(repair.tensor);
      if (report == nullptr || !report->own.IsBelow(options_.target)) continue;
      while (course.next != Remedy::kNone) {
        const Remedy remedy = course.next;
        course.next = NextRemedy(course.cause, remedy);
        HEXPORT_ASSIGN_OR_RETURN(const bool applied, patient_.Apply(*report, remedy));
        if (!applied) continue;
        repair.remedies.push_back(remedy);
        changed = true;
        break;
      }
    }
    return changed;
  }

  Status MeasureAgain(const fs::path& folder, int round) {
    HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<quant::QuantizedModel> repaired,
                             quant::QuantizedModel::Open(folder));
    HEXPORT_ASSIGN_OR_RETURN(result_.after,
                             Measure(SubjectOf(*repaired), samples_,
                                     "measure repair " + std::to_string(round), progress_));
    for (Repair& repair : result_.repairs) {
      if (const TensorReport* report = FindTensor(result_.after, repair.tensor))
        repair.cosine_after = report->own.cosine;
    }
    return OkStatus();
  }

  const quant::QuantizedModel& model_;
  const FixOptions& options_;
  const std::vector<quant::TokenIds>& samples_;
  Progress& progress_;
  Patient patient_;
  std::map<std::string, Course> courses_;
  FixResult result_;
};

}  // namespace

Result<FixResult> Fix(const quant::QuantizedModel& model, const FixOptions& options,
                      const Measurement& before, const std::vector<quant::TokenIds>& samples,
                      Progress& progress) {
  return Treatment(model, options, samples, progress).Run(before);
}

}  // namespace hexport::diagnose
