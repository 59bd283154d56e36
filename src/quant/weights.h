// Quantized weights: one representation for the NPU (DequantizeLinear patterns) and the CPU
// (MatMulNBits).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "decoder/decoder.h"
#include "quant/encoding.h"

namespace hexport::quant {

enum class WeightFormat { kInt8, kInt4, kLpbq };
// "int8", "int4", "lpbq". kInvalidArgument listing them.
Result<WeightFormat> ParseWeightFormat(std::string_view text);
std::string_view WeightFormatName(WeightFormat format);

struct WeightOptions {
  WeightFormat format = WeightFormat::kInt8;
  int block_size = 32;  // LPBQ only: 16, 32 or 64 along in_features
};

// real[k, n] = codes[k, n] * scale(k, n), symmetric.
//   int8 / int4 per channel: scale = channel_scales[n].
//   LPBQ: scale = block_scales[k / block_size, n] * channel_scales[n], integer block scales 1..16,
//   codes -8..7.
struct QuantizedWeight {
  WeightFormat format = WeightFormat::kInt8;
  int64_t in_features = 0, out_features = 0;
  int block_size = 0;
  std::vector<int8_t> codes;          // [in_features, out_features]
  std::vector<float> channel_scales;  // [out_features]
  std::vector<uint8_t> block_scales;  // [in_features / block_size, out_features]; empty unless LPBQ
};

// Round to nearest, ties to even; scale = max|w| / 127 (or / 7; LPBQ: the integer near it with the
// least squared error); finite and positive for an
// all-zero channel. weights: [in_features, out_features] row-major. importance: [in_features], of
// an input feature's errors when LPBQ's integers are chosen (its mean square, say); empty: all
// alike. Errors: kDataLoss (NaN/Inf), kInvalidArgument (block does not divide).
Result<QuantizedWeight> QuantizeRtn(std::span<const float> weights, int64_t in_features,
                                    int64_t out_features, const WeightOptions& options,
                                    std::span<const float> importance = {});
std::vector<float> Dequantize(const QuantizedWeight& weight);
// Bits that codes and scales take: 8 or 4 a code, 8 a block scale, 32 a channel scale.
int64_t StoredBits(const WeightOptions& options, int64_t in_features, int64_t out_features);
int64_t StoredBits(const QuantizedWeight& weight);

// LPBQ's two levels of scale for one output channel: channel = largest / 16, integers = block /
// channel to the nearest in 1..16. An all-zero channel gets a small positive channel scale.
struct BlockScales {
  float channel = 0.0f;
  std::vector<uint8_t> integers;
};
BlockScales SplitBlockScales(std::span<const float> block_scales);

// All linears of a graph quantized into one safetensors file at `path`, streamed one tensor at a
// time. lm_head is int8 per channel whatever the format, and so is a linear whose in_features the
// LPBQ block does not divide (noted in `progress`). The embedding (when the graph has one) is
// stored as u16 per tensor, asymmetric. Tensors of the file:
//   <name>.int8 or <name>.int4  I8 [in, out], one code a byte   <name>.scales  F32 [out]
//   <name>.block_scales         U8 [in / block, out], LPBQ only
//   <embedding>.uint16          U16 [vocab, hidden]             <embedding>.scale F32 [1],
//   .zero_point I32 [1]
// Errors: those of reading the checkpoint, QuantizeRtn's naming the tensor, and writing errors.
Status QuantizeWeights(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
                       const WeightOptions& options, const std::filesystem::path& path,
                       Progress& progress);

class WeightStore {
 public:
  static Result<std::unique_ptr<WeightStore>> Open(const std::filesystem::path& path);
  // `name`: LinearWeight::name. Errors: kNotFound.
  Result<QuantizedWeight> Read(const std::string& name) const;
  // Without codes. Errors: as Read.
  Result<QuantizedWeight> ReadScales(const std::string& name) const;
  // Format, sizes and block size alone; codes and scales are empty. Errors: kNotFound, kDataLoss
  // (shapes that do not fit together).
  Result<QuantizedWeight> Describe(const std::string& name) const;
  bool Has(const std::string& name) const;
  // Encoding of the embedding `name`; its codes are the bytes of Entry(name + ".uint16"). Errors:
  // kNotFound.
  Result<Encoding> EmbeddingEncoding(const std::string& name) const;
  // One tensor of the file; valid while this lives. Errors: kNotFound naming it and the file.
  Result<const SafetensorsEntry*> Entry(const std::string& tensor) const;
  const SafetensorsFile& file() const { return *file_; }

 private:
  WeightStore() = default;
  std::unique_ptr<SafetensorsFile> file_;
};

}  // namespace hexport::quant
