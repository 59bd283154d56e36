#include "adapter/merge_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "checkpoint/block_format.h"

namespace hexport::adapter {
namespace {

using nlohmann::json;

constexpr const char* kSingle = "model.safetensors";

// The type of a tensor that the base has, of a new bias its weight's, else the embedding's.
std::string StoredType(const BaseTensors& base, const std::string& name) {
  if (const BaseTensor* tensor = base.Find(name); tensor != nullptr) return tensor->stored_dtype;
  static constexpr std::string_view kBias = ".bias";
  if (name.ends_with(kBias)) {
    const BaseTensor* weight = base.Find(name.substr(0, name.size() - kBias.size()) + ".weight");
    if (weight != nullptr) return weight->stored_dtype;
  }
  for (const BaseTensor& tensor : base.tensors()) {
    if (tensor.name.ends_with("embed_tokens.weight")) return tensor.stored_dtype;
  }
  return "F32";
}

Result<PlannedTensor> PlanTensor(const BaseTensors& base,
                                 const MatchedAdapters::MergedTensor& tensor,
                                 const MergeOptions& options) {
  PlannedTensor planned;
  planned.tensor = &tensor;
  const std::string stored = StoredType(base, tensor.name);
  const bool has_bytes = !base.Bytes(tensor.name).empty() || NumElements(tensor.shape) == 0;
  const bool changes = tensor.low_rank || tensor.replaced;
  const bool is_float = FloatType(stored).has_value();
  planned.dtype = stored;
  if (options.dtype.has_value() && (is_float || !has_bytes)) {
    planned.dtype = SafetensorsName(*options.dtype);
  } else if (!has_bytes && !is_float) {
    planned.dtype = "F16";  // a quantized GGUF
  } else if (!has_bytes && base.Find(tensor.name) != nullptr) {
    planned.dtype = "F16";  // any GGUF: one type for the whole model
  }
  planned.copied = !changes && has_bytes && planned.dtype == stored;
  if (!planned.copied && has_bytes && !is_float) {
    return Unimplemented("tensor " + tensor.name +
                         ": expected F32, F16 or BF16 to merge into, got " + stored);
  }
  return planned;
}

uint64_t PlannedBytes(const PlannedTensor& planned) {
  const checkpoint::BlockFormat* format = checkpoint::FindBlockFormat(planned.dtype);
  const int64_t size = format == nullptr ? 8 : format->bytes;  // integers of safetensors: at most 8
  return static_cast<uint64_t>(std::max<int64_t>(0, NumElements(planned.tensor->shape)) * size);
}

std::string ShardName(size_t number, size_t count) {
  const auto digits = [](size_t value) {
    std::string text = std::to_string(value);
    return text.size() < 5 ? std::string(5 - text.size(), '0') + text : text;
  };
  return "model-" + digits(number) + "-of-" + digits(count) + ".safetensors";
}

// Fills shards up to `limit`; a tensor is never cut.
void Split(MergePlan& plan, uint64_t limit) {
  std::vector<PlannedShard> shards(1);
  uint64_t filled = 0;
  for (PlannedTensor& planned : plan.shards[0].tensors) {
    const uint64_t bytes = PlannedBytes(planned);
    if (!shards.back().tensors.empty() && filled + bytes > limit) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    shards.back().tensors.push_back(std::move(planned));
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1 ? kSingle : ShardName(i + 1, shards.size());
  }
  plan.shards = std::move(shards);
}

}  // namespace

std::string_view SafetensorsName(DType dtype) {
  if (dtype == DType::kFloat32) return "F32";
  if (dtype == DType::kFloat16) return "F16";
  if (dtype == DType::kBFloat16) return "BF16";
  return {};
}

std::optional<DType> FloatType(std::string_view name) {
  if (name == "F32") return DType::kFloat32;
  if (name == "F16") return DType::kFloat16;
  if (name == "BF16") return DType::kBFloat16;
  return std::nullopt;
}

Result<MergePlan> PlanMerge(const BaseTensors& base, const MatchedAdapters& adapters,
                            const MergeOptions& options) {
  if (options.dtype.has_value() && SafetensorsName(*options.dtype).empty()) {
    return InvalidArgument("dtype: expected float32, float16 or bfloat16, got " +
                           std::string(DTypeName(*options.dtype)));
  }
  MergePlan plan;
  std::map<std::string, size_t> shard_of_file;
  for (const MatchedAdapters::MergedTensor& tensor : adapters.tensors()) {
    HEXPORT_ASSIGN_OR_RETURN(PlannedTensor planned, PlanTensor(base, tensor, options));
    plan.total_bytes += PlannedBytes(planned);
    ++plan.tensors;
    const BaseTensor* stored = base.Find(tensor.name);
    size_t shard = plan.shards.empty() ? 0 : plan.shards.size() - 1;
    if (stored != nullptr || plan.shards.empty()) {
      const std::string file = stored == nullptr ? kSingle : stored->shard;
      const auto [found, is_new] = shard_of_file.emplace(file, plan.shards.size());
      if (is_new) plan.shards.push_back({file, {}});
      shard = found->second;
    }
    plan.shards[shard].tensors.push_back(std::move(planned));
  }
  if (plan.shards.empty()) return InvalidArgument("merge: the base has no tensors");
  if (plan.shards.size() == 1) Split(plan, std::max<uint64_t>(options.max_shard_bytes, 1));
  return plan;
}

Status WriteIndex(const std::filesystem::path& folder, const MergePlan& plan) {
  if (plan.shards.size() < 2) return OkStatus();
  json index = {{"metadata", {{"total_size", plan.total_bytes}}}, {"weight_map", json::object()}};
  for (const PlannedShard& shard : plan.shards) {
    for (const PlannedTensor& planned : shard.tensors) {
      index["weight_map"][planned.tensor->name] = shard.file;
    }
  }
  return WriteFileAtomically(folder / "model.safetensors.index.json",
                             index.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

}  // namespace hexport::adapter
