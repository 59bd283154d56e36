// How good is a model? Perplexity, divergence from float and multiple-choice questions, on any
// engine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/progress.h"
#include "base/status.h"
#include "evaluate/task_file.h"

namespace hexport::evaluate {

// kFloat: the checkpoint (of a bundle: the one it was built from). kCpu: the bundle's codes with
// float activations. kQdq: with the NPU's activations, on ONNX Runtime's CPU. kEmulator:
// Qualcomm's; slow.
enum class EvalEngine { kFloat, kCpu, kQdq, kEmulator };
// "float", "cpu", "qdq", "emulator". kInvalidArgument listing them.
Result<EvalEngine> ParseEvalEngine(std::string_view text);
std::string_view EvalEngineName(EvalEngine engine);

struct EvalOptions {
  std::filesystem::path target;  // a bundle or a checkpoint
  std::filesystem::path text;    // windows.h; empty: tasks only
  std::filesystem::path tasks;   // task_file.h; empty: text only
  // Float model to compare with; empty: the checkpoint that the bundle was built from, or a
  // checkpoint itself.
  std::filesystem::path reference;
  EvalEngine engine = EvalEngine::kFloat;
  int64_t max_tokens = 0;  // of the text; 0: 8192, with the emulator 256
  int64_t context = 0;  // tokens of a window; 0: 512, or the bundle's context where it is shorter
};

struct TextResult {
  int64_t tokens = 0;  // predicted: all of a window but its first
  double perplexity = 0, perplexity_float = 0;
  // Divergence in nats a token; share of tokens with the same best next one; mean cosine of rows.
  double kl_vs_float = 0, top1_vs_float = 0, cosine_vs_float = 0;
};

struct TaskResult {
  TaskScores engine;
  TaskScores reference;  // the float model on the same questions
};

struct EvalResult {
  std::string engine;
  double bits_per_weight = 0;  // bits_per_weight.h
  int64_t context = 0;
  std::optional<TextResult> text;
  std::optional<TaskResult> tasks;
};

// A model compared with itself (a checkpoint without another reference) is run once. Memory: one
// layer, and the reference's logits of some windows at a time (kReferenceBytes, at least one
// window).
// Errors: kInvalidArgument (neither text nor tasks, a context longer than the bundle's, an engine
// that the target does not have, a reference of another vocabulary or tokenizer), kNotFound and
// kFailedPrecondition when the bundle's checkpoint is gone or has other contents, kDataLoss naming
// window and token when a logit is NaN or infinite, those of opening, reading and running.
Result<EvalResult> Evaluate(const EvalOptions& options, Progress& progress);

inline constexpr int64_t kReferenceBytes = int64_t{1} << 30;

}  // namespace hexport::evaluate
