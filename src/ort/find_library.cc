#include "ort/find_library.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "ort/session.h"

namespace hexport::ort {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> kQnnFiles = {"libonnxruntime_providers_qnn.so",
                                                       "libQnnHtp.so", "libGenie.so"};

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string JoinRoots(const std::vector<fs::path>& roots) {
  std::string text;
  for (const fs::path& root : roots) {
    if (!text.empty()) text += ", ";
    text += root.string();
  }
  return text.empty() ? "nowhere" : text;
}

// Empty when `folder` has none.
fs::path OrtLibraryInFolder(const fs::path& folder) {
  for (std::string_view name : {"libonnxruntime.so", "libonnxruntime.so.1"}) {
    if (Exists(folder / name)) return folder / name;
  }
  std::vector<fs::path> versions;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with("libonnxruntime.so."))
      versions.push_back(it->path());
  }
  return versions.empty() ? fs::path() : *std::max_element(versions.begin(), versions.end());
}

fs::path ExecutableFolder() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

}  // namespace

std::vector<fs::path> CandidateRoots(const char* variable, const fs::path& configured,
                                     const fs::path& executable_folder,
                                     const std::vector<std::string>& relative) {
  if (variable != nullptr && *variable != '\0') return {fs::path(variable)};
  std::vector<fs::path> roots;
  if (!configured.empty()) roots.push_back(configured);
  if (executable_folder.empty()) return roots;
  for (const std::string& path : relative)
    roots.push_back((executable_folder / path).lexically_normal());
  return roots;
}

Result<fs::path> FindOrtLibraryIn(const std::vector<fs::path>& roots) {
  for (const fs::path& root : roots) {
    for (const fs::path& folder : {root / "lib", root, root / "capi"}) {
      if (fs::path found = OrtLibraryInFolder(folder); !found.empty()) return found;
    }
  }
  return Unavailable(
      "ONNX Runtime: expected libonnxruntime.so* in lib/, capi/ or directly in one of: " +
      JoinRoots(roots) +
      "; run tools/setup.sh, or set HEXPORT_ORT_ROOT to the folder that holds it");
}

Result<fs::path> FindQnnFolderIn(const std::vector<fs::path>& roots) {
  std::string incomplete;
  for (const fs::path& root : roots) {
    for (const fs::path& folder : {root, root / "onnxruntime_qnn", root / "lib"}) {
      std::string missing;
      size_t found = 0;
      for (std::string_view file : kQnnFiles) {
        if (Exists(folder / file)) {
          ++found;
        } else {
          missing += (missing.empty() ? "" : ", ") + std::string(file);
        }
      }
      if (missing.empty()) return folder;
      if (found > 0 && incomplete.empty())
        incomplete = " (" + folder.string() + " lacks " + missing + ")";
    }
  }
  return Unavailable(
      "Qualcomm QNN: expected libonnxruntime_providers_qnn.so, libQnnHtp.so and libGenie.so of "
      "the onnxruntime-qnn wheel in one of: " +
      JoinRoots(roots) + incomplete +
      "; run tools/setup.sh, or set HEXPORT_QNN_ROOT to the wheel's onnxruntime_qnn folder");
}

Result<fs::path> FindOrtLibrary() {
  return FindOrtLibraryIn(CandidateRoots(std::getenv("HEXPORT_ORT_ROOT"), HEXPORT_DEFAULT_ORT_ROOT,
                                         ExecutableFolder(), {"../../deps/ort", "../lib"}));
}

Result<fs::path> FindQnnFolder() {
  return FindQnnFolderIn(CandidateRoots(std::getenv("HEXPORT_QNN_ROOT"), HEXPORT_DEFAULT_QNN_ROOT,
                                        ExecutableFolder(),
                                        {"../../deps/qnn/onnxruntime_qnn", "../lib"}));
}

std::string VendorLibraryPath() {
  Result<fs::path> folder = FindQnnFolder();
  if (!folder.ok()) return "";
  std::error_code error;
  fs::path absolute = fs::absolute(*folder, error).lexically_normal();
  if (absolute.filename().empty()) absolute = absolute.parent_path();  // a trailing slash
  std::string path =
      absolute.string() + ":" + (absolute.parent_path() / "onnxruntime_qnn.libs").string();
  const char* before = std::getenv("LD_LIBRARY_PATH");
  if (before != nullptr && *before != '\0') path += ":" + std::string(before);
  return path;
}

}  // namespace hexport::ort
