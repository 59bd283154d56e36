#include "compile/report.h"

#include <malloc.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/memory.h"

namespace hexport::compile {
namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

StageTimer::StageTimer(std::string name) : start_ns_(NowNs()) {
  report_.name = std::move(name);
  malloc_trim(0);  // what the stage before freed is not this one's memory
  ResetPeakRss();  // where the kernel refuses, the peak is that of the whole run so far: an upper
                   // bound
}

StageReport StageTimer::Finish() {
  report_.seconds = static_cast<double>(NowNs() - start_ns_) * 1e-9;
  report_.peak_rss_mb = static_cast<double>(PeakRssBytes()) / (1 << 20);
  return report_;
}

std::string ReportToJson(const BuildReport& report) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const StageReport& stage : report.stages) {
    nlohmann::ordered_json entry = {{"name", stage.name},
                                    {"seconds", stage.seconds},
                                    {"peak_rss_mb", stage.peak_rss_mb},
                                    {"child_peak_rss_mb", stage.child_peak_rss_mb},
                                    {"reused", stage.reused}};
    if (!stage.notes.empty()) entry["notes"] = stage.notes;
    stages.push_back(std::move(entry));
  }
  return nlohmann::ordered_json{{"hexport_version", report.hexport_version},
                                {"measured_on", "this computer; not a phone"},
                                {"seconds", report.seconds},
                                {"stages", std::move(stages)}}
             .dump(2) +
         "\n";
}

}  // namespace hexport::compile
