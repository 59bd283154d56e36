// A linear of a GPTQ or AWQ checkpoint: four tensors of packed integers and scales.
//
//                GPTQ                          AWQ (GEMM)
//   .qweight     I32 [in / c, out]             I32 [in, out / c]
//   .qzeros      I32 [groups, out / c]         I32 [groups, out / c]
//   .scales      float [groups, out]           float [groups, out]
//   .g_idx       I32 [in], may be absent       -
//
// c codes of 32 / c bits share a word, the lowest bits first: consecutive ones in GPTQ; in AWQ the
// outputs 0, 2, 4, 6, 1, 3, 5, 7 of each eight. Formats: https://github.com/AutoGPTQ/AutoGPTQ and
// https://github.com/casper-hansen/AutoAWQ; arXiv:2210.17323, arXiv:2306.00978.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "checkpoint/block_format.h"
#include "checkpoint/packed_config.h"
#include "checkpoint/packed_weight.h"

namespace hexport::checkpoint {

// One of the tensors. `bytes` are as many as dtype and shape say.
struct PackedPart {
  std::string dtype;  // safetensors'
  Shape shape;
  std::span<const std::byte> bytes;
  const MappedFile* file = nullptr;  // that holds `bytes`; pages are given back to it
};
struct PackedParts {
  std::optional<PackedPart> qweight, qzeros, scales, g_idx;
};

class PackedLinear {
 public:
  // `linear`: "model.layers.0.mlp.up_proj". shape: [out_features, in_features]. The bytes must
  // outlive this. Errors, which name the tensor, what it should be and what it is: kNotFound (a
  // tensor; g_idx with desc_act), kUnimplemented (dtype), kInvalidArgument (a group size that does
  // not divide the inputs), kDataLoss (shapes; a g_idx outside the groups).
  static Result<PackedLinear> Create(const PackedConfig& config, const std::string& linear,
                                     const Shape& shape, const PackedParts& parts);

  // Rows [first_row, first_row + out.size() / in_features), which must exist, of [out, in] as
  // floats: (code - zero point) * scale[g_idx], exact in float32 when scales are half precision.
  void ReadRows(int64_t first_row, std::span<float> out) const;
  // The whole linear.
  PackedWeight Unpack() const;
  std::string_view stored_dtype() const;  // "GPTQ-4", "AWQ-4", "GPTQ-8"
  uint64_t stored_bytes() const;

 private:
  PackedLinear() = default;
  uint32_t Code(int64_t k, int64_t n) const;
  uint32_t ZeroPoint(int64_t group, int64_t n) const;
  float Scale(int64_t group, int64_t n) const;
  uint32_t OfOutputs(const PackedPart& part, int64_t row, int64_t n) const;
  Status FindGroups(const std::string& linear);
  void Release() const;

  PackedConfig config_;
  int64_t in_ = 0, out_ = 0, groups_ = 0;
  PackedParts parts_;
  const BlockFormat* scale_format_ = nullptr;
  std::vector<int32_t> group_of_;  // [in]
};

}  // namespace hexport::checkpoint
