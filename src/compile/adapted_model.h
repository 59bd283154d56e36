// A base model with adapters applied beside its weights, not merged into them: what a merged model
// is compared with. Not for several threads at once: the embedding's change is loaded on first use.
#pragma once

#include <memory>

#include "adapter/adapter.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"

namespace hexport::compile {

// Borrows both arguments, which must outlive it.
class AdaptedModel {
 public:
  // `merged`: the merged model, for its configuration and the names and shapes of its tensors
  // alone; no value is read from it.
  AdaptedModel(const Checkpoint& merged, const adapter::MatchedAdapters& adapters);
  ~AdaptedModel();

  // The base's values with the adapters' own tensors (modules_to_save, biases) in place of the
  // base's. Of the low-rank changes only those to the embedding, lm_head and biases are in it,
  // added in float32 to the rows as they are read.
  const Checkpoint& checkpoint() const;

  // Puts the low-rank changes of every linear layer into a graph that was built from checkpoint().
  // Errors: those of reading the adapters.
  Status Amend(decoder::DecoderGraph& graph) const;

 private:
  class View;
  const adapter::MatchedAdapters& adapters_;
  std::unique_ptr<View> view_;
};

}  // namespace hexport::compile
