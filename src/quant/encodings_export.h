// The encodings of a quantized decoder as an AIMET encodings file.
#pragma once

#include "base/status.h"
#include "decoder/decoder.h"
#include "quant/encoding.h"
#include "quant/encodings_file.h"
#include "quant/quant_config.h"
#include "quant/weights.h"

namespace hexport::quant {

// What encodings belong to; all of it must outlive this. `graph` is the whole decoder, whose
// initializers read the weights that were quantized.
struct EncodedModel {
  const decoder::DecoderGraph& graph;
  const RangeMap& ranges;
  const WeightStore& store;
  const QuantConfig& config;
};

// Names are those of the graph's values. Activations in graph order, each with the encoding that
// the NPU's graph gives it (8 bits where its readers get 8), or float of 16 bits. Params: linears
// as their codes are (int8 and int4 per channel, LPBQ), the embedding as it is stored, and the 16
// bit encodings of norm weights and biases. Errors: BuildQdq's, and kInvalidArgument when the
// schema cannot hold the weights (0.6.1 and LPBQ).
Result<EncodingsFile> ExportEncodings(const EncodedModel& model, EncodingsSchema schema);

// One linear's encoding. kNotFound, kDataLoss: WeightStore's.
Result<TensorEncoding> LinearEncoding(const WeightStore& store, const std::string& name);
// The codes' grid as AIMET says it, and back. `encoding` of the second: per tensor, of integers.
TensorEncoding ToTensorEncoding(const std::string& name, const Encoding& encoding);
Encoding ToEncoding(const TensorEncoding& encoding);

}  // namespace hexport::quant
