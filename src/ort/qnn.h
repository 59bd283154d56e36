// The QNN provider plugin. Private to src/ort.
#pragma once

#include "base/status.h"
#include "ort/library.h"
#include "ort/session.h"

namespace hexport::ort {

// Registers the plugin (once a process) and adds all its devices to `target` with
// `options.qnn_options` and backend_path (unless given). Errors: kUnavailable (plugin missing or
// refused), kInternal.
Status AppendQnn(Library& library, const SessionOptions& options, OrtSessionOptions* target);

}  // namespace hexport::ort
