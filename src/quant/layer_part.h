// The quantized linears of one layer on disk, so that an interrupted run goes on after it. Private
// to src/quant.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "base/status.h"
#include "quant/weights.h"

namespace hexport::quant {

struct PartEntry {
  QuantizedWeight weight;
  double relative_error = -1.0;
};

// File "<work>/layer_<l>_<key>.safetensors".
class LayerPart {
 public:
  LayerPart() = default;
  // `key`: of everything that the layer's codes depend on.
  LayerPart(const std::filesystem::path& work, int64_t layer, const std::string& key);
  // True when the file is there and every weight in it can be read; else nothing is loaded.
  bool Load();
  void Add(const std::string& name, PartEntry entry) { entries_[name] = std::move(entry); }
  const PartEntry* Find(const std::string& name) const;
  // Errors: those of writing.
  Status Save() const;

 private:
  std::filesystem::path path_;
  std::map<std::string, PartEntry> entries_;
};

}  // namespace hexport::quant
