// Options about adapters that `hexport merge` and `hexport build` share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "compile/merge.h"

namespace hexport::cli {

struct MergeFlags {
  std::vector<std::string> adapters, renames;
  std::vector<double> weights;
  std::string dtype = "keep", initial, tokenizer, chat_template;
  bool dequantize = false, allow_partial = false;
};

// Adds --adapter, --weight, --dtype and the rest; `flags` must outlive `command`.
void AddMergeFlags(CLI::App& command, MergeFlags& flags, bool adapter_required);

// Errors: kInvalidArgument naming the option.
Status FillMergeOptions(const MergeFlags& flags, compile::MergeModelOptions& options);

}  // namespace hexport::cli
