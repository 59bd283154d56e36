#include "ort/qnn.h"

#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace hexport::ort {
namespace {

constexpr const char* kProviderName = "QNNExecutionProvider";

Status RegisterOnce(Library& library, const std::filesystem::path& folder) {
  static std::mutex mutex;
  static bool registered = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (registered) return OkStatus();
  const std::filesystem::path plugin = folder / "libonnxruntime_providers_qnn.so";
  const uint64_t mark = library.log.Mark();
  OrtStatus* status =
      library.api->RegisterExecutionProviderLibrary(library.env, kProviderName, plugin.c_str());
  if (Status failed = ToStatus(library, status, plugin.string(), mark); !failed.ok()) {
    return Unavailable(failed.message() + "; expected a QNN plugin that fits this ONNX Runtime");
  }
  registered = true;
  return OkStatus();
}

}  // namespace

Status AppendQnn(Library& library, const SessionOptions& options, OrtSessionOptions* target) {
  HEXPORT_ASSIGN_OR_RETURN(const std::filesystem::path folder, FindQnnFolder());
  HEXPORT_RETURN_IF_ERROR(RegisterOnce(library, folder));
  const uint64_t mark = library.log.Mark();
  const OrtEpDevice* const* all = nullptr;
  size_t count = 0;
  HEXPORT_RETURN_IF_ERROR(
      ToStatus(library, library.api->GetEpDevices(library.env, &all, &count), "QNN devices", mark));
  std::vector<const OrtEpDevice*> devices;
  for (size_t i = 0; i < count; ++i) {
    if (std::strcmp(library.api->EpDevice_EpName(all[i]), kProviderName) == 0)
      devices.push_back(all[i]);
  }
  if (devices.empty()) {
    return Unavailable("QNN devices: expected at least one device of " +
                       std::string(kProviderName) + ", got none of " + std::to_string(count));
  }
  std::map<std::string, std::string> merged = options.qnn_options;
  merged.try_emplace("backend_path", (folder / "libQnnHtp.so").string());
  std::vector<const char*> keys, values;
  for (const auto& [key, value] : merged) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
  OrtStatus* status = library.api->SessionOptionsAppendExecutionProvider_V2(
      target, library.env, devices.data(), devices.size(), keys.data(), values.data(), keys.size());
  return ToStatus(library, status, "QNN provider options", mark);
}

}  // namespace hexport::ort
