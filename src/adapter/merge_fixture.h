// Opens, matches and merges tiny folders; tests only.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "adapter/adapter.h"
#include "adapter/base_tensors.h"
#include "adapter/merge.h"
#include "adapter/test_models.h"
#include "base/file.h"

namespace hexport::adapter {

struct Merged {
  MergeReport report;
  testing::TinyTensors tensors;
  nlohmann::json config;
};

class MergeTest : public ::testing::Test {
 protected:
  std::filesystem::path Base() const { return directory_ / "base"; }
  std::filesystem::path Out() const { return directory_ / "out"; }

  // Opens base and adapters and matches them; the parts live in the fixture.
  Status Match(std::vector<std::pair<std::filesystem::path, double>> adapters,
               const MatchOptions& options = {}, const BaseOptions& base_options = {}) {
    matched_.reset();
    adapters_.clear();
    HEXPORT_ASSIGN_OR_RETURN(
        base_, BaseTensors::Open(base_path_.empty() ? Base() : base_path_, base_options));
    std::vector<MatchedAdapters::Source> sources;
    for (const auto& [path, weight] : adapters) {
      HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<Adapter> adapter, Adapter::Open(path));
      sources.push_back({adapter.get(), weight});
      adapters_.push_back(std::move(adapter));
    }
    HEXPORT_ASSIGN_OR_RETURN(matched_, MatchedAdapters::Match(std::move(sources), *base_, options));
    return OkStatus();
  }

  Result<Merged> Merge(const MergeOptions& options = {}) {
    std::filesystem::remove_all(Out());
    std::filesystem::create_directories(Out());
    Merged merged;
    HEXPORT_ASSIGN_OR_RETURN(merged.report,
                             MergeInto(Out(), *base_, *matched_, options, NullProgress()));
    merged.tensors = testing::ReadFolder(Out());
    merged.config = nlohmann::json::parse(testing::Slurp(Out() / "config.json"));
    return merged;
  }

  // The usual case: the model and one adapter from memory.
  Result<Merged> MergeTiny(const testing::TinyModel& model, const testing::TinyAdapter& adapter,
                           const MergeOptions& options = {}, const MatchOptions& match = {}) {
    std::filesystem::remove_all(Base());
    std::filesystem::remove_all(directory_ / "adapter");
    testing::WriteModel(Base(), model);
    testing::WriteAdapter(directory_ / "adapter", adapter);
    HEXPORT_RETURN_IF_ERROR(Match({{directory_ / "adapter", 1.0}}, match));
    return Merge(options);
  }

  testing::TestDirectory directory_;
  std::filesystem::path base_path_;  // empty: Base()
  std::unique_ptr<BaseTensors> base_;
  std::vector<std::unique_ptr<Adapter>> adapters_;
  std::unique_ptr<MatchedAdapters> matched_;
};

// Largest |merged - (base + scale * product)|.
inline double MaxError(const testing::TinyTensor& merged, const testing::TinyTensor& base,
                       double scale, const std::vector<double>& product) {
  double worst = 0;
  for (size_t i = 0; i < product.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(merged.values[i]) -
                                     (static_cast<double>(base.values[i]) + scale * product[i])));
  }
  return worst;
}

}  // namespace hexport::adapter
