// One hash for a base model, whatever files its tensors stand in.
#pragma once

#include <string>

#include "adapter/base_tensors.h"

namespace hexport::adapter {

// SHA-256 over the lines "<name> <dtype> <shape> <SHA-256 of the bytes>\n" of all tensors, sorted
// by name, shapes as "[2, 3]": the same for one file and for shards. Of a GGUF the bytes are those
// of the values as float32 and the dtype is the stored one. Errors: those of reading.
Result<std::string> HashBase(const BaseTensors& base);

}  // namespace hexport::adapter
