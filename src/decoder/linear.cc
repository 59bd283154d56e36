#include <algorithm>
#include <memory>
#include <new>
#include <string>

#include "decoder/decoder.h"

namespace hexport::decoder {
namespace {

// Rows transposed at once: enough for whole cache lines in the result, little memory.
constexpr int64_t kBlockRows = 64;

}  // namespace

Status ReadLinear(const Checkpoint& checkpoint, const LinearWeight& linear, std::span<float> out) {
  const int64_t in = linear.in_features, features = linear.out_features;
  if (in < 1 || features < 1 || static_cast<int64_t>(out.size()) != NumElements({in, features})) {
    return InvalidArgument(linear.name + ": expected room for " + ShapeString({in, features}) +
                           " floats, got " + std::to_string(out.size()));
  }
  const int64_t rows_at_once = std::min(kBlockRows, features);
  const auto block_size = static_cast<size_t>(rows_at_once * in);
  const std::unique_ptr<float[]> block(new (std::nothrow) float[block_size]);
  if (block == nullptr) return ResourceExhausted(linear.name + ": no memory for a block of rows");
  for (int64_t first = 0; first < features; first += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, features - first);
    HEXPORT_RETURN_IF_ERROR(
        checkpoint.ReadRows(linear.tensor, linear.first_row + first,
                            std::span(block.get(), static_cast<size_t>(rows * in))));
    for (int64_t k = 0; k < in; ++k) {
      float* column = out.data() + k * features + first;
      for (int64_t r = 0; r < rows; ++r) {
        column[r] = static_cast<float>(block[static_cast<size_t>(r * in + k)] * linear.scale);
      }
    }
  }
  return OkStatus();
}

Status ReadEmbedding(const Checkpoint& checkpoint, int64_t first_row, std::span<float> out) {
  HEXPORT_RETURN_IF_ERROR(checkpoint.ReadRows("model.embed_tokens.weight", first_row, out));
  const double scale = checkpoint.config().embedding_scale;
  if (scale == 1.0) return OkStatus();
  for (float& value : out) value = static_cast<float>(static_cast<double>(value) * scale);
  return OkStatus();
}

}  // namespace hexport::decoder
