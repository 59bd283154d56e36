// RoPE's parameters from config.json, in every spelling that transformers 4 and 5 write. Private to
// src/checkpoint.
#pragma once

#include "base/status.h"
#include "checkpoint/json_fields.h"
#include "checkpoint/model_config.h"

namespace hexport::checkpoint {

// What an architecture's config class of transformers has for fields that are absent.
struct RopeDefaults {
  double rope_theta = 10000.0;
  double rope_local_base_freq = 0.0;  // above 0: sliding layers have a RoPE of their own
  bool partial_rotary = false;        // partial_rotary_factor is read; elsewhere it must be 1
  // Above 0 (Phi-3): the default of the field original_max_position_embeddings, which then stands
  // beside rope_scaling and goes before the one within; types "su" and "yarn" mean longrope.
  int64_t original_max_position_embeddings = 0;
};

// Fills config.rope and, where sliding layers have their own, config.local_rope. head_dim,
// max_position_embeddings and sliding_layers must be set. Reads rope_theta, rope_scaling (`type` or
// `rope_type`), rope_parameters (flat, or by layer type), rope_local_base_freq,
// partial_rotary_factor and original_max_position_embeddings. Type "dynamic" (NTK) is no scaling:
// it changes nothing up to max_position_embeddings, and no graph is longer. Errors:
// kInvalidArgument (missing or mistyped field, named), kUnimplemented (an unknown rope type or
// field of it, two spellings that differ).
Status ParseRope(const JsonFields& fields, const RopeDefaults& defaults, ModelConfig& config);

// The factor of cosines and sines when the file has none. Yarn: 0.1 ln(factor) + 1, longrope:
// sqrt(1 + ln(factor) / ln(original length)); 1 when nothing is stretched.
double DefaultYarnAttentionFactor(double factor, double mscale, double mscale_all_dim);
double DefaultLongropeAttentionFactor(double factor, int64_t original_length);

}  // namespace hexport::checkpoint
