#include "ort/qnn_version.h"

#include <filesystem>
#include <memory>

#include "base/file.h"
#include "base/mapped_file.h"
#include "ort/session.h"

namespace hexport::ort {
namespace {

constexpr size_t kMinBuildDigits = 9;

size_t CountDigits(std::string_view text) {
  size_t count = 0;
  while (count < text.size() && text[count] >= '0' && text[count] <= '9') ++count;
  return count;
}

// Length of "2.51.0.260929181845" at the start of `text`, or 0.
size_t BuildIdLength(std::string_view text) {
  size_t length = 0;
  for (int part = 0; part < 4; ++part) {
    if (part > 0) {
      if (length >= text.size() || text[length] != '.') return 0;
      ++length;
    }
    const size_t digits = CountDigits(text.substr(length, 32));
    if (digits == 0 || (part == 3 ? digits < kMinBuildDigits : digits > 3)) return 0;
    length += digits;
  }
  return length;
}

}  // namespace

std::string FindBuildId(std::string_view bytes) {
  for (size_t at = bytes.find('v'); at != std::string_view::npos; at = bytes.find('v', at + 1)) {
    const std::string_view rest = bytes.substr(at + 1);
    if (const size_t length = BuildIdLength(rest); length > 0)
      return std::string(rest.substr(0, length));
  }
  return "";
}

std::string VersionOfPackageInfo(std::string_view python) {
  const size_t key = python.find("qnn_version");
  if (key == std::string_view::npos) return "";
  const size_t open = python.find_first_of("'\"\n", key);
  if (open == std::string_view::npos || python[open] == '\n') return "";
  const size_t close = python.find(python[open], open + 1);
  return close == std::string_view::npos ? ""
                                         : std::string(python.substr(open + 1, close - open - 1));
}

Result<std::string> QnnVersion() {
  HEXPORT_ASSIGN_OR_RETURN(const std::filesystem::path folder, FindQnnFolder());
  if (const auto library = MappedFile::Open(folder / "libQnnHtp.so"); library.ok()) {
    const auto bytes = (*library)->bytes();
    std::string id = FindBuildId({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    if (!id.empty()) return id;
  }
  if (const auto info = ReadTextFile(folder / "build_and_package_info.py"); info.ok()) {
    std::string version = VersionOfPackageInfo(*info);
    if (!version.empty()) return version;
  }
  return std::string("unknown");
}

}  // namespace hexport::ort
