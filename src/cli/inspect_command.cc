#include <filesystem>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/inspect.h"

namespace hexport::cli {
namespace {

int RunInspect(const InspectArguments& arguments) {
  const std::filesystem::path path = arguments.path;
  std::error_code error;
  if (std::filesystem::exists(path / "manifest.json", error)) return InspectBundle(arguments);
  if (IsAdapter(path)) return InspectAdapter(arguments);
  return InspectCheckpoint(arguments);
}

}  // namespace

void AddInspectCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command = app.add_subcommand(
      "inspect", "What a bundle, checkpoint or adapter is, what is odd, what hexport will do");
  command
      ->add_option("path", arguments->path,
                   "A bundle, a GGUF file, a Hugging Face folder or a LoRA adapter")
      ->required();
  command->add_option("--base", arguments->base, "For an adapter: does it fit this model?");
  command->add_flag("--hash", arguments->hash, "Also check the SHA-256 of every file of a bundle");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->footer(
      "Examples:\n  hexport inspect out/model --json\n  hexport inspect model.gguf\n"
      "  hexport inspect ./saves/lora --base ./Qwen2.5-0.5B");
  command->callback([arguments, &exit_code] { exit_code = RunInspect(*arguments); });
}

}  // namespace hexport::cli
