// model.safetensors.index.json: which shard each tensor stands in.
// Format: https://huggingface.co/docs/safetensors (weight_map), as transformers writes it.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/status.h"

namespace hexport {

// Tensor name -> file name of its shard, which is in the index's own folder. `where` names the
// index in messages. Errors: kDataLoss (broken JSON), kInvalidArgument (no weight_map, or one that
// is not an object of plain file names).
Result<std::map<std::string, std::string>> ParseSafetensorsIndex(std::string_view json,
                                                                 const std::string& where);

}  // namespace hexport
