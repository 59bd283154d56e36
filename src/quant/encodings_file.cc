#include "quant/encodings_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/json_fields.h"

namespace hexport::quant {
namespace {

using checkpoint::Excerpt;
using checkpoint::JsonFields;
using nlohmann::json;

constexpr size_t kMostTensors = 200000, kLongestName = 1000;
constexpr int kFewestBits = 2, kMostBits = 32;

constexpr std::array<std::pair<std::string_view, EncodingType>, 4> kTypes = {
    {{"PER_TENSOR", EncodingType::kPerTensor},
     {"PER_CHANNEL", EncodingType::kPerChannel},
     {"PER_BLOCK", EncodingType::kPerBlock},
     {"LPBQ", EncodingType::kLpbq}}};

int64_t TopCode(int bits) { return (int64_t{1} << bits) - 1; }

// A float32 above 0.
bool ToScale(const json& value, float& out) {
  if (!value.is_number()) return false;
  const double number = value.get<double>();
  if (!(number > 0.0 && number <= static_cast<double>(std::numeric_limits<float>::max())))
    return false;
  out = static_cast<float>(number);
  return out > 0.0f;
}

// A whole number within [low, high]; AIMET writes some as 128.0.
bool ToWhole(const json& value, int64_t low, int64_t high, int64_t& out) {
  if (!value.is_number()) return false;
  const double number = value.get<double>();
  if (!(number >= static_cast<double>(low) && number <= static_cast<double>(high)) ||
      number != std::floor(number)) {
    return false;
  }
  out = static_cast<int64_t>(number);
  return true;
}

Result<int64_t> Whole(const JsonFields& fields, const char* name, int64_t low, int64_t high) {
  const json* value = fields.Find(name);
  int64_t out = 0;
  if (value != nullptr && ToWhole(*value, low, high, out)) return out;
  return fields.Mismatch(
      name, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
}

Result<int> Bits(const JsonFields& fields, const char* name) {
  HEXPORT_ASSIGN_OR_RETURN(const int64_t bits, Whole(fields, name, kFewestBits, kMostBits));
  return static_cast<int>(bits);
}

std::string OffsetsOf(int bits) {
  return "a whole number from " + std::to_string(-TopCode(bits)) + " to 0";
}

bool ToOffset(const json& value, int bits, int32_t& out) {
  int64_t offset = 0;
  const int64_t low = std::max<int64_t>(-TopCode(bits), std::numeric_limits<int32_t>::min());
  if (!ToWhole(value, low, 0, offset)) return false;
  out = static_cast<int32_t>(offset);
  return true;
}

TensorEncoding FloatEncoding(const std::string& name, int bits) {
  return {name, EncodingType::kPerTensor, /*is_float=*/true, bits};
}

// ---- 0.6.1 ----

// "True" and "False", or a boolean.
Result<bool> LegacyBool(const JsonFields& fields, const char* name) {
  const json* value = fields.Find(name);
  if (value == nullptr) return false;
  if (value->is_boolean()) return value->get<bool>();
  if (*value == "True") return true;
  if (*value == "False") return false;
  return fields.Mismatch(name, "\"True\" or \"False\"");
}

Result<bool> IsFloat(const JsonFields& fields, std::initializer_list<const char*> floats,
                     const char* integer) {
  HEXPORT_ASSIGN_OR_RETURN(const std::string dtype, fields.String("dtype", integer));
  if (dtype == integer) return false;
  for (const char* word : floats) {
    if (dtype == word) return true;
  }
  return fields.Mismatch("dtype",
                         "\"" + std::string(integer) + "\" or \"" + *floats.begin() + "\"");
}

// Scale and offset from min and max, where they are all there is.
Status FromEnds(const JsonFields& fields, int bits, float& scale, int32_t& offset) {
  HEXPORT_ASSIGN_OR_RETURN(const double low, fields.Number("min"));
  HEXPORT_ASSIGN_OR_RETURN(const double high, fields.Number("max"));
  if (!(low <= 0.0 && high >= 0.0 && high > low))
    return fields.Mismatch("min", "at most 0, and below max, which is at least 0");
  const double step = (high - low) / static_cast<double>(TopCode(bits));
  if (!ToScale(json(step), scale))
    return fields.Mismatch("max", "a range whose step is a float32 above 0");
  const double nearest = std::nearbyint(low / step);
  offset = static_cast<int32_t>(
      std::clamp(nearest, std::max(-static_cast<double>(TopCode(bits)), -2147483648.0), 0.0));
  return OkStatus();
}

// min and max say what scale and offset say, to a hundredth of the range. A strict symmetric grid
// does not use its last code.
bool EndsAgree(const JsonFields& fields, int bits, float scale, int32_t offset) {
  const json* low = fields.Find("min");
  const json* high = fields.Find("max");
  if (low == nullptr || high == nullptr || !low->is_number() || !high->is_number()) return true;
  const double step = static_cast<double>(scale);
  const double expected_low = offset * step;
  const double expected_high = (static_cast<double>(TopCode(bits)) + offset) * step;
  const double tolerance = std::max((expected_high - expected_low) / 100.0, 1.01 * step);
  return std::abs(low->get<double>() - expected_low) <= tolerance &&
         std::abs(high->get<double>() - expected_high) <= tolerance;
}

// One channel into `out`; all of a tensor's have the same kind.
Status ReadLegacyEntry(const json& entry, const std::string& where, bool first, TensorEncoding& out,
                       std::vector<std::string>& warnings) {
  if (!entry.is_object()) {
    return InvalidArgument(where + ": expected an object, got " + Excerpt(entry));
  }
  const JsonFields fields(entry, where);
  HEXPORT_ASSIGN_OR_RETURN(const int bits, Bits(fields, "bitwidth"));
  HEXPORT_ASSIGN_OR_RETURN(const bool is_float, IsFloat(fields, {"float"}, "int"));
  HEXPORT_ASSIGN_OR_RETURN(const bool symmetric, LegacyBool(fields, "is_symmetric"));
  if (!first && (bits != out.bits || is_float != out.is_float))
    return fields.Mismatch("bitwidth", "the bits and dtype of the tensor's first channel");
  out.bits = bits;
  out.is_float = is_float;
  out.symmetric = first ? symmetric : out.symmetric && symmetric;
  if (is_float) return OkStatus();
  float scale = 0.0f;
  int32_t offset = 0;
  const json* given_scale = fields.Find("scale");
  const json* given_offset = fields.Find("offset");
  if (given_scale == nullptr && given_offset == nullptr) {
    HEXPORT_RETURN_IF_ERROR(FromEnds(fields, bits, scale, offset));
  } else {
    if (given_scale == nullptr || !ToScale(*given_scale, scale))
      return fields.Mismatch("scale", "a float32 above 0");
    if (given_offset == nullptr || !ToOffset(*given_offset, bits, offset))
      return fields.Mismatch("offset", OffsetsOf(bits));
    if (!EndsAgree(fields, bits, scale, offset)) {
      warnings.push_back(where +
                         ": min and max are not those of its scale and offset, which count");
    }
  }
  out.scales.push_back(scale);
  out.offsets.push_back(offset);
  return OkStatus();
}

Result<std::vector<TensorEncoding>> ReadLegacyGroup(const json& group, const std::string& where,
                                                    std::vector<std::string>& warnings) {
  std::vector<TensorEncoding> out;
  for (const auto& [name, channels] : group.items()) {
    const std::string tensor = where + ": " + name;
    if (name.empty() || name.size() > kLongestName)
      return InvalidArgument(where + ": expected names of 1 to 1000 bytes, got " + Excerpt(name));
    if (!channels.is_array() || channels.empty()) {
      return InvalidArgument(tensor + ": expected a list of encodings, one a channel, got " +
                             Excerpt(channels));
    }
    TensorEncoding& encoding = out.emplace_back();
    encoding.name = name;
    if (channels.size() > 1) encoding.type = EncodingType::kPerChannel;
    for (size_t i = 0; i < channels.size(); ++i) {
      const std::string at = channels.size() == 1 ? tensor : tensor + "[" + std::to_string(i) + "]";
      HEXPORT_RETURN_IF_ERROR(ReadLegacyEntry(channels[i], at, i == 0, encoding, warnings));
    }
    if (encoding.is_float) encoding = FloatEncoding(name, encoding.bits);
  }
  return out;
}

// ---- 1.0.0 ----

Result<EncodingType> ReadType(const JsonFields& fields) {
  HEXPORT_ASSIGN_OR_RETURN(const std::string text, fields.String("enc_type", ""));
  for (const auto& [name, type] : kTypes) {
    if (name == text) return type;
  }
  return fields.Mismatch("enc_type", "PER_TENSOR, PER_CHANNEL, PER_BLOCK or LPBQ");
}

Status ReadGrid(const JsonFields& fields, TensorEncoding& out) {
  const json* scales = fields.Find("scale");
  const json* offsets = fields.Find("offset");
  if (scales == nullptr || !scales->is_array() || scales->empty())
    return fields.Mismatch("scale", "a list of numbers");
  if (out.type == EncodingType::kPerTensor && scales->size() != 1)
    return fields.Mismatch("scale", "one number, since enc_type is PER_TENSOR");
  if (offsets == nullptr || !offsets->is_array() || offsets->size() != scales->size())
    return fields.Mismatch("offset", "a list of as many numbers as scale has");
  out.scales.resize(scales->size());
  out.offsets.resize(scales->size());
  for (size_t i = 0; i < scales->size(); ++i) {
    const std::string index = "[" + std::to_string(i) + "]: expected ";
    if (!ToScale((*scales)[i], out.scales[i])) {
      return InvalidArgument(fields.where() + ": scale" + index + "a float32 above 0, got " +
                             Excerpt((*scales)[i]));
    }
    if (!ToOffset((*offsets)[i], out.bits, out.offsets[i])) {
      return InvalidArgument(fields.where() + ": offset" + index + OffsetsOf(out.bits) + ", got " +
                             Excerpt((*offsets)[i]));
    }
  }
  return OkStatus();
}

// Flat, or one list a channel.
Status ReadBlockIntegers(const JsonFields& fields, TensorEncoding& out) {
  const json* list = fields.Find("per_block_int_scale");
  if (list == nullptr || !list->is_array() || list->empty())
    return fields.Mismatch("per_block_int_scale", "a list of whole numbers");
  const int64_t most = int64_t{1} << std::min(out.bits - out.compressed_bits, 15);
  std::vector<const json*> values;
  for (const json& item : *list) {
    if (item.is_array()) {
      for (const json& value : item) values.push_back(&value);
    } else {
      values.push_back(&item);
    }
  }
  for (const json* value : values) {
    int64_t integer = 0;
    if (!ToWhole(*value, 1, most, integer)) {
      return InvalidArgument(fields.where() + ": per_block_int_scale: expected whole numbers " +
                             "from 1 to " + std::to_string(most) + ", got " + Excerpt(*value));
    }
    out.block_scales.push_back(static_cast<uint16_t>(integer));
  }
  if (out.block_scales.size() % out.scales.size() != 0)
    return fields.Mismatch("per_block_int_scale", "as many numbers for each channel of scale");
  return OkStatus();
}

Status RefuseShiftedZeroPoints(const JsonFields& fields) {
  const json* shifts = fields.Find("zero_point_shift");
  if (shifts == nullptr) return OkStatus();
  const auto is_zero = [](const json& value) { return value.is_number() && value == 0; };
  if (shifts->is_array() ? std::all_of(shifts->begin(), shifts->end(), is_zero) : is_zero(*shifts))
    return OkStatus();
  return Unimplemented(fields.where() +
                       ": zero_point_shift: expected 0, got a fractional zero point, which no "
                       "format of hexport has; export the tensor without it");
}

Result<TensorEncoding> ReadEntry(const json& entry, const std::string& where, size_t index) {
  const std::string at = where + "[" + std::to_string(index) + "]";
  if (!entry.is_object())
    return InvalidArgument(at + ": expected an object, got " + Excerpt(entry));
  TensorEncoding out;
  HEXPORT_ASSIGN_OR_RETURN(out.name, JsonFields(entry, at).String("name", ""));
  if (out.name.empty() || out.name.size() > kLongestName)
    return JsonFields(entry, at).Mismatch("name", "a name of 1 to 1000 bytes");
  const JsonFields fields(entry, where + ": " + out.name);
  HEXPORT_ASSIGN_OR_RETURN(out.type, ReadType(fields));
  HEXPORT_ASSIGN_OR_RETURN(out.is_float, IsFloat(fields, {"FLOAT", "FP"}, "INT"));
  HEXPORT_ASSIGN_OR_RETURN(out.bits, Bits(fields, "bw"));
  HEXPORT_ASSIGN_OR_RETURN(out.symmetric, fields.Bool("is_sym", false));
  if (out.is_float) return FloatEncoding(out.name, out.bits);
  HEXPORT_RETURN_IF_ERROR(RefuseShiftedZeroPoints(fields));
  HEXPORT_RETURN_IF_ERROR(ReadGrid(fields, out));
  if (out.type != EncodingType::kPerBlock && out.type != EncodingType::kLpbq) return out;
  HEXPORT_ASSIGN_OR_RETURN(const int64_t block, Whole(fields, "block_size", 1, 1 << 24));
  out.block_size = static_cast<int>(block);
  if (out.type == EncodingType::kPerBlock) return out;
  HEXPORT_ASSIGN_OR_RETURN(out.compressed_bits, Bits(fields, "compressed_bw"));
  if (out.compressed_bits >= out.bits)
    return fields.Mismatch("compressed_bw", "fewer bits than bw");
  HEXPORT_RETURN_IF_ERROR(ReadBlockIntegers(fields, out));
  return out;
}

Result<std::vector<TensorEncoding>> ReadGroup(const json& group, const std::string& where) {
  std::vector<TensorEncoding> out;
  std::set<std::string> names;
  for (size_t i = 0; i < group.size(); ++i) {
    HEXPORT_ASSIGN_OR_RETURN(TensorEncoding encoding, ReadEntry(group[i], where, i));
    if (!names.insert(encoding.name).second) {
      return InvalidArgument(where + "[" + std::to_string(i) + "]: expected each name once, got " +
                             Excerpt(encoding.name) + " again");
    }
    out.push_back(std::move(encoding));
  }
  return out;
}

Result<std::vector<TensorEncoding>> ReadAnyGroup(const json& root, const char* name,
                                                 const std::string& where, EncodingsFile& file) {
  const auto found = root.find(name);
  const std::string at = where + ": " + name;
  const bool legacy = file.schema == EncodingsSchema::k061;
  if (found == root.end() || !(legacy ? found->is_object() : found->is_array()) ||
      found->size() > kMostTensors) {
    const std::string got = found == root.end()      ? "nothing"
                            : found->is_object()     ? "one object"
                            : found->is_structured() ? "a list"
                                                     : Excerpt(*found);
    return InvalidArgument(
        at + ": schema " + std::string(EncodingsSchemaName(file.schema)) + ": expected " +
        (legacy ? "an object of tensor names" : "a list of objects with names") + ", at most " +
        std::to_string(kMostTensors) + ", got " + got + "; does \"version\" say what the file is?");
  }
  return legacy ? ReadLegacyGroup(*found, at, file.warnings) : ReadGroup(*found, at);
}

}  // namespace

Result<EncodingsSchema> ParseEncodingsSchema(std::string_view text) {
  if (text == "0.6.1") return EncodingsSchema::k061;
  if (text == "1.0.0") return EncodingsSchema::k100;
  if (text == "2.0.0") {
    return Unimplemented(
        "expected schema 0.6.1 or 1.0.0, got 2.0.0, which QAIRT does not read before 2.37 and "
        "hexport does not write or read; have AIMET export 1.0.0");
  }
  return InvalidArgument("expected schema 0.6.1 or 1.0.0, got \"" + std::string(text) + "\"");
}

std::string_view EncodingsSchemaName(EncodingsSchema schema) {
  return schema == EncodingsSchema::k061 ? "0.6.1" : "1.0.0";
}

std::string_view EncodingTypeName(EncodingType type) {
  for (const auto& [name, value] : kTypes) {
    if (value == type) return name;
  }
  return "unknown";
}

GridEnds EndsOf(const TensorEncoding& encoding, size_t index) {
  const auto scale = static_cast<double>(encoding.scales[index]);
  const auto offset = static_cast<double>(encoding.offsets[index]);
  return {offset * scale, (static_cast<double>(TopCode(encoding.bits)) + offset) * scale};
}

Result<EncodingsFile> ParseEncodingsFile(std::string_view text, const std::string& where) {
  HEXPORT_ASSIGN_OR_RETURN(const json root, checkpoint::ParseJsonObject(text, where));
  HEXPORT_ASSIGN_OR_RETURN(const std::string version,
                           JsonFields(root, where).String("version", ""));
  EncodingsFile file;
  const Result<EncodingsSchema> schema = ParseEncodingsSchema(version);
  if (!schema.ok()) return schema.status().WithContext(where + ": version");
  file.schema = *schema;
  HEXPORT_ASSIGN_OR_RETURN(file.activations,
                           ReadAnyGroup(root, "activation_encodings", where, file));
  HEXPORT_ASSIGN_OR_RETURN(file.params, ReadAnyGroup(root, "param_encodings", where, file));
  return file;
}

}  // namespace hexport::quant
