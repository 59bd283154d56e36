#include "compile/build_stages.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/sha256.h"
#include "bundle/genie_config.h"
#include "compile/bundle_model.h"
#include "compile/worker.h"
#include "decoder/decoder.h"
#include "graph/onnx_io.h"
#include "quant/calibrate.h"
#include "quant/channel_folds.h"
#include "quant/find_folds.h"
#include "quant/qdq.h"
#include "quant/quantized_model.h"
#include "quant/residual_rotation.h"

namespace hexport::compile {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

Status MakeFolder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), path.string());
  return OkStatus();
}

Status EmptyFolder(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return ErrnoStatus(error.value(), path.string());
  return MakeFolder(path);
}

Result<quant::RangeMap> LoadRanges(const fs::path& path) {
  HEXPORT_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path));
  return quant::ParseRanges(text, path.string());
}

// A file of the quantized model that is built from, to the working folder.
Status TakeFile(const BuildContext& context, const char* name, StageReport& report) {
  report.notes.push_back(std::string(name) + " of " + context.quantized.string());
  std::error_code ignored;
  fs::remove(context.work / name, ignored);
  return LinkOrCopy(context.quantized / name, context.work / name);
}

std::vector<bundle::IoEncoding> DescribeIo(const std::vector<graph::ValueInfo>& values,
                                           const quant::EncodingMap& encodings) {
  std::vector<bundle::IoEncoding> out;
  for (const graph::ValueInfo& value : values) {
    bundle::IoEncoding io;
    io.name = value.name;
    io.dtype = DTypeName(value.dtype);
    io.shape = value.shape;
    if (auto it = encodings.find(value.name); it != encodings.end()) {
      io.scale = static_cast<double>(it->second.scale);
      io.zero_point = it->second.zero_point;
    }
    out.push_back(std::move(io));
  }
  return out;
}

json IoToJson(const std::vector<bundle::IoEncoding>& values) {
  json out = json::array();
  for (const auto& io : values)
    out.push_back({io.name, io.dtype, io.shape, io.scale, io.zero_point});
  return out;
}

std::vector<bundle::IoEncoding> IoFromJson(const json& values) {
  std::vector<bundle::IoEncoding> out;
  for (const json& v : values) {
    out.push_back({v[0].get<std::string>(), v[1].get<std::string>(),
                   v[2].get<std::vector<int64_t>>(), v[3].get<double>(), v[4].get<int64_t>()});
  }
  return out;
}

// One QDQ graph per AR, all sharing weights.data.
Status WriteQdqGraphs(BuildContext& context, const quant::RangeMap& ranges,
                      const quant::WeightStore& store) {
  const fs::path folder = context.bundle() / "qdq";
  HEXPORT_RETURN_IF_ERROR(EmptyFolder(folder));
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<graph::SharedWeights> shared,
                           graph::SharedWeights::Create(folder / "weights.data"));
  graph::OnnxWriteOptions write;
  write.producer_version = HexportVersion();
  json described = json::array();
  int64_t done = 0;
  const std::vector<bundle::GraphEntry> plan = PlanGraphs(context.options);
  for (const bundle::GraphEntry& entry : plan) {
    context.progress.Update("graphs", done++, static_cast<int64_t>(plan.size()) + 1);
    decoder::DecoderOptions options;
    options.ar = entry.ar;
    options.cl = entry.cl;
    HEXPORT_ASSIGN_OR_RETURN(decoder::DecoderGraph decoder,
                             decoder::BuildDecoder(context.weights(), options));
    HEXPORT_ASSIGN_OR_RETURN(quant::QdqGraph qdq,
                             quant::BuildQdq(decoder, ranges, store, {context.options.config}));
    qdq.graph.name = entry.name;
    HEXPORT_RETURN_IF_ERROR(
        shared->WriteModel(qdq.graph, context.bundle() / entry.qdq_model, write));
    described.push_back({{"inputs", IoToJson(DescribeIo(qdq.graph.inputs, qdq.io))},
                         {"outputs", IoToJson(DescribeIo(qdq.graph.outputs, qdq.io))}});
  }
  HEXPORT_RETURN_IF_ERROR(shared->Commit());
  return WriteFileAtomically(context.work / "graphs.json", described.dump());
}

Status WriteCpuGraph(BuildContext& context, const quant::WeightStore& store) {
  HEXPORT_RETURN_IF_ERROR(EmptyFolder(context.bundle() / "cpu"));
  HEXPORT_ASSIGN_OR_RETURN(
      decoder::DecoderGraph decoder,
      decoder::BuildDecoder(context.weights(), {.context_length = context.options.context_length}));
  HEXPORT_ASSIGN_OR_RETURN(graph::Graph graph, quant::BuildCpu(decoder, store));
  graph.name = "decoder_cpu";
  graph::OnnxWriteOptions write;
  write.external_data_threshold_bytes = 0;
  write.external_data_name = "weights.data";
  write.producer_version = HexportVersion();
  return graph::WriteOnnx(graph, context.bundle() / "cpu" / "model.onnx", write);
}

json CompileRequest(const BuildContext& context, const fs::path& trace_dir, bool share) {
  return {{"models", json::array()},
          {"context_models", json::array()},
          {"soc_model", context.soc.soc_model},
          {"htp_arch", context.soc.htp_arch},
          {"vtcm_mb", context.soc.vtcm_mb},
          {"share", share},
          {"trace_dir", trace_dir.string()}};
}

Status RunCompile(const json& request, const std::string& what, StageReport& report) {
  WorkerReport child;
  Result<json> result = CallWorker("compile", request, what, {}, &child);
  report.child_peak_rss_mb = static_cast<double>(child.peak_rss_bytes) / (1 << 20);
  if (!result.ok()) return result.status();
  for (const json& trace : (*result)["traces"]) {
    report.notes.push_back(std::to_string(trace["nodes"].get<int64_t>()) +
                           " ONNX nodes on the NPU, none elsewhere");
  }
  return OkStatus();
}

// Genie's two files, or none and a note why: hexport's own runtime runs the bundle all the same.
Status WriteGenieFiles(BuildContext& context, StageReport& report) {
  bundle::Manifest& manifest = context.manifest;
  const fs::path root = context.bundle();
  bundle::GenieOptions genie;
  genie.binaries = manifest.context_binaries;
  if (genie.binaries.empty()) {
    for (const bundle::GraphEntry& entry : manifest.graphs)
      genie.binaries.push_back(entry.emulator_binary);
  }
  genie.tokenizer_path = manifest.tokenizer;
  genie.extensions_path = manifest.backend_config;
  const Result<std::string> config = bundle::GenieConfigJson(manifest, genie);
  std::error_code ignored;
  fs::remove(root / manifest.genie_config, ignored);  // of an interrupted build
  fs::remove(root / manifest.backend_config, ignored);
  if (!config.ok()) {
    manifest.notes.push_back("no Genie files: " + config.status().message());
    report.notes.push_back(manifest.notes.back());
    context.progress.Note(report.notes.back());
    manifest.genie_config.clear();
    manifest.backend_config.clear();
    return OkStatus();
  }
  HEXPORT_RETURN_IF_ERROR(WriteFileAtomically(
      root / manifest.backend_config,
      bundle::BackendConfigJson(context.soc.soc_model, context.soc.htp_arch, /*emulator=*/false)));
  return WriteFileAtomically(root / manifest.genie_config, *config);
}

// Average bits, and the linears that lost most.
void NoteLosses(std::vector<quant::LinearLoss> losses, StageReport& report) {
  char text[160];
  std::snprintf(text, sizeof(text), "%.3f bits a decoder weight, scales included",
                quant::BitsPerWeight(losses));
  report.notes.emplace_back(text);
  const size_t worst = std::min<size_t>(3, losses.size());
  std::partial_sort(
      losses.begin(), losses.begin() + static_cast<std::ptrdiff_t>(worst), losses.end(),
      [](const auto& a, const auto& b) { return a.relative_error > b.relative_error; });
  for (size_t i = 0; i < worst && losses[i].relative_error >= 0.0; ++i) {
    std::snprintf(text, sizeof(text), "%s: relative output error %.3f", losses[i].name.c_str(),
                  losses[i].relative_error);
    report.notes.emplace_back(text);
  }
}

}  // namespace

fs::path WorkFolderOf(const fs::path& out) {
  const fs::path absolute = fs::absolute(out).lexically_normal();
  const fs::path named = absolute.has_filename() ? absolute : absolute.parent_path();
  return named.parent_path() / ("." + named.filename().string() + ".hexport-work");
}

std::string SamplesAsText(const std::vector<std::vector<int32_t>>& samples) {
  std::string text;
  for (const auto& sample : samples) {
    for (const int32_t id : sample) text += std::to_string(id) + ",";
    text += ";";
  }
  return text;
}

Status RunStage(BuildContext& context, const std::string& name, const std::string& key,
                const std::function<Status(StageReport&)>& body) {
  const fs::path marker = context.work / "stages" / name;
  StageTimer timer(name);
  const Result<std::string> finished = ReadTextFile(marker);
  if (finished.ok() && *finished == key) {
    timer.report().reused = true;
    context.report.stages.push_back(timer.Finish());
    context.any_finished = true;
    context.progress.Note(name + ": reused from an earlier run");
    return OkStatus();
  }
  std::error_code ignored;
  fs::remove(marker, ignored);
  context.progress.Update(name, 0, 0);
  const Status status = body(timer.report());
  context.report.stages.push_back(timer.Finish());
  if (!status.ok()) return status.WithContext(name);
  context.any_finished = true;
  return WriteFileAtomically(marker, key);
}

Status FoldStage(BuildContext& context, StageReport& report) {
  std::error_code ignored;
  if (!context.quantized.empty() && fs::exists(context.quantized / quant::kFoldsFile, ignored))
    return TakeFile(context, quant::kFoldsFile, report);
  const quant::QuantConfig& config = context.options.config;
  HEXPORT_ASSIGN_OR_RETURN(const decoder::DecoderGraph graph,
                           decoder::BuildDecoder(context.weights(), {}));
  std::vector<quant::ChannelFold> folds;
  if (context.quantized.empty() && quant::NeedsFolds(config, graph)) {
    HEXPORT_ASSIGN_OR_RETURN(
        folds, quant::FindFolds(context.weights(), graph, config, context.calibration.samples,
                                context.options.context_length, context.progress));
  }
  report.notes.push_back(std::to_string(folds.size()) + " channel folds");
  return quant::WriteFolds(folds, context.work / quant::kFoldsFile);
}

Status LoadFolds(BuildContext& context) {
  HEXPORT_ASSIGN_OR_RETURN(const std::vector<quant::ChannelFold> folds,
                           quant::ReadFolds(context.weights(), context.work / quant::kFoldsFile));
  if (folds.empty()) return OkStatus();
  HEXPORT_ASSIGN_OR_RETURN(context.folded, quant::FoldChannels(context.weights(), folds));
  return OkStatus();
}

Status CalibrateStage(BuildContext& context, StageReport& report) {
  if (!context.quantized.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(const quant::QuantizedFacts facts,
                             quant::ReadQuantizedFacts(context.quantized));
    report.notes.push_back("ranges of " + context.quantized.string());
    return WriteFileAtomically(context.work / "ranges.json", quant::RangesToJson(facts.ranges));
  }
  HEXPORT_ASSIGN_OR_RETURN(
      quant::Calibration calibration,
      quant::Calibrate(
          context.weights(), context.calibration.samples, context.progress,
          quant::CalibrateOptionsOf(context.options.config, context.options.context_length)));
  report.notes.push_back(std::to_string(calibration.samples) + " samples, " +
                         std::to_string(calibration.tokens) + " tokens from " +
                         context.calibration.source);
  return WriteFileAtomically(context.work / "ranges.json", quant::RangesToJson(calibration.ranges));
}

Status QuantizeStage(BuildContext& context, const std::string& key, StageReport& report) {
  if (!context.quantized.empty()) return TakeFile(context, "weights.safetensors", report);
  HEXPORT_ASSIGN_OR_RETURN(decoder::DecoderGraph decoder,
                           decoder::BuildDecoder(context.weights(), {}));
  report.notes.push_back(
      std::string(quant::WeightFormatName(context.options.config.weights.format)) + ", method " +
      std::string(quant::MethodName(context.options.config.method)) +
      "; lm_head int8; embedding 16 bit" +
      (context.rotated != nullptr ? "; residual stream rotated" : ""));
  if (context.options.rotate_residual && context.rotated == nullptr) {
    report.notes.push_back(
        "residual stream not rotated: " + context.checkpoint->config().architecture +
        " norms what joins it, so the rotation cannot be folded in");
    context.progress.Note(report.notes.back());
  }
  quant::WeightQuantization quantization;
  quantization.config = context.options.config;
  quantization.context_length = context.options.context_length;
  quantization.work = context.work / "layers";
  quantization.key = key;
  HEXPORT_RETURN_IF_ERROR(MakeFolder(quantization.work));
  HEXPORT_ASSIGN_OR_RETURN(
      const std::vector<quant::LinearLoss> losses,
      quant::QuantizeModelWeights(context.weights(), decoder, quantization,
                                  context.calibration.samples, context.work / "weights.safetensors",
                                  context.progress));
  NoteLosses(losses, report);
  std::error_code ignored;
  fs::remove_all(quantization.work, ignored);
  return OkStatus();
}

Status GraphsStage(BuildContext& context, StageReport& /*report*/) {
  HEXPORT_ASSIGN_OR_RETURN(quant::RangeMap ranges, LoadRanges(context.work / "ranges.json"));
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<quant::WeightStore> store,
                           quant::WeightStore::Open(context.work / "weights.safetensors"));
  HEXPORT_RETURN_IF_ERROR(WriteQdqGraphs(context, ranges, *store));
  return WriteCpuGraph(context, *store);
}

Status CompilePlainStage(BuildContext& context, const bundle::GraphEntry& entry,
                         StageReport& report) {
  const fs::path trace = context.bundle() / "trace";
  HEXPORT_RETURN_IF_ERROR(MakeFolder(context.bundle() / "emulator"));
  HEXPORT_RETURN_IF_ERROR(MakeFolder(trace));
  std::error_code ignored;  // the compiler refuses to write over files
  fs::remove(context.bundle() / entry.emulator_model, ignored);
  fs::remove(context.bundle() / entry.emulator_binary, ignored);
  json request = CompileRequest(context, trace, false);
  request["models"] = {(context.bundle() / entry.qdq_model).string()};
  request["context_models"] = {(context.bundle() / entry.emulator_model).string()};
  HEXPORT_RETURN_IF_ERROR(RunCompile(request, entry.name, report));
  if (!fs::exists(context.bundle() / entry.emulator_binary)) {
    return Internal(entry.name + ": the compiler ended well but wrote no " + entry.emulator_binary);
  }
  return OkStatus();
}

Status CompileSharedStage(BuildContext& context, StageReport& report) {
  const fs::path folder = context.work / "shared";
  HEXPORT_RETURN_IF_ERROR(EmptyFolder(folder));
  HEXPORT_RETURN_IF_ERROR(EmptyFolder(context.bundle() / "context"));
  json request = CompileRequest(context, folder, true);
  for (const bundle::GraphEntry& entry : PlanGraphs(context.options)) {
    request["models"].push_back((context.bundle() / entry.qdq_model).string());
    request["context_models"].push_back((folder / (entry.name + ".onnx")).string());
  }
  HEXPORT_RETURN_IF_ERROR(RunCompile(request, "weight-shared binary", report));
  std::vector<fs::path> binaries;
  for (const auto& file : fs::directory_iterator(folder)) {
    if (file.path().extension() == ".bin") binaries.push_back(file.path());
  }
  if (binaries.size() != 1) {
    return Internal("weight-shared binary: expected one .bin from the compiler, got " +
                    std::to_string(binaries.size()));
  }
  std::error_code error;
  fs::rename(binaries[0], context.bundle() / context.manifest.context_binaries.at(0), error);
  if (error) return ErrnoStatus(error.value(), binaries[0].string());
  fs::remove_all(folder, error);
  return OkStatus();
}

// What measuring the bundle's quantized model takes beside its graphs.
Status WriteQuantFacts(const BuildContext& context) {
  const bundle::Manifest& manifest = context.manifest;
  quant::QuantizedFacts facts;
  facts.hexport_version = manifest.hexport_version;
  facts.source_path = manifest.source_path;
  facts.source_sha256 = manifest.source_sha256;
  if (context.rotated != nullptr) facts.rotation_seed = quant::kResidualRotationSeed;
  facts.folded = context.folded != nullptr;
  facts.config = context.options.config;
  facts.context_length = context.options.context_length;
  HEXPORT_ASSIGN_OR_RETURN(facts.ranges, LoadRanges(context.work / "ranges.json"));
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<quant::WeightStore> store,
                           quant::WeightStore::Open(context.work / "weights.safetensors"));
  HEXPORT_ASSIGN_OR_RETURN(const decoder::DecoderGraph graph,
                           decoder::BuildDecoder(context.weights(), {}));
  HEXPORT_ASSIGN_OR_RETURN(facts.losses, quant::StoredLinears(*store, graph, facts.config));
  facts.calibration_source = context.calibration.source;
  facts.calibration = context.calibration.samples;
  const fs::path folder = context.bundle() / kQuantFolder;
  HEXPORT_RETURN_IF_ERROR(EmptyFolder(folder));
  if (facts.folded)
    HEXPORT_RETURN_IF_ERROR(
        LinkOrCopy(context.work / quant::kFoldsFile, folder / quant::kFoldsFile));
  return WriteFileAtomically(folder / "quant.json", quant::QuantizedFactsToJson(facts));
}

Status BundleStage(BuildContext& context, StageReport& report) {
  bundle::Manifest& manifest = context.manifest;
  const fs::path root = context.bundle();
  HEXPORT_RETURN_IF_ERROR(
      WriteFileAtomically(root / manifest.tokenizer, context.text.tokenizer_json));
  if (!manifest.chat_template.empty()) {
    HEXPORT_RETURN_IF_ERROR(
        WriteFileAtomically(root / manifest.chat_template, context.text.chat_template));
  }
  HEXPORT_RETURN_IF_ERROR(WriteFileAtomically(
      root / manifest.calibration,
      json{{"source", context.calibration.source}, {"samples", context.calibration.samples}}
          .dump()));
  HEXPORT_RETURN_IF_ERROR(WriteQuantFacts(context));
  HEXPORT_RETURN_IF_ERROR(WriteGenieFiles(context, report));
  std::error_code ignored;
  fs::remove(root / "report.json", ignored);
  fs::remove(root / "manifest.json", ignored);
  HEXPORT_ASSIGN_OR_RETURN(manifest.files, bundle::HashFiles(root));
  return OkStatus();
}

std::vector<bundle::GraphEntry> PlanGraphs(const BuildOptions& options) {
  std::vector<bundle::GraphEntry> plan;
  std::vector<int64_t> ars = {options.prompt_ar};
  if (options.prompt_ar != 1) ars.push_back(1);
  for (const int64_t ar : ars) {
    bundle::GraphEntry entry;
    entry.ar = ar;
    entry.cl = options.context_length;
    entry.name = std::string(ar == 1 ? "token" : "prompt") + "_ar" + std::to_string(ar) + "_cl" +
                 std::to_string(entry.cl) + "_1_of_1";
    entry.qdq_model = "qdq/" + entry.name + ".onnx";
    entry.emulator_model = "emulator/" + entry.name + ".onnx";
    entry.emulator_binary =
        "emulator/" + entry.name + "_qnn.bin";  // the name the QNN provider gives it
    plan.push_back(std::move(entry));
  }
  return plan;
}

Status LoadGraphs(BuildContext& context) {
  HEXPORT_ASSIGN_OR_RETURN(std::string text, ReadTextFile(context.work / "graphs.json"));
  const json described = json::parse(text, nullptr, false);
  context.manifest.graphs = PlanGraphs(context.options);
  if (!described.is_array() || described.size() != context.manifest.graphs.size()) {
    return DataLoss((context.work / "graphs.json").string() +
                    ": not what an earlier run wrote; delete " + context.work.string());
  }
  for (size_t i = 0; i < described.size(); ++i) {
    context.manifest.graphs[i].inputs = IoFromJson(described[i]["inputs"]);
    context.manifest.graphs[i].outputs = IoFromJson(described[i]["outputs"]);
  }
  return OkStatus();
}

bundle::ModelFacts FactsOf(const ModelConfig& config, const TextAssets& text,
                           int64_t context_length) {
  bundle::ModelFacts facts;
  facts.architecture = config.architecture;
  facts.name = config.name;
  facts.hidden_size = config.hidden_size;
  facts.intermediate_size = config.intermediate_size;
  facts.num_hidden_layers = config.num_hidden_layers;
  facts.num_attention_heads = config.num_attention_heads;
  facts.num_key_value_heads = config.num_key_value_heads;
  facts.head_dim = config.head_dim;
  facts.vocab_size = config.vocab_size;
  facts.max_position_embeddings = config.max_position_embeddings;
  facts.rms_norm_eps = config.rms_norm_eps;
  const RopeScaling& scaling = config.rope.scaling;
  facts.rope_theta = config.rope.rope_theta;
  facts.rope_scaling = RopeTypeName(scaling.type);
  facts.rope_factor = scaling.factor;
  facts.rope_low_freq_factor = scaling.low_freq_factor;
  facts.rope_high_freq_factor = scaling.high_freq_factor;
  facts.rope_original_max_position_embeddings = scaling.original_max_position_embeddings;
  facts.rope_frequencies = InverseFrequencies(config.rope, context_length);
  facts.rope_attention_factor = scaling.attention_factor;
  if (config.local_rope.has_value()) {
    facts.local_rope_frequencies = InverseFrequencies(*config.local_rope, context_length);
    facts.local_rope_attention_factor = config.local_rope->scaling.attention_factor;
  }
  facts.sliding_window = config.sliding_window;
  facts.bos_token_id = config.bos_token_id;
  facts.eos_token_ids = config.eos_token_ids;
  facts.bos_token = text.bos_token;
  facts.eos_token = text.eos_token;
  return facts;
}

}  // namespace hexport::compile
