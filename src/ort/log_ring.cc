#include "ort/log_ring.h"

#include <algorithm>

namespace hexport::ort {

void LogRing::Add(std::string_view line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (lines_.size() == capacity_) lines_.pop_front();
  lines_.emplace_back(line);
  ++added_;
}

uint64_t LogRing::Mark() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return added_;
}

std::vector<std::string> LogRing::LinesSince(uint64_t mark) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t wanted = added_ > mark ? added_ - mark : 0;
  const auto count = static_cast<std::ptrdiff_t>(std::min<uint64_t>(wanted, lines_.size()));
  return {lines_.end() - count, lines_.end()};
}

}  // namespace hexport::ort
