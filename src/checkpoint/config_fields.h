// Which fields of config.json hexport reads, which it knows to be harmless, and which it refuses.
// Private to src/checkpoint.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/json_fields.h"

namespace hexport::checkpoint {

// Refuses every field that hexport does not read for this architecture and whose name sounds like
// maths (rope, window, softcap, scale, norm, bias, experts, ...), unless its value says "off":
// null, false, or empty. A field that is not read is ignored by transformers too, or belongs to
// code that came with the checkpoint; either way the answers could differ from the trainer's.
// Returns the other unknown fields, in the order of the file. docs/architectures.md lists them all.
// Errors: kUnimplemented naming the field and its value.
Result<std::vector<std::string>> CheckConfigFields(const JsonFields& fields,
                                                   std::string_view architecture);

}  // namespace hexport::checkpoint
