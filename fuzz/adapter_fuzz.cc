// A whole adapter from a stranger, opened, matched to a small llama, and every row of the merged
// model computed. The input is a GGUF file, or adapter_config.json, a zero byte and
// adapter_model.safetensors.
#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/adapter.h"
#include "adapter/base_tensors.h"
#include "adapter/row_merger.h"

namespace {

namespace fs = std::filesystem;
using namespace hexport::adapter;

// Removed when the fuzzer ends well; libFuzzer ends by exit(), which destroys statics.
struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "hexport-fuzz-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  fs::path path;
};

void Spill(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

const BaseTensors& Base() {
  static const auto base = [] {
    auto opened = BaseTensors::Open(HEXPORT_FUZZ_BASE, {});
    if (!opened.ok()) std::abort();
    return *std::move(opened);
  }();
  return *base;
}

void MergeAllRows(const MatchedAdapters& adapters) {
  for (const MatchedAdapters::MergedTensor& tensor : adapters.tensors()) {
    if (hexport::NumElements(tensor.shape) > int64_t{1} << 20) continue;
    const auto merger = RowMerger::Create(adapters, tensor);
    if (!merger.ok()) continue;
    const auto size = static_cast<size_t>((*merger)->rows() * (*merger)->columns());
    std::vector<float> values(size), delta(size), merged(size);
    (void)(*merger)->Merge(0, values, delta, merged).ok();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  fs::path path = folder.path;
  if (input.starts_with("GGUF")) {
    path /= "adapter.gguf";
    Spill(path, input);
  } else {
    const size_t zero = input.find('\0');
    if (zero == std::string_view::npos) return 0;
    Spill(path / "adapter_config.json", input.substr(0, zero));
    Spill(path / "adapter_model.safetensors", input.substr(zero + 1));
  }
  const auto adapter = Adapter::Open(path);
  if (!adapter.ok()) return 0;
  const auto matched =
      MatchedAdapters::Match({{adapter->get(), size % 2 == 0 ? 1.0 : 0.5}}, Base(), {});
  if (matched.ok()) MergeAllRows(**matched);
  return 0;
}
