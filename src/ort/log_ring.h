// The last lines ONNX Runtime and its providers logged, kept for error messages instead of being
// printed.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace hexport::ort {

// Thread-safe; holds at most `capacity` lines.
class LogRing {
 public:
  explicit LogRing(size_t capacity) : capacity_(capacity) {}
  void Add(std::string_view line);
  // Number of lines ever added: a point in time for LinesSince.
  uint64_t Mark() const;
  // Lines added after `mark` that are still held, oldest first.
  std::vector<std::string> LinesSince(uint64_t mark) const;

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::deque<std::string> lines_;
  uint64_t added_ = 0;
};

}  // namespace hexport::ort
