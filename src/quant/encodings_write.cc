// The JSON of an EncodingsFile, tensor by tensor.
#include <nlohmann/json.hpp>

#include "quant/encodings_file.h"

namespace hexport::quant {
namespace {

using nlohmann::ordered_json;

std::string Text(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json LegacyEntries(const TensorEncoding& encoding) {
  if (encoding.is_float)
    return ordered_json::array({{{"bitwidth", encoding.bits}, {"dtype", "float"}}});
  ordered_json out = ordered_json::array();
  for (size_t i = 0; i < encoding.scales.size(); ++i) {
    const GridEnds ends = EndsOf(encoding, i);
    out.push_back({{"bitwidth", encoding.bits},
                   {"dtype", "int"},
                   {"is_symmetric", encoding.symmetric ? "True" : "False"},
                   {"max", ends.high},
                   {"min", ends.low},
                   {"offset", encoding.offsets[i]},
                   {"scale", encoding.scales[i]}});
  }
  return out;
}

ordered_json Entry(const TensorEncoding& encoding) {
  ordered_json out = {{"name", encoding.name},
                      {"enc_type", EncodingTypeName(encoding.type)},
                      {"dtype", encoding.is_float ? "FLOAT" : "INT"},
                      {"bw", encoding.bits}};
  if (encoding.is_float) return out;
  out["is_sym"] = encoding.symmetric;
  out["scale"] = encoding.scales;
  out["offset"] = encoding.offsets;
  if (encoding.block_size > 0) out["block_size"] = encoding.block_size;
  if (encoding.type == EncodingType::kLpbq) {
    out["compressed_bw"] = encoding.compressed_bits;
    out["per_block_int_scale"] = encoding.block_scales;
  }
  return out;
}

Status AppendGroup(const EncodingsFile& file, const char* name,
                   const std::vector<TensorEncoding>& group, std::string& out) {
  const bool legacy = file.schema == EncodingsSchema::k061;
  out += ",\n\"" + std::string(name) + (legacy ? "\": {" : "\": [");
  bool first = true;
  for (const TensorEncoding& encoding : group) {
    const bool blocks =
        encoding.type == EncodingType::kPerBlock || encoding.type == EncodingType::kLpbq;
    if (legacy && blocks && !encoding.is_float) {
      return InvalidArgument(encoding.name + ": schema 0.6.1 has no " +
                             std::string(EncodingTypeName(encoding.type)) + "; write 1.0.0");
    }
    out += first ? "\n" : ",\n";
    first = false;
    out +=
        legacy ? Text(encoding.name) + ": " + Text(LegacyEntries(encoding)) : Text(Entry(encoding));
  }
  out += legacy ? "\n}" : "\n]";
  return OkStatus();
}

}  // namespace

Result<std::string> EncodingsFileToJson(const EncodingsFile& file) {
  std::string out = "{\"version\": \"" + std::string(EncodingsSchemaName(file.schema)) + "\"";
  HEXPORT_RETURN_IF_ERROR(AppendGroup(file, "activation_encodings", file.activations, out));
  HEXPORT_RETURN_IF_ERROR(AppendGroup(file, "param_encodings", file.params, out));
  return out + "\n}\n";
}

}  // namespace hexport::quant
