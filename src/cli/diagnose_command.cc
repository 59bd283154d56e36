#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "diagnose/diagnose.h"
#include "diagnose/html_report.h"
#include "diagnose/json_report.h"

namespace hexport::cli {
namespace {

struct DiagnoseArguments {
  diagnose::DiagnoseOptions options;
  std::string target, calibration, out, html;
  bool json = false, quiet = false;
};

void PrintMeasurement(const char* title, const diagnose::Measurement& measurement) {
  std::printf(
      "%s: logits' cosine with float %.6f, same best token %.4f (%ld tokens of %ld samples)\n",
      title, measurement.logits_cosine, measurement.top1, static_cast<long>(measurement.tokens),
      static_cast<long>(measurement.samples));
}

void PrintFindings(const std::vector<diagnose::Finding>& findings) {
  if (findings.empty()) std::printf("no tensor is below the threshold\n");
  size_t inherited = 0;
  for (const diagnose::Finding& finding : findings) {
    if (finding.kind == diagnose::Kind::kInherited) {
      ++inherited;
      continue;
    }
    std::printf("%s\n  cosine %.4f, SQNR %.1f dB, its own fault\n  %s\n  fix: %s\n",
                finding.tensor.c_str(), finding.cosine, finding.sqnr_db, finding.reason.c_str(),
                finding.fix.c_str());
  }
  if (inherited == 0) return;
  const size_t first = findings.size() - inherited;
  std::printf("%zu tensors inherit errors, the first %s (cosine %.4f): %s\n", inherited,
              findings[first].tensor.c_str(), findings[first].cosine,
              findings[first].reason.c_str());
}

void Print(const diagnose::Diagnosis& diagnosis, bool fix) {
  PrintMeasurement("measured", diagnosis.measurement);
  PrintFindings(diagnosis.findings);
  if (fix && !diagnosis.fix.has_value()) std::printf("nothing to repair; nothing is written\n");
  if (!diagnosis.fix.has_value()) return;
  for (const diagnose::Repair& repair : diagnosis.fix->repairs) {
    std::printf("repaired %s: cosine %.4f -> %.4f\n", repair.tensor.c_str(), repair.cosine_before,
                repair.cosine_after);
    for (const diagnose::Remedy remedy : repair.remedies)
      std::printf("  %s\n", diagnose::RemedyInWords(remedy, repair.tensor).c_str());
  }
  PrintMeasurement(diagnosis.fixed.c_str(), diagnosis.fix->after);
  PrintFindings(diagnosis.fix->findings);
}

int RunDiagnose(DiagnoseArguments& arguments) {
  diagnose::DiagnoseOptions& options = arguments.options;
  options.target = arguments.target;
  options.calibration = arguments.calibration;
  options.out = arguments.out;
  ConsoleProgress progress(arguments.quiet);
  const Result<diagnose::Diagnosis> diagnosis = diagnose::Diagnose(options, progress);
  progress.Clear();
  if (!diagnosis.ok()) return Fail(diagnosis.status(), arguments.json);
  const std::string json = diagnose::DiagnosisToJson(options, *diagnosis, /*every_tensor=*/true);
  if (!arguments.html.empty()) {
    const Status written = WriteFileAtomically(arguments.html, diagnose::DiagnosisToHtml(json));
    if (!written.ok()) return Fail(written, arguments.json);
  }
  if (arguments.json) {
    std::printf("%s\n", json.c_str());
  } else {
    Print(*diagnosis, options.fix);
    if (!arguments.html.empty()) std::printf("report: %s\n", arguments.html.c_str());
  }
  return kExitOk;
}

}  // namespace

void AddDiagnoseCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<DiagnoseArguments>();
  CLI::App* command = app.add_subcommand(
      "diagnose", "Find the tensors where a quantized model loses its accuracy, and repair them");
  diagnose::DiagnoseOptions& options = arguments->options;
  command
      ->add_option("target", arguments->target,
                   "A bundle, or a folder that `hexport quantize` wrote")
      ->required();
  command->add_option("--calibration,-c", arguments->calibration,
                      "Texts to measure with (default: the samples it was calibrated with)");
  command->add_option("--samples", options.samples, "Samples to measure with; 0: all (default 8)");
  command->add_option("--sample-tokens", options.sample_tokens,
                      "Longer samples are cut (default 256)");
  command->add_option("--threshold", options.threshold,
                      "Cosine below which a tensor is a finding (default 0.9)");
  command->add_flag("--fix", options.fix,
                    "Apply the cheapest repairs, measure again, and write the repaired model");
  command->add_option("--out,-o", arguments->out, "Where --fix writes (default: TARGET-fixed)");
  command->add_option("--html", arguments->html,
                      "Write a report to this file: a heat map, ranges and histograms");
  command->add_flag("--json", arguments->json, "Print one JSON object, with every tensor");
  command->add_flag("--quiet,-q", arguments->quiet, "No progress");
  command->footer(
      "Each layer runs three times: in float, quantized with the float model's inputs (a tensor's\n"
      "own fault), and quantized with the quantized model's inputs (what it inherits).\n"
      "Examples:\n"
      "  hexport diagnose out/model\n"
      "  hexport diagnose out/model-int4 --html report.html\n"
      "  hexport diagnose out/model-int4 --fix --out out/model-repaired\n"
      "  hexport diagnose out/model-int4 --calibration mine.jsonl --samples 20 --json");
  command->callback([arguments, &exit_code] { exit_code = RunDiagnose(*arguments); });
}

}  // namespace hexport::cli
