#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "adapter/trainer_folder.h"
#include "checkpoint/checkpoint.h"
#include "cli/console.h"
#include "cli/inspect.h"
#include "quant/residual_rotation.h"
#include "text/fingerprint.h"
#include "text/tokenizer.h"

namespace hexport::cli {
namespace {

using nlohmann::ordered_json;

struct Summary {
  int64_t parameters = 0;
  std::map<std::string, int64_t> tensors_by_dtype;
  int64_t tokenizer_ids = 0;  // highest id + 1; 0: no tokenizer
  std::string fingerprint;
  std::vector<std::string> chat_templates;  // names
  std::vector<std::string> odd, plan;
};

void SummarizeText(const Checkpoint& checkpoint, Summary& summary) {
  const Result<TextAssets> text = checkpoint.Text();
  if (!text.ok()) {
    summary.odd.push_back(text.status().message());
    return;
  }
  if (text->chat_template.empty()) {
    summary.odd.push_back("no chat template: messages cannot be rendered without --chat-template");
  } else {
    summary.chat_templates.push_back("default");
    for (const auto& [name, source] : text->chat_templates) {
      if (name != "default") summary.chat_templates.push_back(name);
    }
  }
  const auto tokenizer = Tokenizer::FromJson(text->tokenizer_json);
  if (!tokenizer.ok()) {
    summary.odd.push_back("tokenizer: " + tokenizer.status().message());
    return;
  }
  summary.tokenizer_ids = (*tokenizer)->vocab_size();
  if (const auto print = Fingerprint(**tokenizer); print.ok()) summary.fingerprint = print->sha256;
  const int64_t rows = checkpoint.config().vocab_size;
  if (const Status status = CheckIdsWithin(**tokenizer, rows); !status.ok())
    summary.odd.push_back(status.message());
  else if (summary.tokenizer_ids < rows)
    summary.plan.push_back(std::to_string(rows - summary.tokenizer_ids) +
                           " rows of the vocabulary have no token: they are never sampled");
}

// What of the model's maths decides how it is built: docs/architectures.md.
void SummarizeModel(const ModelConfig& config, Summary& summary) {
  if (!config.unknown_fields.empty()) {
    std::string names;
    for (const std::string& name : config.unknown_fields)
      names += (names.empty() ? "" : ", ") + name;
    summary.odd.push_back("config.json: fields that hexport does not know and ignores: " + names);
  }
  if (config.sliding_window > 0) {
    summary.plan.push_back("a window of " + std::to_string(config.sliding_window) +
                           " tokens: a longer --context needs a second mask, which Genie lacks");
  }
  if (config.local_rope.has_value())
    summary.plan.push_back("a second RoPE for sliding layers: Genie cannot run it");
  const RopeScaling& scaling = config.rope.scaling;
  if (scaling.type == RopeScaling::Type::kLongrope) {
    summary.plan.push_back("longrope: a --context beyond " +
                           std::to_string(scaling.original_max_position_embeddings) +
                           " uses the long factors");
  }
  if (!quant::CanRotateResidual(config))
    summary.plan.push_back("the residual stream is not rotated: its branches end in norms");
}

Summary Summarize(const InspectArguments& arguments, const Checkpoint& checkpoint) {
  Summary summary;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    summary.parameters += NumElements(tensor.shape);
    ++summary.tensors_by_dtype[tensor.stored_dtype];
  }
  SummarizeModel(checkpoint.config(), summary);
  SummarizeText(checkpoint, summary);
  if (const auto facts = adapter::ReadTrainerFolder(arguments.path); facts.ok())
    summary.odd.insert(summary.odd.end(), facts->warnings.begin(), facts->warnings.end());
  summary.plan.push_back("hexport build --model " + arguments.path + " --out BUNDLE");
  return summary;
}

ordered_json CheckpointJson(const ModelConfig& config, const Summary& summary) {
  return {{"kind", "checkpoint"},
          {"architecture", config.architecture},
          {"name", config.name},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"num_hidden_layers", config.num_hidden_layers},
          {"num_attention_heads", config.num_attention_heads},
          {"num_key_value_heads", config.num_key_value_heads},
          {"head_dim", config.head_dim},
          {"vocab_size", config.vocab_size},
          {"max_position_embeddings", config.max_position_embeddings},
          {"rope_theta", config.rope.rope_theta},
          {"rms_norm_eps", config.rms_norm_eps},
          {"tie_word_embeddings", config.tie_word_embeddings},
          {"eos_token_ids", config.eos_token_ids},
          {"parameters", summary.parameters},
          {"tensors_by_dtype", summary.tensors_by_dtype},
          {"tokenizer_ids", summary.tokenizer_ids},
          {"tokenizer_fingerprint", summary.fingerprint},
          {"chat_templates", summary.chat_templates},
          {"odd", summary.odd},
          {"plan", summary.plan}};
}

void PrintCheckpoint(const InspectArguments& arguments, const ModelConfig& config,
                     const Summary& summary) {
  std::printf("%s: checkpoint %s (%s), %.1f M parameters\n", arguments.path.c_str(),
              config.name.c_str(), config.architecture.c_str(),
              static_cast<double>(summary.parameters) * 1e-6);
  std::printf(
      "  %ld layers, hidden %ld, intermediate %ld, heads %ld/%ld of %ld, vocabulary %ld%s\n",
      static_cast<long>(config.num_hidden_layers), static_cast<long>(config.hidden_size),
      static_cast<long>(config.intermediate_size), static_cast<long>(config.num_attention_heads),
      static_cast<long>(config.num_key_value_heads), static_cast<long>(config.head_dim),
      static_cast<long>(config.vocab_size), config.tie_word_embeddings ? ", tied lm_head" : "");
  for (const auto& [dtype, count] : summary.tensors_by_dtype)
    std::printf("  %ld tensors %s\n", static_cast<long>(count), dtype.c_str());
  if (summary.tokenizer_ids > 0) {
    std::printf("  tokenizer: %ld ids, fingerprint %.16s\n",
                static_cast<long>(summary.tokenizer_ids), summary.fingerprint.c_str());
  }
  for (const std::string& name : summary.chat_templates)
    std::printf("  chat template: %s\n", name.c_str());
  for (const std::string& line : summary.odd) std::printf("  odd: %s\n", line.c_str());
  for (const std::string& line : summary.plan) std::printf("  next: %s\n", line.c_str());
}

}  // namespace

int InspectCheckpoint(const InspectArguments& arguments) {
  const Result<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(arguments.path);
  if (!checkpoint.ok()) return Fail(checkpoint.status(), arguments.json);
  const Summary summary = Summarize(arguments, **checkpoint);
  if (arguments.json)
    PrintJson(CheckpointJson((*checkpoint)->config(), summary));
  else
    PrintCheckpoint(arguments, (*checkpoint)->config(), summary);
  return kExitOk;
}

}  // namespace hexport::cli
