// GGUF bytes from a stranger: container, config, tokenizer, and the values of every tensor.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/gguf_file.h"
#include "checkpoint/gguf_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hexport::checkpoint;
  const auto file = std::as_bytes(std::span(data, size));
  const auto contents = ParseGguf(file, "fuzz");
  if (!contents.ok()) return 0;
  (void)GgufModelConfig(*contents, file, "fuzz").ok();
  (void)GgufText(*contents, "fuzz").ok();
  for (const GgufTensor& tensor : contents->tensors) {
    (void)HfTensorName(tensor.name);
    const int64_t count = hexport::NumElements(tensor.shape);
    if (count > int64_t{1} << 20) continue;
    std::vector<float> values(static_cast<size_t>(count));
    (void)Widen(*tensor.format, file.subspan(tensor.offset, tensor.bytes), values).ok();
  }
  return 0;
}
