// A bundle's quantized model, to be measured layer by layer.
#pragma once

#include <filesystem>
#include <memory>

#include "base/status.h"
#include "bundle/manifest.h"
#include "quant/quantized_model.h"

namespace hexport::compile {

// Of a bundle: quant.json and folds.safetensors, as `hexport quantize` would have written them.
inline constexpr char kQuantFolder[] = "quant";

// Codes and scales are those of the bundle's first QDQ graph; ranges, config and channel folds are
// those of the bundle's quant folder. The codes are unpacked into a file without a name
// in the system's temporary folder, which takes a byte a weight while the model is open. Errors:
// kFailedPrecondition (a bundle of an earlier hexport, without quant.json), those of reading and
// writing, QuantizedModel::Open's.
Result<std::unique_ptr<quant::QuantizedModel>> OpenBundleModel(const std::filesystem::path& bundle,
                                                               const bundle::Manifest& manifest);

}  // namespace hexport::compile
