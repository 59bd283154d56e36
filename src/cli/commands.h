// The commands. Each adds itself to the command line; the callback sets the exit code.
#pragma once

#include <CLI/CLI.hpp>

namespace hexport::cli {

void AddBuildCommand(CLI::App& app, int& exit_code);
void AddQuantizeCommand(CLI::App& app, int& exit_code);
void AddVerifyCommand(CLI::App& app, int& exit_code);
void AddEvalCommand(CLI::App& app, int& exit_code);
void AddDiagnoseCommand(CLI::App& app, int& exit_code);
void AddRunCommand(CLI::App& app, int& exit_code);
void AddMergeCommand(CLI::App& app, int& exit_code);
void AddInspectCommand(CLI::App& app, int& exit_code);
void AddEncodingsCommand(CLI::App& app, int& exit_code);
void AddTokenizeCommand(CLI::App& app, int& exit_code);
void AddTemplateCommand(CLI::App& app, int& exit_code);

}  // namespace hexport::cli
