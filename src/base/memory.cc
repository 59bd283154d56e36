#include "base/memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/file.h"

namespace hexport {

int64_t PeakRssBytes() {
  static constexpr std::string_view kField = "VmHWM:";
  const Result<std::string> status = ReadTextFile("/proc/self/status");
  if (!status.ok()) return 0;
  const size_t at = status->find(kField);
  if (at == std::string::npos) return 0;
  return std::strtoll(status->c_str() + at + kField.size(), nullptr, 10) * 1024;
}

bool ResetPeakRss() {
  const int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool written = write(fd, "5", 1) == 1;
  close(fd);
  return written;
}

}  // namespace hexport
