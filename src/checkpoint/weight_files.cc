#include "checkpoint/weight_files.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "checkpoint/safetensors_index.h"

namespace hexport::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::string_view kSuffix = ".safetensors";

Status AddFile(const fs::path& path, WeightFiles& weights) {
  WeightFile opened;
  HEXPORT_ASSIGN_OR_RETURN(opened.file, MappedFile::Open(path));
  HEXPORT_ASSIGN_OR_RETURN(opened.entries,
                           ParseSafetensorsHeader(opened.file->bytes(), path.string()));
  opened.file->Release(0, opened.file->bytes().size());
  weights.files.push_back(std::move(opened));
  return OkStatus();
}

// Safetensors files of the folder, sorted. Adapters are no part of a model.
std::vector<std::string> ListFiles(const fs::path& folder, std::string_view prefix) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(kSuffix) && name.starts_with(prefix) && !name.starts_with("adapter_")) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Of "model-00002-of-00003.safetensors": "model-", 2 and 3.
struct ShardName {
  std::string stem, digits;
  int64_t number = 0, count = 0;
};
std::optional<ShardName> ParseShardName(std::string_view name) {
  if (!name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  const size_t of = name.rfind("-of-");
  if (of == std::string_view::npos) return std::nullopt;
  const size_t dash = name.rfind('-', of - 1);
  if (of == 0 || dash == std::string_view::npos) return std::nullopt;
  const auto number = [](std::string_view text) -> int64_t {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? value : -1;
  };
  ShardName shard{std::string(name.substr(0, dash + 1)), std::string(name.substr(of + 4)),
                  number(name.substr(dash + 1, of - dash - 1)), number(name.substr(of + 4))};
  if (shard.number < 0 || shard.count < 1 || shard.count > 100'000) return std::nullopt;
  return shard;
}

// Without an index, the names themselves say how many shards there are.
Status CheckNothingIsMissing(const fs::path& folder, const std::vector<std::string>& names) {
  const std::set<std::string> present(names.begin(), names.end());
  for (const std::string& name : names) {
    const std::optional<ShardName> shard = ParseShardName(name);
    if (!shard.has_value()) continue;
    for (int64_t i = 1; i <= shard->count; ++i) {
      std::string number = std::to_string(i);
      number.insert(0, shard->digits.size() - std::min(shard->digits.size(), number.size()), '0');
      const std::string expected =
          shard->stem + number + "-of-" + shard->digits + std::string(kSuffix);
      if (present.count(expected) == 0) {
        return NotFound((folder / expected).string() + ": " + name + " says that there are " +
                        std::to_string(shard->count) + " shards, got nothing; fetch it");
      }
    }
    return OkStatus();
  }
  return OkStatus();
}

Result<WeightFiles> OpenWithoutIndex(const fs::path& folder, std::vector<std::string> names) {
  WeightFiles weights;
  HEXPORT_RETURN_IF_ERROR(CheckNothingIsMissing(folder, names));
  std::map<std::string, std::string> holders;
  for (const std::string& name : names) {
    HEXPORT_RETURN_IF_ERROR(AddFile(folder / name, weights));
    for (const SafetensorsEntry& entry : weights.files.back().entries) {
      const auto [held, is_new] = holders.emplace(entry.name, name);
      if (!is_new) {
        return DataLoss(folder.string() + ": tensor " + entry.name +
                        ": expected it in one file, got it in " + held->second + " and in " + name +
                        "; there is no " + kIndex + " to say which one counts");
      }
    }
  }
  weights.warnings.push_back(folder.string() + ": there is no " + kIndex + "; took all of " +
                             std::to_string(names.size()) + " safetensors files");
  return weights;
}

// Keeps the entries that the index places in this shard.
void KeepPlaced(const std::map<std::string, std::string>& index, const std::string& shard,
                WeightFiles& weights) {
  std::vector<SafetensorsEntry>& entries = weights.files.back().entries;
  const auto elsewhere = [&](const SafetensorsEntry& entry) {
    const auto placed = index.find(entry.name);
    if (placed == index.end()) {
      weights.warnings.push_back(shard + ": tensor " + entry.name +
                                 " is not in the index and was ignored");
    }
    return placed == index.end() || placed->second != shard;
  };
  entries.erase(std::remove_if(entries.begin(), entries.end(), elsewhere), entries.end());
}

Result<WeightFiles> OpenIndexed(const fs::path& folder) {
  WeightFiles weights;
  weights.index = folder / kIndex;
  HEXPORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(weights.index));
  HEXPORT_ASSIGN_OR_RETURN(const auto index, ParseSafetensorsIndex(text, weights.index.string()));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index) shards.insert(shard);
  std::set<std::string> found;
  for (const std::string& shard : shards) {
    HEXPORT_RETURN_IF_ERROR(AddFile(folder / shard, weights)
                                .WithContext("shard " + shard + ", one of " +
                                             std::to_string(shards.size()) + " that " + kIndex +
                                             " names"));
    KeepPlaced(index, shard, weights);
    for (const SafetensorsEntry& entry : weights.files.back().entries) found.insert(entry.name);
  }
  for (const auto& [name, shard] : index) {
    if (found.count(name) == 0) {
      return NotFound((folder / shard).string() + ": tensor " + name +
                      ": the index places it here, got nothing");
    }
  }
  for (const std::string& name : ListFiles(folder, "")) {
    if (shards.count(name) == 0) {
      weights.warnings.push_back((folder / name).string() + ": " + kIndex +
                                 " does not name this file, so it was ignored");
    }
  }
  return weights;
}

}  // namespace

Result<WeightFiles> OpenWeightFile(const fs::path& path) {
  WeightFiles weights;
  HEXPORT_RETURN_IF_ERROR(AddFile(path, weights));
  return weights;
}

Result<WeightFiles> OpenWeightFiles(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / kIndex, error)) return OpenIndexed(folder);
  if (fs::exists(folder / kSingle, error)) {
    HEXPORT_ASSIGN_OR_RETURN(WeightFiles weights, OpenWeightFile(folder / kSingle));
    for (const std::string& name : ListFiles(folder, "")) {
      if (name == kSingle) continue;
      weights.warnings.push_back((folder / name).string() + ": stands beside " + kSingle +
                                 " and was ignored");
    }
    return weights;
  }
  for (const char* prefix : {"model", ""}) {
    std::vector<std::string> names = ListFiles(folder, prefix);
    if (!names.empty()) return OpenWithoutIndex(folder, std::move(names));
  }
  if (fs::exists(folder / "pytorch_model.bin", error) ||
      fs::exists(folder / "pytorch_model.bin.index.json", error)) {
    return NotFound(folder.string() + ": expected " + kSingle +
                    ", got pytorch_model.bin, a pickle, which can run code when it is read; save "
                    "the model with safe_serialization");
  }
  return NotFound(folder.string() + ": expected " + kSingle + " or " + kIndex +
                  ", got neither; save the model with safe_serialization");
}

}  // namespace hexport::checkpoint
