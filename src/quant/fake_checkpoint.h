// A checkpoint whose tensors are given in memory; tests only.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace hexport::quant {

class FakeCheckpoint : public Checkpoint {
 public:
  // Rows are output features, as in a real checkpoint.
  void Add(const std::string& name, Shape shape, std::vector<float> values) {
    infos_.push_back({name, std::move(shape), "F32"});
    values_[name] = std::move(values);
  }
  ModelConfig& mutable_config() { return config_; }

  const ModelConfig& config() const override { return config_; }
  const std::vector<TensorInfo>& tensors() const override { return infos_; }
  const TensorInfo* Find(const std::string& name) const override {
    const auto found = std::find_if(infos_.begin(), infos_.end(),
                                    [&](const TensorInfo& info) { return info.name == name; });
    return found == infos_.end() ? nullptr : &*found;
  }
  Status Read(const std::string& name, std::span<float> out) const override {
    return ReadRows(name, 0, out);
  }
  Status ReadRows(const std::string& name, int64_t first_row, std::span<float> out) const override {
    const TensorInfo* info = Find(name);
    if (info == nullptr) return NotFound(name);
    const int64_t columns = info->shape.size() > 1 ? info->shape[1] : 1;
    const auto first = values_.at(name).begin() + first_row * columns;
    std::copy_n(first, out.size(), out.begin());
    return OkStatus();
  }
  Result<TextAssets> Text() const override { return NotFound("no tokenizer"); }
  std::vector<std::filesystem::path> Files() const override { return {}; }

 private:
  ModelConfig config_;
  std::vector<TensorInfo> infos_;
  std::map<std::string, std::vector<float>> values_;
};

// Normally distributed, standard deviation `deviation`.
inline std::vector<float> RandomValues(int64_t count, unsigned seed, float deviation) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& value : out) value = normal(generator);
  return out;
}

}  // namespace hexport::quant
