// An AIMET encodings file as what a decoder is quantized with.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"
#include "quant/encodings_file.h"
#include "quant/quant_config.h"

namespace hexport::quant {

struct ImportedEncodings {
  // Of every activation. Those that the file names, and norm weights and biases, have Range::exact.
  RangeMap ranges;
  // The file's widths as rules after those of the config that was given: 8 bit activations, float16
  // ones, bits of the cache, the formats of linears.
  QuantConfig config;
  int64_t used = 0;  // encodings of the file that are in effect
};

// `graph`: the whole decoder whose values the file names, with the weights that it was made for
// (rotated or folded as those were). Errors: FindingsStatus's of CheckEncodings; kInvalidArgument
// naming a tensor whose encoding the NPU's graph cannot have: other bits than 8 or 16 of an
// activation, a cache of two widths or not symmetric, an embedding or norm weight that is not 16
// bit per tensor, a residual that enters layer 0 otherwise than the embedding is stored, a weight
// that is not symmetric or in none of int8, int4 and LPBQ.
Result<ImportedEncodings> ImportEncodings(const EncodingsFile& file,
                                          const decoder::DecoderGraph& graph,
                                          const QuantConfig& config);

// Writes the store of WeightStore::Open to `path`: every weight rounded to nearest on the grid that
// the file gives it. Errors: those above, of reading and writing; kInvalidArgument naming the first
// linear with more than 5 % of its weights beyond its grid, which is then one of another model.
Status WriteOnGrids(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
                    const EncodingsFile& file, const std::filesystem::path& path,
                    Progress& progress);

}  // namespace hexport::quant
