// The opened ONNX Runtime: its function table and the one environment of the process. Private to
// src/ort.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "ort/log_ring.h"

namespace hexport::ort {

struct Library {
  const OrtApiBase* base = nullptr;
  const OrtApi* api = nullptr;
  OrtEnv* env =
      nullptr;  // lives as long as the process: providers keep threads that outlive our statics
  LogRing log{200};
};

// Opens the library on the first call and returns the same object afterwards; a failure is not
// remembered. Thread-safe. Errors: kUnavailable (not found, cannot be loaded, too old).
Result<Library*> GetLibrary();

// OK for null, else ONNX Runtime's message after `context`; frees `status`. kDataLoss for a model
// that does not parse, kNotFound for a missing file, kUnimplemented, kInvalidArgument, else
// kInternal. Errors logged after `log_mark` are added.
Status ToStatus(Library& library, OrtStatus* status, std::string_view context, uint64_t log_mark);

// Owns an ONNX Runtime object: Handle<OrtSession>(pointer, api->ReleaseSession).
template <typename T>
using Handle = std::unique_ptr<T, void (*)(T*)>;

}  // namespace hexport::ort
