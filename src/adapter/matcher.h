// Builds a Matched step by step; private to this folder.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/matched_adapters.h"
#include "checkpoint/json_fields.h"

namespace hexport::adapter {

class Matcher {
 public:
  Matcher(std::vector<MatchedAdapters::Source> sources, const BaseTensors& base,
          const MatchOptions& options);
  Result<std::unique_ptr<MatchedAdapters>> Run();

 private:
  // One adapter's tensors of one module.
  struct Module {
    std::string path;  // as in the adapter, for its patterns
    const AdapterTensor *a = nullptr, *b = nullptr, *magnitude = nullptr, *bias = nullptr;
  };

  Status Prepare();
  Status CheckSources() const;
  Status OpenInitialAdapter();
  Status AddSource(const MatchedAdapters::Source& source);
  Status AddModule(const MatchedAdapters::Source& source, const Module& module);
  Status AddLoraBias(const MatchedAdapters::Source& source, const Module& module, double scale);
  Status AddWhole(const MatchedAdapters::Source& source, const AdapterTensor& tensor);
  Status AddTokenRows(const MatchedAdapters::Source& source, const AdapterTensor& tensor);
  Status FindInitial(const MatchedAdapters::Source& source, const Module& module, double scale,
                     Change::LowRankPart& part) const;
  Result<int64_t> InterleavedHeads(const AdapterTensor& b) const;
  Status WarnOfUntargeted(const MatchedAdapters::Source& source,
                          const std::vector<std::string>& modules);

  // Sizes that only stand firm once every adapter has been read.
  Status CheckSizes();
  // Decides which of embed_tokens and lm_head become tensors of their own (tied_head.cc).
  Status SettleTiedHead();
  Result<bool> SameChange(const Target& embed, const Target& head) const;
  // New biases need their neighbours and a field of config.json (new_biases.cc).
  Status SettleNewBiases();
  void Publish();

  // The module's path after renaming.
  std::string Renamed(const std::string& module) const;
  // The target with this name: of the base, the head of a tied model, or a new bias of a module
  // that the base has. nullptr: there is none.
  Target* FindTarget(const std::string& name);
  void NoteKey(const AdapterTensor& tensor, const Target* target, const std::string& parameter);
  void Warn(std::string line) { matched_->warnings_.push_back(std::move(line)); }

  std::unique_ptr<Matched> matched_ = std::make_unique<Matched>();
  const BaseTensors& base_;
  const MatchOptions& options_;
  nlohmann::json config_;
  std::map<std::string, Target> targets_;  // those with changes, by name; values_of as in the base
  std::string embed_name_, head_name_;     // empty: there is none
  bool tied_ = false, head_stored_ = false;
  bool ensure_tying_ = false;
};

}  // namespace hexport::adapter
