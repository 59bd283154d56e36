// `hexport merge`: adapters into a base model, with the checks that tell whether it worked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "adapter/merge.h"
#include "adapter/trainer_folder.h"
#include "base/dtype.h"
#include "base/progress.h"
#include "base/status.h"
#include "compile/logit_check.h"
#include "compile/merge_text.h"

namespace hexport::compile {

struct AdapterInput {
  std::filesystem::path path;  // PEFT or LLaMA-Factory folder, or a GGUF LoRA file
  double weight = 1.0;
};

struct MergeModelOptions {
  std::filesystem::path base;  // Hugging Face folder, or a GGUF file with `dequantize`
  std::vector<AdapterInput> adapters;
  std::filesystem::path out;   // Hugging Face folder to write
  std::optional<DType> dtype;  // float32, float16, bfloat16; nullopt: as the base (GGUF: float16)
  bool dequantize = false;
  bool allow_partial = false;
  std::vector<std::pair<std::string, std::string>> rename;
  std::filesystem::path initial_adapter;
  TextSource tokenizer = TextSource::kUnset, chat_template = TextSource::kUnset;
  bool any_template = false;  // differing chat templates are a warning: the caller brings its own
  bool logits = true;         // compare logits of merged and unmerged
  std::filesystem::path samples;  // JSONL of messages or text; empty: one built-in conversation
  int64_t max_samples = 8, max_tokens = 256;  // of each sample
  std::vector<std::string> prompts;  // questions to answer by all three models, side by side
  int64_t max_new_tokens = 16;
  double max_logit_difference = 0;  // share of the largest logit; 0: by dtype
  bool force = false;               // replace an existing merged folder
  bool keep_failed = false;         // write `out` although a check failed
};

// What the three models answer to a prompt, greedily.
struct SideBySide {
  std::string prompt, base, adapted, merged;
};

struct MergeModelResult {
  adapter::MergeReport merge;
  std::optional<LogitCheck> logits;
  double logit_tolerance = 0;  // absolute
  TextChoice text;
  std::vector<std::string> next_tokens;  // as text: see LogitCheck, three a sample
  std::vector<SideBySide> answers;
  std::vector<adapter::TrainerFacts> trainers;  // of each adapter, in order
  std::vector<std::string> warnings, failures;  // all of them
  bool written = false;
  double seconds = 0, merge_seconds = 0, logits_seconds = 0;
  double peak_rss_mb = 0, merge_peak_rss_mb = 0;  // MiB
};

// Writes `out` when every check passed (or keep_failed): weights, config.json, tokenizer, template,
// generation_config.json and hexport_merge.json, whole or not at all. Failed checks are in
// `failures` and no error. Errors: kInvalidArgument, kNotFound, kUnimplemented, kDataLoss for what
// cannot be merged; kFailedPrecondition when `out` exists, when a template must be chosen, or when
// the adapter was trained on another base.
Result<MergeModelResult> MergeModel(const MergeModelOptions& options, Progress& progress);

// Hash of the options that change the result and of path, size and time of every file that is read.
std::string MergeInputsKey(const MergeModelOptions& options);

// True when `folder` is the result of these very options and no check failed; nothing is hashed.
bool IsMergeOf(const std::filesystem::path& folder, const MergeModelOptions& options);

// The result as JSON: what `hexport merge --json` prints.
std::string MergeResultToJson(const MergeModelOptions& options, const MergeModelResult& result);

// "float32", "float16", "bfloat16" or "keep"; integer formats are pointed to `hexport build`.
Result<std::optional<DType>> ParseMergeDType(const std::string& name);

}  // namespace hexport::compile
