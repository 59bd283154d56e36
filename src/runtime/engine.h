// The graphs of a bundle, opened for one engine.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "base/status.h"
#include "bundle/manifest.h"
#include "runtime/graph_runner.h"
#include "runtime/session.h"

namespace hexport::runtime {

// One runner for every AR of the bundle's context length, largest AR first; at least one.
// Errors: kFailedPrecondition (no graphs for this engine, encodings that differ between them),
// kUnimplemented (a model in several parts), ort::Session's.
Result<std::vector<std::unique_ptr<GraphRunner>>> OpenRunners(const std::filesystem::path& bundle,
                                                              const bundle::Manifest& manifest,
                                                              EngineKind kind);

}  // namespace hexport::runtime
