#include "diagnose/json_report.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace hexport::diagnose {
namespace {

using nlohmann::ordered_json;

ordered_json LayerToJson(int64_t layer, int64_t layers) {
  return layer >= 0 && layer < layers ? ordered_json(layer) : ordered_json(nullptr);
}

// The head is the last part that was measured.
int64_t LayersOf(const Measurement& measurement) {
  return measurement.tensors.empty() ? 0 : measurement.tensors.back().layer;
}

ordered_json FindingsToJson(const std::vector<Finding>& findings, int64_t layers) {
  ordered_json out = ordered_json::array();
  for (const Finding& finding : findings) {
    out.push_back({{"tensor", finding.tensor},
                   {"layer", LayerToJson(finding.layer, layers)},
                   {"kind", KindName(finding.kind)},
                   {"cosine", finding.cosine},
                   {"sqnr_db", finding.sqnr_db},
                   {"readers", finding.readers},
                   {"reason", finding.reason},
                   {"fix", finding.fix}});
  }
  return out;
}

ordered_json ToJson(const Agreement& agreement) {
  return {{"cosine", agreement.cosine}, {"sqnr_db", agreement.SqnrDb()}};
}

ordered_json ToJson(const TensorReport& report, int64_t layers) {
  ordered_json out = {{"tensor", report.tensor},
                      {"layer", LayerToJson(report.layer, layers)},
                      {"own", ToJson(report.own)},
                      {"inherited", ToJson(report.inherited)}};
  if (report.histogram.count() == 0) return out;  // a weight
  out["min"] = report.seen.min;
  out["max"] = report.seen.max;
  if (report.float16) out["float16"] = true;
  if (report.encoding.has_value()) {
    const quant::Range ends = quant::EndsOf(*report.encoding);
    out["bits"] = report.encoding->bits;
    out["encoding_min"] = ends.min;
    out["encoding_max"] = ends.max;
  }
  if (report.peak_channel >= 0) {
    out["peak_channel"] = report.peak_channel;
    out["peak"] = report.peak;
    out["median_peak"] = report.median_peak;
  }
  out["histogram"] =
      ordered_json::parse(quant::HistogramToJson(report.histogram), nullptr, false)["bins"];
  return out;
}

void AddMeasurement(const Measurement& measurement, const std::vector<Finding>& findings,
                    bool every_tensor, ordered_json& out) {
  const int64_t layers = LayersOf(measurement);
  out["logits"] = {{"cosine", measurement.logits_cosine}, {"top1", measurement.top1}};
  out["flagged"] = IsFlagged(measurement);
  out["findings"] = FindingsToJson(findings, layers);
  if (!every_tensor) return;
  ordered_json& tensors = out["tensors"] = ordered_json::array();
  for (const TensorReport& report : measurement.tensors) tensors.push_back(ToJson(report, layers));
}

ordered_json RepairsToJson(const std::vector<Repair>& repairs) {
  ordered_json out = ordered_json::array();
  for (const Repair& repair : repairs) {
    ordered_json remedies = ordered_json::array();
    for (const Remedy remedy : repair.remedies)
      remedies.push_back(RemedyInWords(remedy, repair.tensor));
    out.push_back({{"tensor", repair.tensor},
                   {"remedies", std::move(remedies)},
                   {"cosine_before", repair.cosine_before},
                   {"cosine_after", repair.cosine_after}});
  }
  return out;
}

}  // namespace

std::string DiagnosisToJson(const DiagnoseOptions& options, const Diagnosis& diagnosis,
                            bool every_tensor) {
  ordered_json out = {{"target", options.target.string()},
                      {"samples", diagnosis.measurement.samples},
                      {"tokens", diagnosis.measurement.tokens},
                      {"threshold", options.threshold}};
  AddMeasurement(diagnosis.measurement, diagnosis.findings, every_tensor, out);
  if (diagnosis.fix.has_value()) {
    out["fixed"] = diagnosis.fixed.string();
    out["repairs"] = RepairsToJson(diagnosis.fix->repairs);
    AddMeasurement(diagnosis.fix->after, diagnosis.fix->findings, every_tensor, out["after"]);
  }
  return out.dump();
}

}  // namespace hexport::diagnose
