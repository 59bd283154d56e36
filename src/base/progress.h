// Progress of long work: stages with steps. The library reports; the app draws.
#pragma once

#include <cstdint>
#include <string_view>

namespace hexport {

class Progress {
 public:
  virtual ~Progress() = default;
  // `done` of `total` steps of `stage` ("calibrate", "compile prompt_ar128_cl512_1_of_1"); total 0
  // = unknown.
  virtual void Update(std::string_view stage, int64_t done, int64_t total) = 0;
  // One line of news worth keeping ("reused weights.data from an earlier run").
  virtual void Note(std::string_view line) = 0;
};

// Reports nothing. Never null: pass this where nobody watches.
Progress& NullProgress();

}  // namespace hexport
