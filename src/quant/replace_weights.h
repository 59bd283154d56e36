// A store of quantized weights with some linears rounded anew.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"
#include "quant/weights.h"

namespace hexport::quant {

// Writes `store` to `path`, but each linear named in `replaced` (LinearWeight::name) is rounded to
// nearest from `checkpoint`, in the format that is given there. `graph` is the whole decoder.
// `path` may be the file that `store` has open: its mapping stays. Errors: those of reading and
// writing.
Status ReplaceWeights(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
                      const WeightStore& store,
                      const std::map<std::string, WeightOptions>& replaced,
                      const std::filesystem::path& path, Progress& progress);

}  // namespace hexport::quant
