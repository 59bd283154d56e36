// hexport: a fine-tuned LLM onto a Snapdragon phone's Hexagon NPU.
#include <malloc.h>

#include <csignal>
#include <cstring>
#include <exception>
#include <iostream>

#include "cli/commands.h"
#include "cli/console.h"
#include "compile/build.h"
#include "compile/worker.h"

namespace {

int Run(int argc, char** argv) {
  CLI::App app{
      "hexport takes an LLM checkpoint to a Snapdragon phone's Hexagon NPU: a checkpoint goes in, "
      "a verified bundle and a "
      "runtime that answers from it come out."};
  app.set_version_flag("--version", hexport::compile::HexportVersion());
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 good, 1 a check failed, 2 bad usage or input, 3 the environment lacks "
      "something.\n"
      "Environment: HEXPORT_ORT_ROOT, HEXPORT_QNN_ROOT name your own ONNX Runtime and QAIRT "
      "folders.\n\n"
      "Examples:\n"
      "  hexport build --model model.gguf --soc sm8650 --context 1024 --weights int8 --out "
      "out/model\n"
      "  hexport verify out/model\n"
      "  hexport run out/model --engine cpu --prompt \"What is the capital of France?\"\n"
      "  hexport inspect out/model");
  int exit_code = hexport::cli::kExitOk;
  hexport::cli::AddBuildCommand(app, exit_code);
  hexport::cli::AddQuantizeCommand(app, exit_code);
  hexport::cli::AddVerifyCommand(app, exit_code);
  hexport::cli::AddEvalCommand(app, exit_code);
  hexport::cli::AddDiagnoseCommand(app, exit_code);
  hexport::cli::AddRunCommand(app, exit_code);
  hexport::cli::AddMergeCommand(app, exit_code);
  hexport::cli::AddInspectCommand(app, exit_code);
  hexport::cli::AddEncodingsCommand(app, exit_code);
  hexport::cli::AddTokenizeCommand(app, exit_code);
  hexport::cli::AddTemplateCommand(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? hexport::cli::kExitOk : hexport::cli::kExitBadInput;
  }
  return exit_code;
}

}  // namespace

namespace {

// Activations of some MiB are allocated and freed for every sample. glibc would ask the kernel for
// each anew, and zeroing those pages took a third of calibration's time.
void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
}

}  // namespace

int main(int argc, char** argv) {
  // A closed pipe and a file size limit are errors of the write, not our end.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  KeepFreedMemory();
  if (argc == 2 && hexport::compile::kWorkerCommand == argv[1])
    return hexport::compile::WorkerMain();
  try {
    return Run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "hexport: internal error: " << e.what() << "\n";
    return hexport::cli::kExitEnvironment;
  }
}
