// What a trainer left beside an adapter or a checkpoint: the files of LLaMA-Factory and of Hugging
// Face's Trainer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace hexport::adapter {

struct TrainerFacts {
  std::string trainer;        // "LLaMA-Factory", "Hugging Face Trainer"; empty: neither's files
  std::string template_name;  // LLaMA-Factory's name of its chat template ("qwen"); empty: unknown
  std::string base_model;     // model_name_or_path that training read
  std::string stage;          // "sft", "dpo", ...
  std::string finetuning_type;  // "lora", "full", ...
  std::vector<std::string> datasets;
  int64_t global_step = -1;  // -1: unknown
  double epoch = -1;
  std::optional<double> last_loss;       // of trainer_state.json's log
  std::vector<std::string> checkpoints;  // names of checkpoint-<step> folders inside, by step
  std::vector<std::string> warnings;     // what looks wrong in the log, what could not be read
};

// Reads trainer_state.json, training_args.yaml (or llamaboard_config.yaml) and dataset_info.json of
// `folder` where they stand. All of them are optional; a broken one is a warning, since no weight
// depends on it. Errors: kNotFound (no such folder).
Result<TrainerFacts> ReadTrainerFolder(const std::filesystem::path& folder);

}  // namespace hexport::adapter
