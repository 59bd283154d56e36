#include "adapter/base_tensors.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "adapter/float_values.h"
#include "adapter/gguf_base.h"
#include "adapter/quantized_base.h"
#include "base/file.h"
#include "base/mapped_file.h"
#include "checkpoint/block_format.h"
#include "checkpoint/json_fields.h"
#include "checkpoint/weight_files.h"

namespace hexport::adapter {
namespace {

namespace fs = std::filesystem;

// Mapped bytes that are widened before their pages are given back.
constexpr size_t kChunkBytes = size_t{4} << 20;

struct Place {
  const MappedFile* file = nullptr;
  uint64_t offset = 0, bytes = 0;
};

class FolderTensors final : public BaseTensors {
 public:
  static Result<std::unique_ptr<BaseTensors>> Open(const fs::path& given, const fs::path& folder,
                                                   const fs::path& weights);

  const fs::path& path() const override { return path_; }
  const std::vector<BaseTensor>& tensors() const override { return tensors_; }
  const BaseTensor* Find(const std::string& name) const override {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &tensors_[found->second];
  }
  Status ReadRows(const std::string& name, int64_t first_row, std::span<float> out) const override;
  std::span<const std::byte> Bytes(const std::string& name) const override;
  void Release(const std::string& name) const override;
  const std::string& config_json() const override { return config_; }
  bool dequantized() const override { return false; }
  std::vector<std::string> warnings() const override { return warnings_; }

 private:
  fs::path path_;
  std::string config_;
  std::vector<checkpoint::WeightFile> files_;
  std::vector<BaseTensor> tensors_;
  std::vector<Place> places_;
  std::map<std::string, size_t> index_;
  std::vector<std::string> warnings_;
};

Result<std::unique_ptr<BaseTensors>> FolderTensors::Open(const fs::path& given,
                                                         const fs::path& folder,
                                                         const fs::path& weights) {
  auto base = std::make_unique<FolderTensors>();
  base->path_ = given;
  std::error_code error;
  if (!fs::exists(folder / "config.json", error) &&
      fs::exists(folder / "adapter_config.json", error)) {
    return InvalidArgument(folder.string() + ": expected a base model, got a LoRA adapter");
  }
  HEXPORT_ASSIGN_OR_RETURN(base->config_, ReadTextFile(folder / "config.json"));
  HEXPORT_RETURN_IF_ERROR(
      checkpoint::ParseJsonObject(base->config_, (folder / "config.json").string()).status());
  HEXPORT_ASSIGN_OR_RETURN(
      checkpoint::WeightFiles opened,
      weights.empty() ? checkpoint::OpenWeightFiles(folder) : checkpoint::OpenWeightFile(weights));
  for (const checkpoint::WeightFile& shard : opened.files) {
    for (const SafetensorsEntry& entry : shard.entries) {
      base->index_.emplace(entry.name, base->tensors_.size());
      base->tensors_.push_back(
          {entry.name, entry.shape, entry.dtype, shard.file->path().filename().string()});
      base->places_.push_back({shard.file.get(), entry.begin, entry.end - entry.begin});
    }
  }
  const std::string format = QuantizedFormat(base->tensors_, base->config_);
  if (!format.empty()) {
    return Unimplemented(folder.string() + ": expected float weights, got " + format +
                         "; a LoRA delta can only be added to the model as it was before it was "
                         "quantized: name that one as the base");
  }
  base->files_ = std::move(opened.files);
  base->warnings_ = std::move(opened.warnings);
  return std::unique_ptr<BaseTensors>(std::move(base));
}

Status FolderTensors::ReadRows(const std::string& name, int64_t first_row,
                               std::span<float> out) const {
  const auto found = index_.find(name);
  if (found == index_.end()) return NotFound(path_.string() + ": tensor " + name + ": not there");
  const BaseTensor& tensor = tensors_[found->second];
  const checkpoint::BlockFormat* format = checkpoint::FindBlockFormat(tensor.stored_dtype);
  if (format == nullptr || format->elements != 1) {
    return Unimplemented(path_.string() + ": tensor " + name + ": expected F32, F16 or BF16, got " +
                         tensor.stored_dtype);
  }
  const int64_t total = NumElements(tensor.shape);
  const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
  const int64_t columns = rows == 0 ? 0 : total / rows;
  const auto size = static_cast<int64_t>(out.size());
  if (columns == 0 || size % columns != 0 || first_row < 0 || first_row > rows ||
      size / columns > rows - first_row) {
    return InvalidArgument(path_.string() + ": tensor " + name + ": expected whole rows within " +
                           ShapeString(tensor.shape) + ", got " + std::to_string(size) +
                           " values from row " + std::to_string(first_row));
  }
  const Place& place = places_[found->second];
  const auto value_bytes = static_cast<size_t>(format->bytes);
  const size_t begin = place.offset + static_cast<size_t>(first_row * columns) * value_bytes;
  const size_t chunk = kChunkBytes / value_bytes;
  for (size_t done = 0; done < out.size(); done += chunk) {
    const size_t count = std::min(chunk, out.size() - done);
    const size_t offset = begin + done * value_bytes;
    HEXPORT_RETURN_IF_ERROR(WidenValues(*format,
                                        place.file->bytes().subspan(offset, count * value_bytes),
                                        out.subspan(done, count))
                                .WithContext(name));
    place.file->Release(offset, count * value_bytes);
  }
  return OkStatus();
}

std::span<const std::byte> FolderTensors::Bytes(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) return {};
  const Place& place = places_[found->second];
  return place.file->bytes().subspan(place.offset, place.bytes);
}

void FolderTensors::Release(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) return;
  const Place& place = places_[found->second];
  place.file->Release(place.offset, place.bytes);
}

}  // namespace

Result<std::unique_ptr<BaseTensors>> BaseTensors::Open(const fs::path& path,
                                                       const BaseOptions& options) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return NotFound(path.string() +
                    ": expected a folder with config.json or a .gguf file, got "
                    "nothing");
  }
  if (error) return ErrnoStatus(error.value(), path.string());
  if (fs::is_directory(status)) return FolderTensors::Open(path, path, {});
  if (path.extension() == ".gguf") return OpenGgufBase(path, options);
  if (path.extension() == ".safetensors") {
    const fs::path folder = path.parent_path();
    return FolderTensors::Open(path, folder.empty() ? "." : folder, path);
  }
  return InvalidArgument(path.string() +
                         ": expected a folder with config.json, a .safetensors or a .gguf file, "
                         "got another file");
}

}  // namespace hexport::adapter
