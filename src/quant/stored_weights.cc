#include "quant/stored_weights.h"

#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/safetensors.h"

namespace hexport::quant {
namespace {

using graph::Initializer;

// Names end as weight_initializers.h gives them.
std::string_view EndOf(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(dot);
}

std::string_view StoredDtype(const Initializer& initializer) {
  switch (initializer.dtype) {
    case DType::kInt8:
    case DType::kInt4:
      return "I8";
    case DType::kUInt8:
      return "U8";
    case DType::kFloat32:
      return "F32";
    default:
      return "U16";
  }
}

// The tensors of the store in the graph's order, the embedding's encoding among them.
std::vector<const Initializer*> FindStored(const graph::Graph& qdq) {
  std::set<std::string> embeddings;
  for (const Initializer& initializer : qdq.initializers) {
    if (EndOf(initializer.name) == ".uint16")
      embeddings.insert(initializer.name.substr(0, initializer.name.rfind('.')));
  }
  static const std::set<std::string_view> kOfLinears = {".int8", ".int4", ".scales",
                                                        ".block_scales"};
  std::vector<const Initializer*> out;
  for (const Initializer& initializer : qdq.initializers) {
    const std::string_view end = EndOf(initializer.name);
    const bool of_table =
        (end == ".scale" || end == ".zero_point" || end == ".uint16") &&
        embeddings.contains(initializer.name.substr(0, initializer.name.rfind('.')));
    if (kOfLinears.contains(end) || of_table) out.push_back(&initializer);
  }
  return out;
}

bool IsZeroPoint(const Initializer& initializer) {
  return EndOf(initializer.name) == ".zero_point";
}

SafetensorsEntry EntryOf(const Initializer& initializer) {
  SafetensorsEntry entry;
  entry.name = initializer.name;
  entry.dtype = IsZeroPoint(initializer) ? "I32" : StoredDtype(initializer);
  entry.shape = initializer.shape.empty() ? Shape{1} : initializer.shape;
  return entry;
}

// Low nibble first, signed; one code a byte.
std::vector<std::byte> Unpack(std::span<const std::byte> packed, size_t count) {
  std::vector<std::byte> out(count);
  for (size_t i = 0; i < count; ++i) {
    const unsigned nibble = std::to_integer<unsigned>(packed[i / 2]) >> (i % 2 * 4) & 15u;
    out[i] = static_cast<std::byte>(nibble < 8 ? nibble : nibble | 0xf0u);
  }
  return out;
}

Result<std::vector<std::byte>> BytesOf(const Initializer& initializer) {
  std::vector<std::byte> bytes(static_cast<size_t>(NumBytes(initializer.dtype, initializer.shape)));
  HEXPORT_RETURN_IF_ERROR(initializer.source(bytes).WithContext(initializer.name));
  if (initializer.dtype == DType::kInt4)
    return Unpack(bytes, static_cast<size_t>(NumElements(initializer.shape)));
  if (!IsZeroPoint(initializer)) return bytes;
  int32_t zero_point = 0;
  std::memcpy(&zero_point, bytes.data(), bytes.size());
  bytes.resize(sizeof(zero_point));
  std::memcpy(bytes.data(), &zero_point, sizeof(zero_point));
  return bytes;
}

}  // namespace

Status WriteStoredWeights(const graph::Graph& qdq, const std::filesystem::path& path) {
  const std::vector<const Initializer*> stored = FindStored(qdq);
  if (stored.empty()) {
    return InvalidArgument(qdq.name +
                           ": expected a quantized graph of hexport, got one without weight codes");
  }
  std::vector<SafetensorsEntry> entries;
  for (const Initializer* initializer : stored) entries.push_back(EntryOf(*initializer));
  HEXPORT_ASSIGN_OR_RETURN(
      const std::unique_ptr<SafetensorsWriter> writer,
      SafetensorsWriter::Create(path, std::move(entries), {{"format", "hexport-weights-1"}}));
  for (const Initializer* initializer : stored) {
    HEXPORT_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, BytesOf(*initializer));
    HEXPORT_RETURN_IF_ERROR(writer->Append(bytes));
  }
  return writer->Commit();
}

}  // namespace hexport::quant
