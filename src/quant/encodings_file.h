// AIMET's encodings files, schemas 0.6.1 and 1.0.0 (AIMET's documentation, "Encoding Format
// Specification"): scale and offset of every tensor of an ONNX graph, as QAIRT's converter takes
// them. Both schemas are read into the same records.
//
// real = (code + offset) * scale with unsigned codes, so offset = -zero_point.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace hexport::quant {

enum class EncodingsSchema { k061, k100 };
// "0.6.1", "1.0.0". kUnimplemented for "2.0.0", kInvalidArgument for others.
Result<EncodingsSchema> ParseEncodingsSchema(std::string_view text);
std::string_view EncodingsSchemaName(EncodingsSchema schema);

enum class EncodingType { kPerTensor, kPerChannel, kPerBlock, kLpbq };
// "PER_TENSOR", "PER_CHANNEL", "PER_BLOCK", "LPBQ".
std::string_view EncodingTypeName(EncodingType type);

struct TensorEncoding {
  std::string name;
  EncodingType type = EncodingType::kPerTensor;
  bool is_float = false;  // computed in float of `bits`: kPerTensor, and the rest unset
  int bits = 8;           // of the codes; LPBQ: of the channel's grid that the blocks' codes lie in
  bool symmetric = false;
  std::vector<float> scales = {};     // [1], [channels] (also LPBQ) or [channels, blocks]
  std::vector<int32_t> offsets = {};  // as `scales`; -(2^bits - 1) to 0
  int block_size = 0;                 // input features; kPerBlock and kLpbq
  // kLpbq: bits of the codes, and the integers that multiply a channel's scale, 1 to
  // 2^(bits - compressed_bits), [channels, blocks].
  int compressed_bits = 0;
  std::vector<uint16_t> block_scales = {};

  friend bool operator==(const TensorEncoding&, const TensorEncoding&) = default;
};

struct EncodingsFile {
  EncodingsSchema schema = EncodingsSchema::k100;
  std::vector<TensorEncoding> activations, params;  // 0.6.1: by name; 1.0.0: as in the file
  std::vector<std::string> warnings;  // of reading: min or max that scale and offset contradict
};

// The real numbers that the codes 0 and 2^bits - 1 of element `index` stand for.
struct GridEnds {
  double low = 0.0, high = 0.0;
};
GridEnds EndsOf(const TensorEncoding& encoding, size_t index = 0);

// A list of one entry in 0.6.1 is kPerTensor, longer ones are kPerChannel. Where 0.6.1 gives min
// and max alone, scale and offset come from them. Fields that AIMET writes and nobody here reads
// (quantizer_args, excluded_layers) are let be. Errors, each with `where`, the list and the tensor:
// kDataLoss (no JSON), kUnimplemented (schema 2.0.0, fractional zero points), kInvalidArgument
// (another schema or another structure than the schema says, a field of another type or size, a
// scale that is no positive float32, an offset outside the codes, a name given twice in one list).
Result<EncodingsFile> ParseEncodingsFile(std::string_view text, const std::string& where);

// The text of `file` in its schema; parses back to the same records. kInvalidArgument naming a
// tensor that the schema cannot hold: 0.6.1 has no blocks.
Result<std::string> EncodingsFileToJson(const EncodingsFile& file);

}  // namespace hexport::quant
