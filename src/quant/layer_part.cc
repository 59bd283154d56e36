#include "quant/layer_part.h"

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "checkpoint/safetensors.h"

namespace hexport::quant {
namespace {

constexpr char kErrorTail[] = ".relative_error";

std::string CodesTail(const QuantizedWeight& weight) {
  return weight.format == WeightFormat::kInt8 ? ".int8" : ".int4";
}

template <typename T>
Status Append(SafetensorsWriter& writer, const std::vector<T>& values) {
  return writer.Append(std::as_bytes(std::span<const T>(values)));
}

}  // namespace

// The key is part of the name, and a file appears whole or not at all.
LayerPart::LayerPart(const std::filesystem::path& work, int64_t layer, const std::string& key)
    : path_(work / ("layer_" + std::to_string(layer) + "_" + key.substr(0, 32) + ".safetensors")) {}

bool LayerPart::Load() {
  std::error_code error;
  if (!std::filesystem::exists(path_, error)) return false;
  const Result<std::unique_ptr<WeightStore>> store = WeightStore::Open(path_);
  if (!store.ok()) return false;
  std::map<std::string, PartEntry> loaded;
  for (const SafetensorsEntry& entry : (*store)->file().entries()) {
    if (!entry.name.ends_with(kErrorTail)) continue;
    const std::string name = entry.name.substr(0, entry.name.size() - sizeof(kErrorTail) + 1);
    Result<QuantizedWeight> weight = (*store)->Read(name);
    if (!weight.ok()) return false;
    const std::span<const std::byte> bytes = (*store)->file().Bytes(entry);
    double relative_error = -1.0;
    if (bytes.size() != sizeof(relative_error)) return false;
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(&relative_error));
    loaded[name] = {*std::move(weight), relative_error};
  }
  entries_ = std::move(loaded);
  return !entries_.empty();
}

const PartEntry* LayerPart::Find(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

Status LayerPart::Save() const {
  std::vector<SafetensorsEntry> declared;
  const auto declare = [&declared](std::string name, std::string dtype, Shape shape) {
    declared.push_back({std::move(name), std::move(dtype), std::move(shape)});
  };
  for (const auto& [name, entry] : entries_) {
    const QuantizedWeight& weight = entry.weight;
    declare(name + CodesTail(weight), "I8", {weight.in_features, weight.out_features});
    declare(name + ".scales", "F32", {weight.out_features});
    if (!weight.block_scales.empty())
      declare(name + ".block_scales", "U8",
              {weight.in_features / weight.block_size, weight.out_features});
    declare(name + kErrorTail, "F64", {1});
  }
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsWriter> writer,
                           SafetensorsWriter::Create(path_, std::move(declared), {}));
  for (const auto& [name, entry] : entries_) {
    HEXPORT_RETURN_IF_ERROR(Append(*writer, entry.weight.codes));
    HEXPORT_RETURN_IF_ERROR(Append(*writer, entry.weight.channel_scales));
    if (!entry.weight.block_scales.empty())
      HEXPORT_RETURN_IF_ERROR(Append(*writer, entry.weight.block_scales));
    HEXPORT_RETURN_IF_ERROR(Append(*writer, std::vector<double>{entry.relative_error}));
  }
  return writer->Commit();
}

}  // namespace hexport::quant
