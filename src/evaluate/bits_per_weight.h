// What the decoder's linear weights take to store: embedding and lm_head left out.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/status.h"
#include "bundle/manifest.h"
#include "checkpoint/checkpoint.h"
#include "quant/weights.h"

namespace hexport::evaluate {

// Sums over linears.
class WeightBits {
 public:
  void Add(int64_t elements, double bits) {
    elements_ += static_cast<double>(elements);
    bits_ += bits;
  }
  double per_weight() const { return elements_ > 0 ? bits_ / elements_ : 0; }

 private:
  double elements_ = 0, bits_ = 0;
};

// From the formats the checkpoint stores its linears in: a dtype's bits, or a ggml block's bytes
// over its elements. Errors: decoder::BuildDecoder's.
Result<double> CheckpointBitsPerWeight(const Checkpoint& checkpoint);

// From the codes and scales of the quantized graph, whatever mixture of formats it holds. A graph
// without codes is float: 32. Errors: graph::ReadOnnx's.
Result<double> BundleBitsPerWeight(const std::filesystem::path& bundle,
                                   const bundle::Manifest& manifest);

}  // namespace hexport::evaluate
