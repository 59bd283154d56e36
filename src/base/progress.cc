#include "base/progress.h"

namespace hexport {
namespace {

class SilentProgress final : public Progress {
 public:
  void Update(std::string_view, int64_t, int64_t) override {}
  void Note(std::string_view) override {}
};

}  // namespace

Progress& NullProgress() {
  static SilentProgress progress;
  return progress;
}

}  // namespace hexport
