// The stage "import" of quantize and build: what method import takes over from a checkpoint.
#pragma once

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "compile/report.h"
#include "quant/import_codes.h"
#include "quant/quant_config.h"

namespace hexport::compile {

// quant::PlanImport on `source` as it is stored, which is to be quantized neither rotated nor
// folded. Adds the stage with its counts and warnings to `report`. Errors: CheckConfig's,
// PlanImport's.
Result<quant::ImportPlan> PlanImportStage(const Checkpoint& source,
                                          const quant::QuantConfig& config, BuildReport& report,
                                          Progress& progress);

}  // namespace hexport::compile
