#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "bundle/manifest.h"
#include "cli/console.h"
#include "cli/inspect.h"

namespace hexport::cli {
namespace {

using nlohmann::ordered_json;

ordered_json IoJson(const std::vector<bundle::IoEncoding>& values) {
  ordered_json out = ordered_json::array();
  for (const auto& io : values) {
    ordered_json entry = {{"name", io.name}, {"dtype", io.dtype}, {"shape", io.shape}};
    if (io.scale > 0) {
      entry["scale"] = io.scale;
      entry["zero_point"] = io.zero_point;
    }
    out.push_back(std::move(entry));
  }
  return out;
}

ordered_json BundleJson(const bundle::Manifest& manifest) {
  ordered_json graphs = ordered_json::array(), files = ordered_json::array();
  for (const auto& graph : manifest.graphs) {
    graphs.push_back({{"name", graph.name},
                      {"ar", graph.ar},
                      {"cl", graph.cl},
                      {"inputs", IoJson(graph.inputs)},
                      {"outputs", IoJson(graph.outputs)}});
  }
  for (const auto& file : manifest.files) {
    files.push_back({{"path", file.path}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  const bundle::ModelFacts& model = manifest.model;
  return {{"kind", "bundle"},
          {"schema_version", manifest.schema_version},
          {"architecture", model.architecture},
          {"name", model.name},
          {"hidden_size", model.hidden_size},
          {"num_hidden_layers", model.num_hidden_layers},
          {"num_attention_heads", model.num_attention_heads},
          {"num_key_value_heads", model.num_key_value_heads},
          {"head_dim", model.head_dim},
          {"vocab_size", model.vocab_size},
          {"soc", manifest.soc},
          {"htp_arch", manifest.htp_arch},
          {"weights", manifest.weights},
          {"block_size", manifest.block_size},
          {"activation_bits", manifest.activation_bits},
          {"kv_bits", manifest.kv_bits},
          {"context_length", manifest.context_length},
          {"eos_token_ids", model.eos_token_ids},
          {"hexport_version", manifest.hexport_version},
          {"ort_version", manifest.ort_version},
          {"qnn_version", manifest.qnn_version},
          {"graphs", std::move(graphs)},
          {"files", std::move(files)}};
}

void PrintBundle(const std::string& path, const bundle::Manifest& manifest) {
  const bundle::ModelFacts& model = manifest.model;
  std::printf("%s: bundle of %s (%s)\n", path.c_str(), model.name.c_str(),
              model.architecture.c_str());
  std::printf("  %ld layers, hidden %ld, heads %ld/%ld of %ld, vocabulary %ld\n",
              static_cast<long>(model.num_hidden_layers), static_cast<long>(model.hidden_size),
              static_cast<long>(model.num_attention_heads),
              static_cast<long>(model.num_key_value_heads), static_cast<long>(model.head_dim),
              static_cast<long>(model.vocab_size));
  std::printf("  for %s (V%d), weights %s, activations %d bit, KV %d bit, context %ld\n",
              manifest.soc.c_str(), manifest.htp_arch, manifest.weights.c_str(),
              manifest.activation_bits, manifest.kv_bits,
              static_cast<long>(manifest.context_length));
  std::printf("  made by hexport %s with ONNX Runtime %s, QAIRT %s\n",
              manifest.hexport_version.c_str(), manifest.ort_version.c_str(),
              manifest.qnn_version.c_str());
  std::printf("graphs\n");
  for (const auto& graph : manifest.graphs) {
    std::printf("  %-36s %zu inputs, %zu outputs\n", graph.name.c_str(), graph.inputs.size(),
                graph.outputs.size());
  }
  std::printf("files\n");
  for (const auto& file : manifest.files) {
    std::printf("  %12ld  %.12s  %s\n", static_cast<long>(file.bytes), file.sha256.c_str(),
                file.path.c_str());
  }
}

}  // namespace

int InspectBundle(const InspectArguments& arguments) {
  const Result<bundle::Manifest> manifest = bundle::OpenBundle(arguments.path, arguments.hash);
  if (!manifest.ok()) return Fail(manifest.status(), arguments.json);
  if (arguments.json)
    PrintJson(BundleJson(*manifest));
  else
    PrintBundle(arguments.path, *manifest);
  return kExitOk;
}

}  // namespace hexport::cli
