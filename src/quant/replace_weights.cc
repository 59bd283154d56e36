#include "quant/replace_weights.h"

#include "quant/weight_store_writer.h"

namespace hexport::quant {

Status ReplaceWeights(const Checkpoint& checkpoint, const decoder::DecoderGraph& graph,
                      const WeightStore& store,
                      const std::map<std::string, WeightOptions>& replaced,
                      const std::filesystem::path& path, Progress& progress) {
  std::map<std::string, WeightOptions> formats = replaced;
  for (const decoder::LinearWeight& linear : graph.linears) {
    if (formats.contains(linear.name)) continue;
    HEXPORT_ASSIGN_OR_RETURN(const QuantizedWeight kept, store.Describe(linear.name));
    formats[linear.name] = {kept.format, kept.block_size};
  }
  const auto format_of = [&formats](const decoder::LinearWeight& linear) {
    return formats.at(linear.name);
  };
  std::optional<Encoding> embedding;
  if (!graph.embedding.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(embedding, store.EmbeddingEncoding(graph.embedding));
  }
  HEXPORT_ASSIGN_OR_RETURN(
      const std::unique_ptr<WeightStoreWriter> writer,
      WeightStoreWriter::Create(checkpoint, graph, format_of, path, progress, embedding));
  for (const decoder::LinearWeight& linear : graph.linears) {
    if (replaced.contains(linear.name)) {
      HEXPORT_RETURN_IF_ERROR(writer->AppendRtn(linear));
      continue;
    }
    HEXPORT_ASSIGN_OR_RETURN(const QuantizedWeight kept, store.Read(linear.name));
    HEXPORT_RETURN_IF_ERROR(writer->Append(kept));
  }
  return writer->Commit();
}

}  // namespace hexport::quant
