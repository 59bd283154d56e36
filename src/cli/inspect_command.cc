#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "bundle/manifest.h"
#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "cli/console.h"

namespace hexport::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct InspectArguments {
  std::string path;
  bool json = false, hash = false;
};

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

struct CheckpointSummary {
  int64_t parameters = 0;
  std::map<std::string, int64_t> tensors_by_dtype;
};

CheckpointSummary Summarize(const Checkpoint& checkpoint) {
  CheckpointSummary summary;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    summary.parameters += NumElements(tensor.shape);
    ++summary.tensors_by_dtype[tensor.stored_dtype];
  }
  return summary;
}

int InspectCheckpoint(const InspectArguments& arguments) {
  const Result<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(arguments.path);
  if (!checkpoint.ok()) return Fail(checkpoint.status(), arguments.json);
  const ModelConfig& config = (*checkpoint)->config();
  const CheckpointSummary summary = Summarize(**checkpoint);
  const Result<TextAssets> text = (*checkpoint)->Text();
  const std::string odd =
      text.ok() ? (text->chat_template.empty() ? "no chat template" : "") : text.status().message();
  if (arguments.json) {
    PrintJson({{"kind", "checkpoint"},
               {"architecture", config.architecture},
               {"name", config.name},
               {"hidden_size", config.hidden_size},
               {"intermediate_size", config.intermediate_size},
               {"num_hidden_layers", config.num_hidden_layers},
               {"num_attention_heads", config.num_attention_heads},
               {"num_key_value_heads", config.num_key_value_heads},
               {"head_dim", config.head_dim},
               {"vocab_size", config.vocab_size},
               {"max_position_embeddings", config.max_position_embeddings},
               {"rope_theta", config.rope_theta},
               {"rms_norm_eps", config.rms_norm_eps},
               {"tie_word_embeddings", config.tie_word_embeddings},
               {"eos_token_ids", config.eos_token_ids},
               {"parameters", summary.parameters},
               {"tensors_by_dtype", summary.tensors_by_dtype},
               {"odd", odd}});
    return kExitOk;
  }
  std::printf("%s: checkpoint %s (%s), %.1f M parameters\n", arguments.path.c_str(),
              config.name.c_str(), config.architecture.c_str(),
              static_cast<double>(summary.parameters) * 1e-6);
  std::printf(
      "  %ld layers, hidden %ld, intermediate %ld, heads %ld/%ld of %ld, vocabulary %ld%s\n",
      static_cast<long>(config.num_hidden_layers), static_cast<long>(config.hidden_size),
      static_cast<long>(config.intermediate_size), static_cast<long>(config.num_attention_heads),
      static_cast<long>(config.num_key_value_heads), static_cast<long>(config.head_dim),
      static_cast<long>(config.vocab_size), config.tie_word_embeddings ? ", tied lm_head" : "");
  for (const auto& [dtype, count] : summary.tensors_by_dtype) {
    std::printf("  %ld tensors %s\n", static_cast<long>(count), dtype.c_str());
  }
  if (!odd.empty()) std::printf("  odd: %s\n", odd.c_str());
  return kExitOk;
}

int RunInspect(const InspectArguments& arguments) {
  std::error_code error;
  if (!fs::exists(fs::path(arguments.path) / "manifest.json", error))
    return InspectCheckpoint(arguments);
  const Result<bundle::Manifest> manifest = bundle::OpenBundle(arguments.path, arguments.hash);
  if (!manifest.ok()) return Fail(manifest.status(), arguments.json);
  if (arguments.json)
    PrintJson(BundleJson(*manifest));
  else
    PrintBundle(arguments.path, *manifest);
  return kExitOk;
}

}  // namespace

void AddInspectCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command =
      app.add_subcommand("inspect", "What a bundle or checkpoint is, in one screen");
  command->add_option("path", arguments->path, "A bundle, a GGUF file or a Hugging Face folder")
      ->required();
  command->add_flag("--hash", arguments->hash, "Also check the SHA-256 of every file of a bundle");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->footer("Examples:\n  hexport inspect out/model --json\n  hexport inspect model.gguf");
  command->callback([arguments, &exit_code] { exit_code = RunInspect(*arguments); });
}

}  // namespace hexport::cli
