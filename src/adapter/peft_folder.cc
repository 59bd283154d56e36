#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "adapter/adapter_file.h"
#include "adapter/adapter_keys.h"
#include "base/file.h"
#include "checkpoint/safetensors.h"

namespace hexport::adapter {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";

// "; adapters stand in its folders a, b" or nothing.
std::string SubfoldersWithAdapters(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (fs::exists(it->path() / kConfig, ignored)) names.push_back(it->path().filename().string());
  }
  if (names.empty()) return {};
  std::sort(names.begin(), names.end());
  std::string text = "; adapters stand in its folders ";
  for (size_t i = 0; i < names.size() && i < 5; ++i) text += (i > 0 ? ", " : "") + names[i];
  return text;
}

Status NoWeights(const fs::path& folder) {
  std::error_code error;
  for (const char* pickle : {"adapter_model.bin", "adapter_model.pt"}) {
    if (!fs::exists(folder / pickle, error)) continue;
    return NotFound((folder / kWeights).string() + ": expected this file, got " + pickle +
                    ", a pickle, which can run code when it is read; load it with PEFT and save it "
                    "with safe_serialization");
  }
  return NotFound((folder / kWeights).string() + ": expected the adapter's weights, got nothing");
}

// U8 and the like under a name that ends in weight: the adapter itself is quantized.
Status CheckType(const SafetensorsEntry& entry, const checkpoint::BlockFormat* format,
                 const std::string& where) {
  if (format != nullptr && format->widen != nullptr && format->elements == 1) return OkStatus();
  return Unimplemented(where + ": tensor " + entry.name + ": expected F32, F16 or BF16, got " +
                       entry.dtype + "; quantized adapters are not merged");
}

Status AddTensors(const std::vector<SafetensorsEntry>& entries, const std::string& where,
                  AdapterParts& parts) {
  std::set<std::string> names;
  int64_t base_copies = 0;
  for (const SafetensorsEntry& entry : entries) {
    ParsedKey parsed = ParseKey(entry.name);
    if (parsed.base_copy) {
      ++base_copies;
      continue;
    }
    AdapterTensor tensor;
    tensor.format = checkpoint::FindBlockFormat(entry.dtype);
    HEXPORT_RETURN_IF_ERROR(CheckType(entry, tensor.format, where));
    if (!parsed.adapter_name.empty()) names.insert(parsed.adapter_name);
    tensor.key = entry.name;
    tensor.module = std::move(parsed.module);
    tensor.parameter = std::move(parsed.parameter);
    tensor.role = parsed.role;
    tensor.saved_module = parsed.saved_module;
    tensor.shape = entry.shape;
    tensor.file = parts.file.get();
    tensor.bytes = parts.file->bytes().subspan(entry.begin, entry.end - entry.begin);
    parts.tensors.push_back(std::move(tensor));
  }
  if (names.size() > 1) {
    return InvalidArgument(where + ": expected one adapter, got keys of " + *names.begin() +
                           " and of " + *std::next(names.begin()) +
                           "; save them to folders of their own");
  }
  if (base_copies > 0) {
    parts.warnings.push_back(where + ": " + std::to_string(base_copies) +
                             " original_module tensors (the base's own values) were ignored");
  }
  return OkStatus();
}

// Says when the file lacks what the config says was trained.
void WarnOfWhatIsLost(const std::string& where, AdapterParts& parts) {
  const auto has = [&](auto&& wanted) {
    return std::any_of(parts.tensors.begin(), parts.tensors.end(), wanted);
  };
  const auto is_bias = [](const AdapterTensor& tensor) {
    return tensor.role == TensorRole::kWhole && tensor.parameter == "bias";
  };
  if (parts.config.bias != "none" && !has(is_bias)) {
    parts.warnings.push_back(where + ": bias is \"" + parts.config.bias +
                             "\": config says biases were trained, none in file; if the model has "
                             "biases, what was trained into them is lost");
  }
  const auto lost = [&](const std::string& what) {
    parts.warnings.push_back(where + ": config says " + what + ", none in file");
  };
  const auto has_role = [&](TensorRole role) {
    return has([&](const AdapterTensor& tensor) { return tensor.role == role; });
  };
  if (parts.config.lora_bias && !has_role(TensorRole::kLoraBias)) {
    lost("lora_B has biases (lora_bias)");
  }
  if (!parts.config.trainable_token_indices.empty() && !has_role(TensorRole::kTokenRows)) {
    lost("token rows were trained (trainable_token_indices)");
  }
  for (const std::string& module : parts.config.modules_to_save) {
    const auto is_saved = [&](const AdapterTensor& tensor) {
      return tensor.role == TensorRole::kWhole &&
             ("." + tensor.module + ".").find("." + module + ".") != std::string::npos;
    };
    if (!has(is_saved)) lost(module + " was trained (modules_to_save)");
  }
}

}  // namespace

Result<AdapterParts> ReadPeftFolder(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kConfig, error)) {
    return NotFound((folder / kConfig).string() + ": expected an adapter's config, got nothing" +
                    SubfoldersWithAdapters(folder));
  }
  AdapterParts parts;
  parts.path = folder;
  HEXPORT_ASSIGN_OR_RETURN(parts.config_text, ReadTextFile(folder / kConfig));
  const std::string config_where = (folder / kConfig).string();
  HEXPORT_ASSIGN_OR_RETURN(parts.config, ParseAdapterConfig(parts.config_text, config_where));
  parts.warnings = parts.config.warnings;
  if (!fs::exists(folder / kWeights, error)) return NoWeights(folder);
  const std::string where = (folder / kWeights).string();
  HEXPORT_ASSIGN_OR_RETURN(parts.file, MappedFile::Open(folder / kWeights));
  HEXPORT_ASSIGN_OR_RETURN(const std::vector<SafetensorsEntry> entries,
                           ParseSafetensorsHeader(parts.file->bytes(), where));
  if (entries.empty()) return InvalidArgument(where + ": expected tensors, got none");
  HEXPORT_RETURN_IF_ERROR(AddTensors(entries, where, parts));
  const auto has_magnitude = [](const AdapterTensor& tensor) {
    return tensor.role == TensorRole::kMagnitude;
  };
  const bool dora = std::any_of(parts.tensors.begin(), parts.tensors.end(), has_magnitude);
  if (dora != parts.config.use_dora) {
    return InvalidArgument(where + ": use_dora is " + (dora ? "false" : "true") +
                           " in adapter_config.json, but the file has " +
                           (dora ? "lora_magnitude_vector" : "no lora_magnitude_vector") +
                           " tensors");
  }
  WarnOfWhatIsLost(config_where, parts);
  return parts;
}

}  // namespace hexport::adapter
