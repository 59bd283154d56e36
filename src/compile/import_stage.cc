#include "compile/import_stage.h"

#include <string>
#include <utility>

#include "decoder/decoder.h"

namespace hexport::compile {

Result<quant::ImportPlan> PlanImportStage(const Checkpoint& source,
                                          const quant::QuantConfig& config, BuildReport& report,
                                          Progress& progress) {
  StageTimer timer("import");
  progress.Update("import", 0, 0);
  HEXPORT_ASSIGN_OR_RETURN(const decoder::DecoderGraph graph, decoder::BuildDecoder(source, {}));
  HEXPORT_RETURN_IF_ERROR(quant::CheckConfig(config, graph));
  HEXPORT_ASSIGN_OR_RETURN(quant::ImportPlan plan, quant::PlanImport(source, graph, config));
  timer.report().notes.push_back(std::to_string(plan.counts.held) + " linears code for code, " +
                                 std::to_string(plan.counts.rounded) + " with rounded scales, " +
                                 std::to_string(plan.counts.requantized) +
                                 " quantized anew; residual stream not rotated");
  timer.report().notes.insert(timer.report().notes.end(), plan.warnings.begin(),
                              plan.warnings.end());
  report.stages.push_back(timer.Finish());
  return plan;
}

}  // namespace hexport::compile
