#include "compile/encodings.h"

#include <memory>
#include <system_error>

#include "base/file.h"
#include "compile/build.h"
#include "decoder/decoder.h"
#include "graph/onnx_io.h"
#include "quant/encodings_export.h"
#include "quant/quantized_model.h"

namespace hexport::compile {
namespace {

namespace fs = std::filesystem;

Status CheckFree(const fs::path& path, bool force) {
  std::error_code error;
  if (force || path.empty() || !fs::exists(path, error)) return OkStatus();
  return FailedPrecondition(path.string() +
                            ": exists; pass --force to replace it, or give another name");
}

Result<decoder::DecoderGraph> WholeGraph(const quant::QuantizedModel& model) {
  decoder::DecoderOptions options;
  options.context_length = model.facts().context_length;
  return decoder::BuildDecoder(model.weights(), options);
}

Status WriteFloatGraph(const quant::QuantizedModel& model, const ExportEncodingsOptions& options) {
  decoder::DecoderOptions shapes;
  shapes.ar = options.ar;
  shapes.cl = options.cl;
  HEXPORT_ASSIGN_OR_RETURN(const decoder::DecoderGraph graph,
                           decoder::BuildDecoder(model.weights(), shapes));
  graph::OnnxWriteOptions write;
  write.external_data_name = options.onnx.filename().string() + ".data";
  write.producer_version = HexportVersion();
  return graph::WriteOnnx(graph.graph, options.onnx, write);
}

}  // namespace

Result<ExportEncodingsResult> ExportEncodingsFile(const ExportEncodingsOptions& options,
                                                  Progress& progress) {
  HEXPORT_RETURN_IF_ERROR(CheckFree(options.out, options.force));
  HEXPORT_RETURN_IF_ERROR(CheckFree(options.onnx, options.force));
  const int64_t steps = options.onnx.empty() ? 1 : 2;
  progress.Update("encodings", 0, steps);
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<quant::QuantizedModel> model,
                           quant::QuantizedModel::Open(options.quantized, options.source));
  HEXPORT_ASSIGN_OR_RETURN(const decoder::DecoderGraph graph, WholeGraph(*model));
  HEXPORT_ASSIGN_OR_RETURN(
      const quant::EncodingsFile file,
      quant::ExportEncodings({graph, model->facts().ranges, model->store(), model->facts().config},
                             options.schema));
  HEXPORT_ASSIGN_OR_RETURN(const std::string text, quant::EncodingsFileToJson(file));
  if (!options.onnx.empty()) {
    progress.Update("encodings", 1, steps);
    HEXPORT_RETURN_IF_ERROR(WriteFloatGraph(*model, options));
  }
  HEXPORT_RETURN_IF_ERROR(WriteFileAtomically(options.out, text));
  progress.Update("encodings", steps, steps);
  return ExportEncodingsResult{static_cast<int64_t>(file.activations.size()),
                               static_cast<int64_t>(file.params.size())};
}

Result<CheckEncodingsResult> CheckEncodingsFile(const CheckEncodingsOptions& options) {
  HEXPORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.file));
  HEXPORT_ASSIGN_OR_RETURN(const quant::EncodingsFile file,
                           quant::ParseEncodingsFile(text, options.file.string()));
  CheckEncodingsResult out;
  out.schema = file.schema;
  out.activations = static_cast<int64_t>(file.activations.size());
  out.params = static_cast<int64_t>(file.params.size());
  out.warnings = file.warnings;
  if (options.quantized.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> model,
                             Checkpoint::Open(options.model));
    HEXPORT_ASSIGN_OR_RETURN(const decoder::DecoderGraph graph, decoder::BuildDecoder(*model, {}));
    out.findings = quant::CheckEncodings(file, graph);
    return out;
  }
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<quant::QuantizedModel> model,
                           quant::QuantizedModel::Open(options.quantized, options.source));
  HEXPORT_ASSIGN_OR_RETURN(const decoder::DecoderGraph graph, WholeGraph(*model));
  out.findings = quant::CheckEncodings(file, graph);
  return out;
}

}  // namespace hexport::compile
