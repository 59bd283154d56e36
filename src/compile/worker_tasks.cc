#include "compile/worker_tasks.h"

#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "compile/worker.h"
#include "ort/genie.h"
#include "ort/op_trace.h"
#include "ort/session.h"
#include "runtime/session.h"

namespace hexport::compile {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

void PrintMessage(const char* key, const json& value) {
  // A leading newline: the vendor's chatter may have left a line open.
  std::cout << '\n'
            << kWorkerPrefix
            << json{{key, value}}.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
}

ort::SessionOptions CompileOptions(const json& request, const std::string& context_model,
                                   bool last) {
  const bool share = request.at("share").get<bool>();
  ort::SessionOptions options;
  options.provider = ort::SessionOptions::Provider::kQnn;
  options.config_entries = {{"session.disable_cpu_ep_fallback", "1"},
                            {"ep.context_enable", "1"},
                            {"ep.context_embed_mode", "0"},
                            {"ep.context_file_path", context_model}};
  if (share) options.config_entries["ep.share_ep_contexts"] = "1";
  if (share && last) options.config_entries["ep.stop_share_ep_contexts"] = "1";
  options.qnn_options = {{"soc_model", std::to_string(request.at("soc_model").get<int>())},
                         {"htp_arch", std::to_string(request.at("htp_arch").get<int>())},
                         {"vtcm_mb", std::to_string(request.at("vtcm_mb").get<int>())},
                         {"htp_graph_finalization_optimization_mode", "3"},
                         {"offload_graph_io_quantization", "0"},
                         {"enable_framework_op_trace", "1"},
                         {"framework_op_trace_dir", request.at("trace_dir").get<std::string>()}};
  return options;
}

// The operators of the trace that went to the NPU; kUnimplemented naming those that did not.
Result<int64_t> CheckTrace(const fs::path& trace_dir) {
  HEXPORT_ASSIGN_OR_RETURN(ort::OpTrace trace, ort::ReadOpTrace(trace_dir / "qnn_op_trace.json"));
  if (!trace.unsupported.empty()) {
    std::string names;
    for (const auto& node : trace.unsupported) names += (names.empty() ? "" : ", ") + node;
    return Unimplemented("the NPU does not take: " + names);
  }
  return static_cast<int64_t>(trace.ops.size());
}

}  // namespace

Result<json> CompileTask(const json& request, const EventSink& event) {
  const auto models = request.at("models").get<std::vector<std::string>>();
  const auto context_models = request.at("context_models").get<std::vector<std::string>>();
  const fs::path trace_dir = request.at("trace_dir").get<std::string>();
  std::vector<std::unique_ptr<ort::Session>> sessions;  // weight sharing needs all of them alive
  json traces = json::array();
  for (size_t i = 0; i < models.size(); ++i) {
    ort::SessionOptions options =
        CompileOptions(request, context_models[i], i + 1 == models.size());
    HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<ort::Session> session,
                             ort::Session::Create(models[i], options));
    sessions.push_back(std::move(session));
    HEXPORT_ASSIGN_OR_RETURN(int64_t nodes, CheckTrace(trace_dir));
    const fs::path kept = trace_dir / (fs::path(models[i]).stem().string() + ".json");
    std::error_code error;
    fs::rename(trace_dir / "qnn_op_trace.json", kept, error);
    traces.push_back({{"trace", kept.string()}, {"nodes", nodes}});
    event({{"done", i + 1}, {"total", models.size()}});
  }
  sessions.clear();
  return json{{"traces", traces}};
}

Result<json> LogitsTask(const json& request, const EventSink& event) {
  HEXPORT_ASSIGN_OR_RETURN(runtime::EngineKind kind,
                           runtime::ParseEngineKind(request.at("engine").get<std::string>()));
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Session> session,
                           runtime::Session::Create(request.at("bundle").get<std::string>(), kind));
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<FileWriter> out,
                           FileWriter::Create(request.at("out").get<std::string>()));
  const auto samples = request.at("samples").get<std::vector<std::vector<int32_t>>>();
  size_t tokens = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    HEXPORT_ASSIGN_OR_RETURN(std::vector<float> logits, session->Logits(samples[i]));
    HEXPORT_RETURN_IF_ERROR(out->Write(std::as_bytes(std::span<const float>(logits))));
    tokens += samples[i].size();
    event({{"done", i + 1}, {"total", samples.size()}});
  }
  HEXPORT_RETURN_IF_ERROR(out->Commit());
  return json{{"tokens", tokens}, {"vocab_size", session->manifest().model.vocab_size}};
}

Result<json> GenerateTask(const json& request, const EventSink& event) {
  HEXPORT_ASSIGN_OR_RETURN(runtime::EngineKind kind,
                           runtime::ParseEngineKind(request.at("engine").get<std::string>()));
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Session> session,
                           runtime::Session::Create(request.at("bundle").get<std::string>(), kind));
  event({{"loaded", true}});
  runtime::GenerateOptions options;
  options.max_tokens = request.at("max_tokens").get<int64_t>();
  options.sampling.temperature = request.at("temperature").get<double>();
  options.sampling.top_k = request.at("top_k").get<int64_t>();
  options.sampling.top_p = request.at("top_p").get<double>();
  options.sampling.seed = request.at("seed").get<uint64_t>();
  const auto prompt = request.at("prompt").get<std::vector<int32_t>>();
  HEXPORT_ASSIGN_OR_RETURN(
      runtime::GenerateResult result,
      session->Generate(prompt, options, [&](const runtime::GeneratedToken& token) {
        event({{"id", token.id}, {"margin", token.margin}});
        return true;
      }));
  return json{{"finish_reason", result.finish_reason},
              {"prefill_seconds", result.prefill_seconds},
              {"decode_seconds", result.decode_seconds}};
}

Result<json> GenieTask(const json& request, const EventSink& event) {
  HEXPORT_RETURN_IF_ERROR(ort::RunGenie(
      request.at("config").get<std::string>(), request.at("prompt").get<std::string>(),
      [&](std::string_view text, int code) {
        event({{"bytes", std::vector<uint8_t>(text.begin(), text.end())}, {"code", code}});
      }));
  return json::object();
}

int WorkerMain() {
  const std::string text{std::istreambuf_iterator<char>(std::cin),
                         std::istreambuf_iterator<char>()};
  const auto run = [&text]() -> Result<json> {
    try {
      const json request = json::parse(text);
      const std::string task = request.at("task").get<std::string>();
      const EventSink event = [](const json& value) { PrintMessage("event", value); };
      if (task == "compile") return CompileTask(request, event);
      if (task == "logits") return LogitsTask(request, event);
      if (task == "generate") return GenerateTask(request, event);
      if (task == "genie") return GenieTask(request, event);
      return InvalidArgument("worker: unknown task '" + task + "'");
    } catch (const std::exception& e) {
      return Internal(std::string("worker: ") + e.what());
    }
  };
  const Result<json> result = run();
  if (!result.ok()) {
    PrintMessage("error", {{"code", static_cast<int>(result.status().code())},
                           {"message", result.status().message()}});
    return 1;
  }
  PrintMessage("result", *result);
  return 0;
}

}  // namespace hexport::compile
