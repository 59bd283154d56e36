// hexport's session options turned into ONNX Runtime's. Private to src/ort.
#pragma once

#include "base/status.h"
#include "ort/library.h"
#include "ort/session.h"

namespace hexport::ort {

// Errors: kUnavailable (QNN plugin), kInvalidArgument (an entry that ONNX Runtime refuses).
Result<Handle<OrtSessionOptions>> MakeOrtOptions(Library& library, const SessionOptions& options);

}  // namespace hexport::ort
