// The weights of a QDQ graph as the store that they came from.
#pragma once

#include <filesystem>

#include "base/status.h"
#include "graph/graph.h"

namespace hexport::quant {

// Writes the codes and scales of `qdq`, a whole graph of BuildQdq with its embedding, to `path`, a
// file for WeightStore::Open: what is quantized anew from it is what the graph holds. One tensor in
// memory at a time. Errors: kInvalidArgument (no codes in the graph), those of the initializers'
// sources and of writing.
Status WriteStoredWeights(const graph::Graph& qdq, const std::filesystem::path& path);

}  // namespace hexport::quant
