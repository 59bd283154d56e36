// Checkpoint in, verified bundle out: the stages of `hexport build`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/progress.h"
#include "base/status.h"
#include "bundle/manifest.h"
#include "compile/merge.h"
#include "compile/report.h"
#include "quant/quant_config.h"

namespace hexport::compile {

struct BuildOptions {
  // GGUF file, Hugging Face folder, or what `hexport quantize` wrote: then its codes, ranges,
  // config, rotation and calibration samples are taken as they are, and those below are not used.
  std::filesystem::path model;
  // Not empty (its `adapters`): the adapters are merged into `model` first, into `merge.out` or
  // "<out>-merged", which stays for `hexport verify`. base and samples are filled in by Build.
  MergeModelOptions merge;
  std::filesystem::path out;  // the bundle; must not exist unless it is the same build, or `force`
  std::string soc = "sm8650";
  int64_t context_length = 1024;  // CL of every graph
  int64_t prompt_ar = 128;        // tokens of one prefill call
  quant::QuantConfig config;  // formats, methods, bits: what the command line sets is in here too
  std::filesystem::path calibration;    // empty: the built-in conversations
  int64_t calibration_samples = 0;      // 0: all
  std::filesystem::path chat_template;  // a Jinja file that replaces the checkpoint's
  bool rotate_residual = true;          // fold R1 into the weights; see quant/residual_rotation.h
  bool weight_shared = true;            // also build the binary for phones
  bool force = false;                   // replace an existing `out`
  bool keep_work = false;               // keep the working folder after success
};

struct BuildResult {
  bundle::Manifest manifest;
  BuildReport report;
  bool up_to_date = false;  // `out` already held this very build
  // Set when adapters were merged in this run. With failures in it no bundle was built.
  std::optional<MergeModelResult> merge;
};

// Stages: merge (with adapters only), checkpoint, calibrate, quantize, graphs, compile (one per
// binary), bundle. Results of finished stages stay in
// "<parent of out>/.<name>.hexport-work" until the bundle stands, so that an interrupted build goes
// on where it was. From a quantized model the stages channels, calibrate and quantize take what it
// holds. The bundle appears under its name complete or not at all. Errors: those of each
// part, with the stage before them; kFailedPrecondition when `out` holds something else.
Result<BuildResult> Build(const BuildOptions& options, Progress& progress);

// hexport's version, "0.1.0".
std::string HexportVersion();

}  // namespace hexport::compile
