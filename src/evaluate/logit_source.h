// Where logits come from: the float model, a bundle's engines, the emulator in its child process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "evaluate/windows.h"
#include "quant/quantized_model.h"
#include "runtime/session.h"

namespace hexport::evaluate {

// Logits of one window for a part of the vocabulary.
struct LogitPiece {
  size_t window = 0;
  int64_t first_column = 0, columns = 0;
  std::span<const float> values;  // [tokens, columns] row-major
};
using LogitVisitor = std::function<Status(const LogitPiece&)>;

class LogitSource {
 public:
  virtual ~LogitSource() = default;
  // Visits the logits of every window, each a causal text without past; every column of the
  // vocabulary once a window. Progress counts in steps of the source's own. Errors: the visitor's,
  // kInvalidArgument (an id outside the vocabulary), those of running.
  virtual Status Run(const std::vector<TokenIds>& windows, const LogitVisitor& visit,
                     Progress& progress) = 0;
  virtual int64_t vocab_size() const = 0;
};

// The float model of a checkpoint, a layer at a time. `context_length`: of the bundle that it is
// compared with (quant/layer_walker.h); 0: each window's own.
std::unique_ptr<LogitSource> FloatSource(std::unique_ptr<Checkpoint> checkpoint,
                                         int64_t context_length);

// A quantized model, a layer at a time; `activations`: quantized too, else its weights alone.
std::unique_ptr<LogitSource> QuantizedSource(std::unique_ptr<quant::QuantizedModel> model,
                                             bool activations);

// The CPU or the QDQ engine of a bundle. Errors: runtime::Session::Create's.
Result<std::unique_ptr<LogitSource>> SessionSource(const std::filesystem::path& bundle,
                                                   runtime::EngineKind kind);

// Qualcomm's emulator, in a child process; needs the bundle's plain binaries. All windows' logits
// go through one temporary file.
std::unique_ptr<LogitSource> EmulatorSource(std::filesystem::path bundle, int64_t vocab_size);

}  // namespace hexport::evaluate
