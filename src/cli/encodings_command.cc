#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/console.h"
#include "compile/encodings.h"

namespace hexport::cli {
namespace {

constexpr size_t kShownFindings = 40;

struct ExportArguments {
  std::string quantized, source, out, onnx, schema = "1.0.0";
  compile::ExportEncodingsOptions options;
  bool json = false, quiet = false;
};

struct CheckArguments {
  std::string file, quantized, model, source;
  bool json = false;
};

int RunExport(ExportArguments& arguments) {
  const Result<quant::EncodingsSchema> schema = quant::ParseEncodingsSchema(arguments.schema);
  if (!schema.ok()) return Fail(schema.status().WithContext("--schema"), arguments.json);
  compile::ExportEncodingsOptions& options = arguments.options;
  options.quantized = arguments.quantized;
  options.source = arguments.source;
  options.out = arguments.out;
  options.onnx = arguments.onnx;
  options.schema = *schema;
  ConsoleProgress progress(arguments.quiet);
  const Result<compile::ExportEncodingsResult> result =
      compile::ExportEncodingsFile(options, progress);
  progress.Clear();
  if (!result.ok()) return Fail(result.status(), arguments.json);
  if (arguments.json) {
    nlohmann::ordered_json out = {{"out", arguments.out},
                                  {"schema", quant::EncodingsSchemaName(*schema)},
                                  {"activations", result->activations},
                                  {"params", result->params}};
    if (!arguments.onnx.empty()) out["onnx"] = arguments.onnx;
    PrintJson(out);
    return kExitOk;
  }
  std::printf("%s: schema %s, %ld activations, %ld params\n", arguments.out.c_str(),
              std::string(quant::EncodingsSchemaName(*schema)).c_str(),
              static_cast<long>(result->activations), static_cast<long>(result->params));
  std::printf("Next: hexport encodings check %s %s\n", arguments.out.c_str(),
              arguments.quantized.c_str());
  return kExitOk;
}

nlohmann::ordered_json FindingsToJson(const std::vector<quant::EncodingFinding>& findings) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const quant::EncodingFinding& finding : findings) {
    out.push_back({{"fault", quant::EncodingFaultName(finding.fault)},
                   {"severity", finding.error ? "error" : "warning"},
                   {"tensor", finding.tensor},
                   {"message", finding.message}});
  }
  return out;
}

void PrintFindings(const std::vector<quant::EncodingFinding>& findings) {
  for (size_t i = 0; i < std::min(findings.size(), kShownFindings); ++i) {
    std::printf("  %s: %s\n", findings[i].error ? "ERROR" : "warning", findings[i].message.c_str());
  }
  if (findings.size() > kShownFindings) {
    std::printf("  and %zu more; --json lists all\n", findings.size() - kShownFindings);
  }
}

int RunCheck(const CheckArguments& arguments) {
  if (arguments.quantized.empty() == arguments.model.empty()) {
    return Fail(InvalidArgument("encodings check: expected either a quantized model or --model, "
                                "got " +
                                std::string(arguments.model.empty() ? "none" : "both")),
                arguments.json);
  }
  const Result<compile::CheckEncodingsResult> result = compile::CheckEncodingsFile(
      {arguments.file, arguments.quantized, arguments.model, arguments.source});
  if (!result.ok()) return Fail(result.status(), arguments.json);
  const int64_t errors = quant::CountErrors(result->findings);
  const int exit_code = errors == 0 ? kExitOk : kExitCheckFailed;
  if (arguments.json) {
    PrintJson({{"file", arguments.file},
               {"schema", quant::EncodingsSchemaName(result->schema)},
               {"activations", result->activations},
               {"params", result->params},
               {"errors", errors},
               {"findings", FindingsToJson(result->findings)},
               {"warnings", result->warnings}});
    return exit_code;
  }
  std::printf("%s: schema %s, %ld activations, %ld params: %ld errors, %ld warnings\n",
              arguments.file.c_str(),
              std::string(quant::EncodingsSchemaName(result->schema)).c_str(),
              static_cast<long>(result->activations), static_cast<long>(result->params),
              static_cast<long>(errors),
              static_cast<long>(result->findings.size() + result->warnings.size()) -
                  static_cast<long>(errors));
  PrintFindings(result->findings);
  for (const std::string& warning : result->warnings)
    std::printf("  warning: %s\n", warning.c_str());
  return exit_code;
}

void AddExport(CLI::App& parent, int& exit_code) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command =
      parent.add_subcommand("export", "A quantized model's encodings as an AIMET encodings file");
  compile::ExportEncodingsOptions& options = arguments->options;
  command->add_option("quantized", arguments->quantized, "Folder that hexport quantize wrote")
      ->required();
  command->add_option("--out,-o", arguments->out, "The JSON file to write")->required();
  command
      ->add_option("--schema", arguments->schema,
                   "1.0.0, or 0.6.1 for older QAIRT (which has no lpbq)")
      ->capture_default_str();
  command->add_option("--onnx", arguments->onnx,
                      "Also write the float ONNX graph that the names belong to");
  command->add_option("--ar", options.ar, "New tokens of a call of that graph")
      ->capture_default_str();
  command->add_option("--context", options.cl, "Context length of that graph")
      ->capture_default_str();
  command->add_option("--source", arguments->source,
                      "The float model, when it is no longer where it was");
  command->add_flag("--force", options.force, "Replace existing files");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->add_flag("--quiet,-q", arguments->quiet, "No progress");
  command->footer(
      "The graph of --onnx is rotated and folded as the quantized weights are; encodings of a\n"
      "rotated model belong to that graph alone (hexport quantize --no-rotation leaves it out).\n"
      "Examples:\n"
      "  hexport encodings export out/q8 -o q8.encodings\n"
      "  hexport encodings export out/q8 --schema 0.6.1 -o q8.encodings --onnx q8.onnx");
  command->callback([arguments, &exit_code] { exit_code = RunExport(*arguments); });
}

void AddCheck(CLI::App& parent, int& exit_code) {
  auto arguments = std::make_shared<CheckArguments>();
  CLI::App* command = parent.add_subcommand(
      "check", "An encodings file against a model: missing, misplaced, misspelt, absurd");
  command->add_option("file", arguments->file, "Encodings file, schema 0.6.1 or 1.0.0")->required();
  command->add_option("quantized", arguments->quantized, "Folder that hexport quantize wrote");
  command->add_option("--model,-m", arguments->model, "Or: GGUF file or Hugging Face folder");
  command->add_option("--source", arguments->source,
                      "The quantized model's float model, when it is no longer where it was");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->footer(
      "Exit codes: 0 fits, 1 errors found, 2 the file is refused.\n"
      "Examples:\n"
      "  hexport encodings check q8.encodings out/q8\n"
      "  hexport encodings check q8.encodings --model SmolLM2.gguf --json");
  command->callback([arguments, &exit_code] { exit_code = RunCheck(*arguments); });
}

}  // namespace

void AddEncodingsCommand(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("encodings", "AIMET encodings files (0.6.1, 1.0.0): export and check");
  command->require_subcommand(1);
  command->footer(
      "Examples:\n"
      "  hexport encodings export out/q8 -o q8.encodings\n"
      "  hexport encodings check q8.encodings out/q8");
  AddExport(*command, exit_code);
  AddCheck(*command, exit_code);
}

}  // namespace hexport::cli
