#include "adapter/base_hash.h"

#include <algorithm>
#include <map>

#include "base/sha256.h"

namespace hexport::adapter {
namespace {

constexpr int64_t kChunkValues = int64_t{1} << 20;

Status HashRows(const BaseTensors& base, const BaseTensor& tensor, Sha256& hash) {
  const int64_t total = NumElements(tensor.shape);
  if (total == 0) return OkStatus();
  const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
  const int64_t columns = total / rows;
  const int64_t step = std::max<int64_t>(1, kChunkValues / columns);
  std::vector<float> values;
  for (int64_t row = 0; row < rows; row += step) {
    values.resize(static_cast<size_t>(std::min(step, rows - row) * columns));
    HEXPORT_RETURN_IF_ERROR(base.ReadRows(tensor.name, row, values));
    hash.Update(std::as_bytes(std::span<const float>(values)));
  }
  return OkStatus();
}

}  // namespace

Result<std::string> HashBase(const BaseTensors& base) {
  std::map<std::string, std::string> lines;
  for (const BaseTensor& tensor : base.tensors()) {
    Sha256 hash;
    const std::span<const std::byte> bytes = base.Bytes(tensor.name);
    if (bytes.empty()) {
      HEXPORT_RETURN_IF_ERROR(HashRows(base, tensor, hash));
    } else {
      hash.Update(bytes);
      base.Release(tensor.name);
    }
    lines.emplace(tensor.name,
                  tensor.stored_dtype + " " + ShapeString(tensor.shape) + " " + hash.HexDigest());
  }
  Sha256 all;
  for (const auto& [name, rest] : lines) all.Update(name + " " + rest + "\n");
  return all.HexDigest();
}

}  // namespace hexport::adapter
