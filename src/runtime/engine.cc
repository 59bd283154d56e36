#include "runtime/engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "device/soc.h"

namespace hexport::runtime {
namespace {

namespace fs = std::filesystem;
using Runners = std::vector<std::unique_ptr<GraphRunner>>;

constexpr int64_t kDefaultChunk = 32;  // float engine of a bundle without NPU graphs

// The manifest's graphs of the full context length, largest AR first.
Result<std::vector<bundle::GraphEntry>> SortedGraphs(const bundle::Manifest& manifest) {
  std::vector<bundle::GraphEntry> graphs;
  for (const bundle::GraphEntry& graph : manifest.graphs) {
    if (graph.cl == manifest.context_length) graphs.push_back(graph);
  }
  std::sort(graphs.begin(), graphs.end(),
            [](const bundle::GraphEntry& a, const bundle::GraphEntry& b) { return a.ar > b.ar; });
  for (size_t i = 1; i < graphs.size(); ++i) {
    if (graphs[i].ar == graphs[i - 1].ar) {
      return Unimplemented(graphs[i].name + ": expected one graph with ar " +
                           std::to_string(graphs[i].ar) +
                           ", got several; models in parts are not supported");
    }
  }
  return graphs;
}

int VtcmMegabytes(int soc_model) {
  for (const device::Soc& soc : device::AllSocs()) {
    if (soc.soc_model == soc_model) return soc.vtcm_mb;
  }
  return 8;
}

ort::SessionOptions OptionsFor(const bundle::Manifest& manifest, EngineKind kind) {
  ort::SessionOptions options;
  if (kind == EngineKind::kQdq) options.exact_qdq = true;
  if (kind == EngineKind::kEmulator) {
    options.provider = ort::SessionOptions::Provider::kQnn;
    options.config_entries = {{"session.disable_cpu_ep_fallback", "1"}};
    options.qnn_options = {{"soc_model", std::to_string(manifest.soc_model)},
                           {"htp_arch", std::to_string(manifest.htp_arch)},
                           {"vtcm_mb", std::to_string(VtcmMegabytes(manifest.soc_model))},
                           {"offload_graph_io_quantization", "0"},
                           {"htp_graph_finalization_optimization_mode", "3"}};
  }
  return options;
}

Result<Runners> OpenFloat(const fs::path& bundle, const bundle::Manifest& manifest,
                          const RunnerFacts& facts, const std::vector<bundle::GraphEntry>& graphs) {
  if (manifest.cpu_model.empty()) {
    return FailedPrecondition(bundle.string() +
                              ": has no float model (cpu_model); build the bundle again");
  }
  HEXPORT_ASSIGN_OR_RETURN(
      std::shared_ptr<ort::Session> session,
      ort::Session::Create(bundle / manifest.cpu_model, OptionsFor(manifest, EngineKind::kCpu)));
  std::vector<int64_t> ars;
  for (const bundle::GraphEntry& graph : graphs) ars.push_back(graph.ar);
  if (ars.empty()) ars.push_back(std::min(kDefaultChunk, manifest.context_length - 1));
  if (ars.back() != 1) ars.push_back(1);
  Runners runners;
  for (const int64_t ar : ars) {
    HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<GraphRunner> runner,
                             GraphRunner::CreateFloat(facts, ar, session));
    runners.push_back(std::move(runner));
  }
  return runners;
}

// All graphs read and write one cache.
Status CheckOneCache(const GraphRunner& a, const GraphRunner& b) {
  for (size_t i = 0; i < a.cache_encodings().size(); ++i) {
    const bundle::IoEncoding &x = a.cache_encodings()[i], &y = b.cache_encodings()[i];
    if (x.dtype == y.dtype && x.scale == y.scale && x.zero_point == y.zero_point) continue;
    return FailedPrecondition(x.name + ": expected one encoding in all graphs, got " + x.dtype +
                              " " + std::to_string(x.scale) + " with ar " + std::to_string(a.ar()) +
                              " and " + y.dtype + " " + std::to_string(y.scale) + " with ar " +
                              std::to_string(b.ar()));
  }
  return OkStatus();
}

}  // namespace

Result<Runners> OpenRunners(const fs::path& bundle, const bundle::Manifest& manifest,
                            EngineKind kind) {
  RunnerFacts facts;
  facts.model = manifest.model;
  facts.context_length = manifest.context_length;
  facts.mask_floor = manifest.mask_floor;
  HEXPORT_ASSIGN_OR_RETURN(const std::vector<bundle::GraphEntry> graphs, SortedGraphs(manifest));
  if (kind == EngineKind::kCpu) return OpenFloat(bundle, manifest, facts, graphs);
  Runners runners;
  for (const bundle::GraphEntry& graph : graphs) {
    const std::string& model = kind == EngineKind::kQdq ? graph.qdq_model : graph.emulator_model;
    if (model.empty()) continue;
    HEXPORT_ASSIGN_OR_RETURN(std::shared_ptr<ort::Session> session,
                             ort::Session::Create(bundle / model, OptionsFor(manifest, kind)));
    HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<GraphRunner> runner,
                             GraphRunner::Create(facts, graph, std::move(session)));
    if (!runners.empty()) HEXPORT_RETURN_IF_ERROR(CheckOneCache(*runners[0], *runner));
    runners.push_back(std::move(runner));
  }
  if (runners.empty()) {
    return FailedPrecondition(bundle.string() + ": expected graphs for the " +
                              (kind == EngineKind::kQdq ? "qdq" : "emulator") + " engine with cl " +
                              std::to_string(manifest.context_length) +
                              ", got none; build the bundle with them");
  }
  return runners;
}

}  // namespace hexport::runtime
