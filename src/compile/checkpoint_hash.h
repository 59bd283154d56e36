// One SHA-256 for a checkpoint of any number of files.
#pragma once

#include <string>

#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace hexport::compile {

// SHA-256 over "<file name> <SHA-256 of the file>\n" of every file of the checkpoint, in its order:
// the folder may move.
Result<std::string> HashCheckpoint(const Checkpoint& checkpoint);

// kFailedPrecondition with `path` (the checkpoint), `made` ("this bundle was built from") and
// `advice` when its hash is not `sha256`.
Status CheckHash(const Checkpoint& checkpoint, const std::string& sha256, const std::string& path,
                 const std::string& made, const std::string& advice);

}  // namespace hexport::compile
