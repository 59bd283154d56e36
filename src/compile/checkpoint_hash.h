// One SHA-256 for a checkpoint of any number of files.
#pragma once

#include <string>

#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace hexport::compile {

// SHA-256 over "<file name> <SHA-256 of the file>\n" of every file of the checkpoint, in its order:
// the folder may move.
Result<std::string> HashCheckpoint(const Checkpoint& checkpoint);

}  // namespace hexport::compile
