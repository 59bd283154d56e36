#include "ort/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "ort/session.h"

namespace hexport::ort {
namespace {

constexpr size_t kLogLinesInMessage = 8;

void ORT_API_CALL KeepLogLine(void* ring, OrtLoggingLevel severity, const char* category,
                              const char* /*log_id*/, const char* /*code_location*/,
                              const char* message) {
  if (severity < ORT_LOGGING_LEVEL_WARNING || message == nullptr) return;
  static_cast<LogRing*>(ring)->Add(std::string(category == nullptr ? "" : category) + ": " +
                                   message);
}

StatusCode FromOrtCode(OrtErrorCode code) {
  switch (code) {
    case ORT_NO_SUCHFILE:
      return StatusCode::kNotFound;
    case ORT_INVALID_PROTOBUF:
    case ORT_INVALID_GRAPH:
      return StatusCode::kDataLoss;
    case ORT_INVALID_ARGUMENT:
      return StatusCode::kInvalidArgument;
    case ORT_NOT_IMPLEMENTED:
      return StatusCode::kUnimplemented;
    default:
      return StatusCode::kInternal;
  }
}

Result<Library*> OpenLibrary() {
  HEXPORT_ASSIGN_OR_RETURN(const std::filesystem::path path, FindOrtLibrary());
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return Unavailable("ONNX Runtime: expected a library that loads on this system, got \"" +
                       std::string(why == nullptr ? "unknown error" : why) +
                       "\"; set HEXPORT_ORT_ROOT to a build for this computer");
  }
  using GetApiBase = const OrtApiBase*(ORT_API_CALL*)();
  auto get_api_base = reinterpret_cast<GetApiBase>(dlsym(handle, "OrtGetApiBase"));
  if (get_api_base == nullptr) {
    dlclose(handle);
    return Unavailable(path.string() +
                       ": expected the function OrtGetApiBase, got none; set HEXPORT_ORT_ROOT");
  }
  auto library = std::make_unique<Library>();
  library->base = get_api_base();
  library->api = library->base->GetApi(ORT_API_VERSION);
  if (library->api == nullptr) {
    std::string version = library->base->GetVersionString();
    dlclose(handle);
    return Unavailable(path.string() + ": expected ONNX Runtime 1." +
                       std::to_string(ORT_API_VERSION) + " or newer, got " + version +
                       "; run tools/setup.sh or set HEXPORT_ORT_ROOT");
  }
  OrtStatus* status = library->api->CreateEnvWithCustomLogger(
      KeepLogLine, &library->log, ORT_LOGGING_LEVEL_ERROR, "hexport", &library->env);
  HEXPORT_RETURN_IF_ERROR(ToStatus(*library, status, "ONNX Runtime environment", 0));
  return library.release();
}

}  // namespace

Result<Library*> GetLibrary() {
  static std::mutex mutex;
  static Library* library = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (library == nullptr) {
    HEXPORT_ASSIGN_OR_RETURN(library, OpenLibrary());
  }
  return library;
}

Status ToStatus(Library& library, OrtStatus* status, std::string_view context, uint64_t log_mark) {
  if (status == nullptr) return OkStatus();
  const StatusCode code = FromOrtCode(library.api->GetErrorCode(status));
  std::string message = std::string(context) + ": " + library.api->GetErrorMessage(status);
  library.api->ReleaseStatus(status);
  const std::vector<std::string> lines = library.log.LinesSince(log_mark);
  const size_t first = lines.size() - std::min(lines.size(), kLogLinesInMessage);
  for (size_t i = first; i < lines.size(); ++i) {
    if (message.find(lines[i]) == std::string::npos) message += "\n  log: " + lines[i];
  }
  return Status(code, std::move(message));
}

Result<std::string> OrtVersion() {
  HEXPORT_ASSIGN_OR_RETURN(Library* const library, GetLibrary());
  return std::string(library->base->GetVersionString());
}

}  // namespace hexport::ort
