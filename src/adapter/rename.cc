#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "adapter/matched_adapters.h"

namespace hexport::adapter {
namespace {

// Of a name, the endings after each dot, longest first, the name itself included.
std::vector<std::string_view> Endings(std::string_view name) {
  std::vector<std::string_view> endings{name};
  for (size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    endings.push_back(name.substr(dot + 1));
  }
  return endings;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> SuggestRename(
    const std::vector<std::string>& unmatched, const std::vector<BaseTensor>& base) {
  // "" for an ending that two tensors share: it proves nothing.
  std::map<std::string_view, std::string_view> by_ending;
  for (const BaseTensor& tensor : base) {
    for (const std::string_view ending : Endings(tensor.name)) {
      const auto [found, is_new] = by_ending.emplace(ending, tensor.name);
      if (!is_new) found->second = {};
    }
  }
  std::map<std::pair<std::string, std::string>, int64_t> votes;
  for (const std::string& name : unmatched) {
    for (const std::string_view ending : Endings(name)) {
      const auto found = by_ending.find(ending);
      if (found == by_ending.end() || found->second.empty()) continue;
      const std::string from = name.substr(0, name.size() - ending.size());
      const std::string to(found->second.substr(0, found->second.size() - ending.size()));
      if (from != to) ++votes[{from, to}];
      break;
    }
  }
  std::vector<std::pair<std::pair<std::string, std::string>, int64_t>> sorted(votes.begin(),
                                                                              votes.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  std::vector<std::pair<std::string, std::string>> rename;
  std::set<std::string> taken;
  for (const auto& [pair, count] : sorted) {
    if (taken.insert(pair.first).second) rename.push_back(pair);
  }
  return rename;
}

std::vector<std::pair<std::string, std::string>> Matched::SuggestedRename() const {
  return SuggestRename(unmatched_modules_, base_->tensors());
}

}  // namespace hexport::adapter
