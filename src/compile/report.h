// report.json: what each stage of a build took. Times are this computer's, never a phone's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hexport::compile {

struct StageReport {
  std::string name;
  double seconds = 0;
  double peak_rss_mb = 0;        // of hexport itself during the stage (MiB)
  double child_peak_rss_mb = 0;  // of the vendor child; 0 when the stage has none
  bool reused = false;           // taken from an earlier run
  std::vector<std::string> notes;
};

struct BuildReport {
  std::string hexport_version;
  std::vector<StageReport> stages;
  double seconds = 0;
};

std::string ReportToJson(const BuildReport& report);

// Measures one stage from construction to Finish().
class StageTimer {
 public:
  explicit StageTimer(std::string name);
  StageReport& report() { return report_; }
  StageReport Finish();

 private:
  StageReport report_;
  int64_t start_ns_ = 0;
};

}  // namespace hexport::compile
