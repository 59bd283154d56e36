// Which tensors an architecture consists of, by Hugging Face's names.
#pragma once

#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "checkpoint/model_config.h"

namespace hexport::checkpoint {

struct ExpectedTensor {
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  Shape shape;
};

// Every tensor that a decoder of this config reads, embedding first, layers in order, then
// model.norm and, when embeddings are not tied, lm_head. `config` must be valid (ValidateConfig).
std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config);

}  // namespace hexport::checkpoint
