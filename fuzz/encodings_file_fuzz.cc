// Any bytes as an encodings file: refused with a Status, or accepted, then the same records when
// written and read again, and findings against a small graph that name every tensor that is none.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "fuzz/json_mutator.h"
#include "quant/encodings_check.h"
#include "quant/encodings_file.h"

namespace {

using namespace hexport;

decoder::DecoderGraph SmallGraph() {
  decoder::DecoderGraph out;
  out.graph.inputs = {{"gate", DType::kFloat32, {1, 2, 32}, {}}};
  out.graph.outputs = {{"norm", DType::kFloat32, {1, 2, 2}, {}}};
  out.graph.nodes = {{"MatMul", "", "norm", {"gate", "w"}, {"norm"}, {}}};
  out.graph.initializers = {{"w", DType::kFloat32, {32, 2}, {}}};
  out.linears = {{"w", "w", 32, 2, 1.0, false, 0}};
  out.activations = {{out.graph.inputs[0], "gate"}, {out.graph.outputs[0], "norm"}};
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hexport::quant;
  static const decoder::DecoderGraph graph = SmallGraph();
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto file = ParseEncodingsFile(text, "fuzz");
  if (!file.ok()) return 0;
  const auto written = EncodingsFileToJson(*file);
  if (!written.ok()) std::abort();
  const auto again = ParseEncodingsFile(*written, "fuzz");
  if (!again.ok() || again->activations != file->activations || again->params != file->params)
    std::abort();
  size_t strangers = 0;
  for (const auto* list : {&file->activations, &file->params}) {
    for (const TensorEncoding& encoding : *list)
      strangers += encoding.name != "w" && encoding.name != "gate" && encoding.name != "norm";
  }
  for (const EncodingFinding& finding : CheckEncodings(*file, graph))
    strangers -= finding.fault == EncodingFault::kUnknownName;
  if (strangers != 0) std::abort();
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return hexport::fuzz::MutateJson(data, size, max_size, seed);
}
