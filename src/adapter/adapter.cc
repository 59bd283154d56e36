#include "adapter/adapter.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "adapter/adapter_file.h"
#include "adapter/float_values.h"
#include "base/sha256.h"

namespace hexport::adapter {
namespace {

namespace fs = std::filesystem;

class OpenedAdapter final : public Adapter {
 public:
  explicit OpenedAdapter(AdapterParts parts) : parts_(std::move(parts)) {}
  const AdapterConfig& config() const override { return parts_.config; }
  const fs::path& path() const override { return parts_.path; }
  const std::vector<AdapterTensor>& tensors() const override { return parts_.tensors; }
  int64_t tensor_count() const override { return static_cast<int64_t>(parts_.tensors.size()); }
  const std::string& sha256() const override;
  bool gguf() const override { return parts_.gguf; }
  std::vector<std::string> warnings() const override { return parts_.warnings; }

 private:
  AdapterParts parts_;
  mutable std::once_flag hashed_;
  mutable std::string sha256_;
};

const std::string& OpenedAdapter::sha256() const {
  std::call_once(hashed_, [this] {
    static constexpr size_t kPiece = size_t{16} << 20;
    const std::span<const std::byte> bytes = parts_.file->bytes();
    Sha256 weights;
    for (size_t at = 0; at < bytes.size(); at += kPiece) {
      const size_t count = std::min(kPiece, bytes.size() - at);
      weights.Update(bytes.subspan(at, count));
      parts_.file->Release(at, count);
    }
    sha256_ = Sha256Hex(weights.HexDigest() + "\n" + parts_.config_text);
  });
  return sha256_;
}

// The tensors of one module that make up its low-rank change.
struct Pair {
  const AdapterTensor* a = nullptr;
  const AdapterTensor* b = nullptr;
  const AdapterTensor* extra = nullptr;  // magnitude or bias without a pair is a fault
};

int64_t RankOfA(const AdapterTensor& a) { return a.transposed ? a.shape[1] : a.shape[0]; }

Status CheckShape(const AdapterTensor& tensor, const std::string& where) {
  const bool empty = NumElements(tensor.shape) == 0;
  if (empty) {
    return InvalidArgument(
        where + ": tensor " + tensor.key + ": expected values, got shape " +
        ShapeString(tensor.shape) +
        ": the trainer saved unsharded placeholders (DeepSpeed ZeRO-3 or FSDP); gather the "
        "parameters (stage3_gather_16bit_weights_on_model_save) and save the adapter again");
  }
  const bool is_vector =
      tensor.role == TensorRole::kLoraBias || tensor.role == TensorRole::kMagnitude;
  const bool is_matrix = tensor.role == TensorRole::kLoraA || tensor.role == TensorRole::kLoraB ||
                         tensor.role == TensorRole::kEmbeddingA ||
                         tensor.role == TensorRole::kEmbeddingB ||
                         tensor.role == TensorRole::kTokenRows;
  const size_t dimensions = tensor.shape.size();
  if ((is_matrix && dimensions != 2) || (is_vector && dimensions != 1)) {
    return InvalidArgument(where + ": tensor " + tensor.key + ": expected " +
                           (is_matrix ? "two dimensions" : "one dimension") + ", got " +
                           ShapeString(tensor.shape));
  }
  return OkStatus();
}

Status CheckRank(const AdapterParts& parts, const std::string& module, const Pair& pair) {
  const std::string where = parts.path.string() + ": " + module;
  const int64_t rank = RankOfA(*pair.a);
  if (rank != pair.b->shape[1]) {
    return InvalidArgument(where + ": expected the rank of A " + ShapeString(pair.a->shape) +
                           " and B " + ShapeString(pair.b->shape) + " to agree");
  }
  if (parts.gguf || !parts.config.rank_pattern.empty()) return OkStatus();
  if (rank == parts.config.r) return OkStatus();
  std::string advice = "correct r in adapter_config.json, or add a rank_pattern";
  if (rank == 2 * parts.config.r) {
    advice =
        "twice the rank is what converting a PiSSA or OLoRA adapter gives: its config should say "
        "r " +
        std::to_string(rank) + ", a lora_alpha that keeps the scale, and init_lora_weights true";
  }
  return InvalidArgument(where + ": expected rank " + std::to_string(parts.config.r) +
                         " by adapter_config.json, got " + std::to_string(rank) +
                         " in the tensors; " + advice);
}

Status CheckPairs(const AdapterParts& parts) {
  std::map<std::string, Pair> pairs;
  const std::string where = parts.path.string();
  for (const AdapterTensor& tensor : parts.tensors) {
    HEXPORT_RETURN_IF_ERROR(CheckShape(tensor, where));
    Pair& pair = pairs[tensor.module];
    if (tensor.role == TensorRole::kLoraA || tensor.role == TensorRole::kEmbeddingA) {
      if (pair.a != nullptr) return InvalidArgument(where + ": " + tensor.key + ": a second A");
      pair.a = &tensor;
    } else if (tensor.role == TensorRole::kLoraB || tensor.role == TensorRole::kEmbeddingB) {
      if (pair.b != nullptr) return InvalidArgument(where + ": " + tensor.key + ": a second B");
      pair.b = &tensor;
    } else if (tensor.role == TensorRole::kLoraBias || tensor.role == TensorRole::kMagnitude) {
      pair.extra = &tensor;
    }
  }
  for (const auto& [module, pair] : pairs) {
    if (pair.a == nullptr && pair.b == nullptr && pair.extra == nullptr) continue;
    if (pair.a == nullptr || pair.b == nullptr) {
      const AdapterTensor& one = pair.a != nullptr   ? *pair.a
                                 : pair.b != nullptr ? *pair.b
                                                     : *pair.extra;
      return InvalidArgument(where + ": tensor " + one.key + ": expected A and B of " + module +
                             ", got only " +
                             (pair.a != nullptr   ? "A"
                              : pair.b != nullptr ? "B"
                                                  : "this") +
                             "; the file is incomplete");
    }
    const bool embedding = pair.a->role == TensorRole::kEmbeddingA;
    if (embedding != (pair.b->role == TensorRole::kEmbeddingB)) {
      return InvalidArgument(where + ": " + module + ": A and B are of different kinds");
    }
    HEXPORT_RETURN_IF_ERROR(CheckRank(parts, module, pair));
  }
  return OkStatus();
}

}  // namespace

Status ReadValues(const AdapterTensor& tensor, std::span<float> out) {
  if (static_cast<int64_t>(out.size()) != NumElements(tensor.shape)) {
    return InvalidArgument("tensor " + tensor.key + ": expected room for " +
                           ShapeString(tensor.shape) + " values, got " +
                           std::to_string(out.size()));
  }
  const Status status = WidenValues(*tensor.format, tensor.bytes, out).WithContext(tensor.key);
  tensor.Release(0, tensor.bytes.size());
  return status;
}

void AdapterTensor::Release(size_t first, size_t count) const {
  if (file == nullptr || bytes.empty()) return;
  file->Release(static_cast<size_t>(bytes.data() - file->bytes().data()) + first, count);
}

Result<std::unique_ptr<Adapter>> MakeAdapter(AdapterParts parts) {
  HEXPORT_RETURN_IF_ERROR(CheckPairs(parts));
  return std::unique_ptr<Adapter>(std::make_unique<OpenedAdapter>(std::move(parts)));
}

Result<std::unique_ptr<Adapter>> Adapter::Open(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return NotFound(path.string() +
                    ": expected a folder with adapter_config.json or a .gguf file, "
                    "got nothing");
  }
  if (error) return ErrnoStatus(error.value(), path.string());
  if (!fs::is_directory(status) && path.extension() == ".gguf") {
    HEXPORT_ASSIGN_OR_RETURN(AdapterParts parts, ReadGgufAdapter(path));
    return MakeAdapter(std::move(parts));
  }
  if (!fs::is_directory(status)) {
    return InvalidArgument(path.string() +
                           ": expected a folder with adapter_config.json or a .gguf file, got "
                           "another file");
  }
  HEXPORT_ASSIGN_OR_RETURN(AdapterParts parts, ReadPeftFolder(path));
  return MakeAdapter(std::move(parts));
}

}  // namespace hexport::adapter
