#include "ort/session_options.h"

#include <map>
#include <string>

#include "ort/qnn.h"

namespace hexport::ort {
namespace {

std::map<std::string, std::string> ConfigEntries(const SessionOptions& options) {
  std::map<std::string, std::string> entries;
  if (options.exact_qdq) {
    entries["session.disable_quant_qdq"] = "1";  // no fusion of DQ-op-Q into an integer kernel
    entries["session.disable_double_qdq_remover"] = "1";  // Q-DQ-Q-DQ rounds twice: keep both
  }
  if (!options.prepack) entries["session.disable_prepacking"] = "1";
  if (!options.spin) entries["session.intra_op.allow_spinning"] = "0";
  // Weights outside the arena: it never gives back what it rounds up.
  if (options.memory_arena) entries["session.use_device_allocator_for_initializers"] = "1";
  for (const auto& [key, value] : options.config_entries) entries[key] = value;
  return entries;
}

}  // namespace

Result<Handle<OrtSessionOptions>> MakeOrtOptions(Library& library, const SessionOptions& options) {
  const OrtApi& api = *library.api;
  const uint64_t mark = library.log.Mark();
  const auto check = [&](OrtStatus* status) {
    return ToStatus(library, status, "session options", mark);
  };
  OrtSessionOptions* raw = nullptr;
  HEXPORT_RETURN_IF_ERROR(check(api.CreateSessionOptions(&raw)));
  Handle<OrtSessionOptions> made(raw, api.ReleaseSessionOptions);
  HEXPORT_RETURN_IF_ERROR(check(api.SetSessionGraphOptimizationLevel(
      raw, options.optimize ? ORT_ENABLE_ALL : ORT_DISABLE_ALL)));
  HEXPORT_RETURN_IF_ERROR(check(api.SetSessionLogSeverityLevel(raw, ORT_LOGGING_LEVEL_ERROR)));
  if (options.intra_op_threads > 0) {
    HEXPORT_RETURN_IF_ERROR(check(api.SetIntraOpNumThreads(raw, options.intra_op_threads)));
  }
  if (!options.memory_arena) HEXPORT_RETURN_IF_ERROR(check(api.DisableCpuMemArena(raw)));
  for (const auto& [key, value] : ConfigEntries(options)) {
    HEXPORT_RETURN_IF_ERROR(check(api.AddSessionConfigEntry(raw, key.c_str(), value.c_str())));
  }
  if (options.provider == SessionOptions::Provider::kQnn) {
    HEXPORT_RETURN_IF_ERROR(AppendQnn(library, options, raw));
  }
  return made;
}

}  // namespace hexport::ort
