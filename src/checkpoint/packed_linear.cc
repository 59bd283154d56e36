#include "checkpoint/packed_linear.h"

#include <array>
#include <cstring>

namespace hexport::checkpoint {
namespace {

// Where, in a word of eight, AWQ keeps output 0, 1, ... 7: the inverse of 0, 2, 4, 6, 1, 3, 5, 7.
constexpr std::array<unsigned, 8> kAwqPlace = {0, 4, 1, 5, 2, 6, 3, 7};

uint32_t Word(const PackedPart& part, int64_t index) {
  uint32_t word = 0;
  std::memcpy(&word, part.bytes.data() + static_cast<size_t>(index) * sizeof(word), sizeof(word));
  return word;
}

Status CheckShape(const std::string& tensor, const PackedPart& part, const Shape& expected,
                  const std::string& why) {
  if (part.shape == expected) return OkStatus();
  return DataLoss("tensor " + tensor + ": expected " + ShapeString(expected) + " (" + why +
                  "), got " + ShapeString(part.shape));
}

Status CheckWords(const std::string& tensor, const std::optional<PackedPart>& part,
                  const Shape& expected, const std::string& why) {
  if (!part.has_value()) {
    return NotFound("tensor " + tensor + ": expected I32 " + ShapeString(expected) +
                    ", got nothing");
  }
  if (part->dtype != "I32")
    return Unimplemented("tensor " + tensor + ": expected I32, got " + part->dtype);
  return CheckShape(tensor, *part, expected, why);
}

Status CheckDivides(const std::string& linear, std::string_view what, int64_t size, int64_t divisor,
                    std::string_view of) {
  if (divisor > 0 && size % divisor == 0) return OkStatus();
  return InvalidArgument("tensor " + linear + ": " + std::string(what) +
                         ": expected a divisor of " + std::string(of) + " " + std::to_string(size) +
                         ", got " + std::to_string(divisor));
}

}  // namespace

Result<PackedLinear> PackedLinear::Create(const PackedConfig& config, const std::string& linear,
                                          const Shape& shape, const PackedParts& parts) {
  if (shape.size() != 2)
    return InvalidArgument("tensor " + linear + ".weight: expected two dimensions");
  PackedLinear out;
  out.config_ = config;
  out.out_ = shape[0];
  out.in_ = shape[1];
  out.parts_ = parts;
  const int64_t codes = config.codes_per_word();
  const int64_t group_size = config.group_size == -1 ? out.in_ : config.group_size;
  HEXPORT_RETURN_IF_ERROR(
      CheckDivides(linear, "group_size", out.in_, group_size, "the input features"));
  HEXPORT_RETURN_IF_ERROR(
      CheckDivides(linear, "codes in a word", out.out_, codes, "the output features"));
  const bool gptq = config.layout == PackedLayout::kGptq;
  if (gptq)
    HEXPORT_RETURN_IF_ERROR(
        CheckDivides(linear, "codes in a word", out.in_, codes, "the input features"));
  out.groups_ = out.in_ / group_size;
  const std::string why = std::to_string(out.in_) + " inputs, " + std::to_string(out.out_) +
                          " outputs, groups of " + std::to_string(group_size) + ", " +
                          std::to_string(codes) + " codes a word";
  HEXPORT_RETURN_IF_ERROR(
      CheckWords(linear + ".qweight", parts.qweight,
                 gptq ? Shape{out.in_ / codes, out.out_} : Shape{out.in_, out.out_ / codes}, why));
  HEXPORT_RETURN_IF_ERROR(
      CheckWords(linear + ".qzeros", parts.qzeros, {out.groups_, out.out_ / codes}, why));
  const std::string scales = linear + ".scales";
  if (!parts.scales.has_value()) {
    return NotFound("tensor " + scales + ": expected F16 " + ShapeString({out.groups_, out.out_}) +
                    ", got nothing");
  }
  out.scale_format_ = FindBlockFormat(parts.scales->dtype);
  if (out.scale_format_ == nullptr || out.scale_format_->widen == nullptr ||
      out.scale_format_->elements != 1) {
    return Unimplemented("tensor " + scales + ": expected F16, BF16 or F32, got " +
                         parts.scales->dtype);
  }
  HEXPORT_RETURN_IF_ERROR(CheckShape(scales, *parts.scales, {out.groups_, out.out_}, why));
  HEXPORT_RETURN_IF_ERROR(out.FindGroups(linear));
  return out;
}

Status PackedLinear::FindGroups(const std::string& linear) {
  group_of_.resize(static_cast<size_t>(in_));
  const std::string tensor = linear + ".g_idx";
  if (config_.layout == PackedLayout::kAwq || !parts_.g_idx.has_value()) {
    if (config_.desc_act)
      return NotFound("tensor " + tensor + ": expected I32 " + ShapeString({in_}) +
                      " (desc_act is true), got nothing");
    for (int64_t k = 0; k < in_; ++k)
      group_of_[static_cast<size_t>(k)] = static_cast<int32_t>(k / (in_ / groups_));
    return OkStatus();
  }
  HEXPORT_RETURN_IF_ERROR(CheckWords(tensor, parts_.g_idx, {in_}, "an input feature each"));
  for (int64_t k = 0; k < in_; ++k) {
    const auto group = static_cast<int32_t>(Word(*parts_.g_idx, k));
    if (group < 0 || group >= groups_) {
      return DataLoss("tensor " + tensor + "[" + std::to_string(k) + "]: expected a group below " +
                      std::to_string(groups_) + ", got " + std::to_string(group));
    }
    group_of_[static_cast<size_t>(k)] = group;
  }
  return OkStatus();
}

// Of a tensor whose words run along the outputs.
uint32_t PackedLinear::OfOutputs(const PackedPart& part, int64_t row, int64_t n) const {
  const int64_t codes = config_.codes_per_word();
  const auto place = static_cast<size_t>(n % codes);
  const auto shift =
      static_cast<unsigned>(config_.bits) *
      (config_.layout == PackedLayout::kAwq ? kAwqPlace[place] : static_cast<unsigned>(place));
  return Word(part, row * (out_ / codes) + n / codes) >> shift & ((1u << config_.bits) - 1);
}

uint32_t PackedLinear::Code(int64_t k, int64_t n) const {
  if (config_.layout == PackedLayout::kAwq) return OfOutputs(*parts_.qweight, k, n);
  const int64_t codes = config_.codes_per_word();
  const auto shift = static_cast<unsigned>(config_.bits) * static_cast<unsigned>(k % codes);
  return Word(*parts_.qweight, k / codes * out_ + n) >> shift & ((1u << config_.bits) - 1);
}

// "Minus one" is modulo the codes: zero point 0 is stored as the largest.
uint32_t PackedLinear::ZeroPoint(int64_t group, int64_t n) const {
  const uint32_t stored = OfOutputs(*parts_.qzeros, group, n);
  return config_.zeros_minus_one ? (stored + 1) & ((1u << config_.bits) - 1) : stored;
}

float PackedLinear::Scale(int64_t group, int64_t n) const {
  float scale = 0.0f;
  scale_format_->widen(parts_.scales->bytes.data() + (group * out_ + n) * scale_format_->bytes,
                       &scale);
  return scale;
}

void PackedLinear::ReadRows(int64_t first_row, std::span<float> out) const {
  const int64_t rows = static_cast<int64_t>(out.size()) / in_;
  // Scales and zero points of these rows, a group after the other.
  std::vector<float> scales(static_cast<size_t>(groups_ * rows)), zeros(scales.size());
  for (int64_t i = 0; i < groups_ * rows; ++i) {
    const int64_t n = first_row + i % rows;
    scales[static_cast<size_t>(i)] = Scale(i / rows, n);
    zeros[static_cast<size_t>(i)] = static_cast<float>(ZeroPoint(i / rows, n));
  }
  for (int64_t k = 0; k < in_; ++k) {
    const size_t group = static_cast<size_t>(group_of_[static_cast<size_t>(k)] * rows);
    for (int64_t row = 0; row < rows; ++row) {
      const size_t at = group + static_cast<size_t>(row);
      out[static_cast<size_t>(row * in_ + k)] =
          (static_cast<float>(Code(k, first_row + row)) - zeros[at]) * scales[at];
    }
  }
  Release();
}

PackedWeight PackedLinear::Unpack() const {
  PackedWeight out;
  out.bits = config_.bits;
  out.in_features = in_;
  out.out_features = out_;
  out.group_of = group_of_;
  out.codes.reserve(static_cast<size_t>(in_ * out_));
  for (int64_t k = 0; k < in_; ++k) {
    for (int64_t n = 0; n < out_; ++n) out.codes.push_back(static_cast<uint8_t>(Code(k, n)));
  }
  for (int64_t group = 0; group < groups_; ++group) {
    for (int64_t n = 0; n < out_; ++n) {
      out.scales.push_back(Scale(group, n));
      out.zero_points.push_back(static_cast<uint8_t>(ZeroPoint(group, n)));
    }
  }
  Release();
  return out;
}

void PackedLinear::Release() const {
  for (const auto* part : {&parts_.qweight, &parts_.qzeros, &parts_.scales}) {
    const MappedFile* file = (*part)->file;
    if (file == nullptr) continue;
    file->Release(static_cast<size_t>((*part)->bytes.data() - file->bytes().data()),
                  (*part)->bytes.size());
  }
}

uint64_t PackedLinear::stored_bytes() const {
  uint64_t sum = 0;
  for (const auto* part : {&parts_.qweight, &parts_.qzeros, &parts_.scales, &parts_.g_idx})
    if (part->has_value()) sum += (*part)->bytes.size();
  return sum;
}

std::string_view PackedLinear::stored_dtype() const {
  if (config_.layout == PackedLayout::kAwq) return "AWQ-4";
  return config_.bits == 4 ? "GPTQ-4" : "GPTQ-8";
}

}  // namespace hexport::checkpoint
