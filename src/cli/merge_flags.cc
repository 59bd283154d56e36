#include "cli/merge_flags.h"

namespace hexport::cli {
namespace {

Result<compile::TextSource> ParseSource(const std::string& option, const std::string& value) {
  if (value.empty()) return compile::TextSource::kUnset;
  if (value == "base") return compile::TextSource::kBase;
  if (value == "adapter") return compile::TextSource::kAdapter;
  return InvalidArgument(option + ": expected base or adapter, got " + value);
}

}  // namespace

void AddMergeFlags(CLI::App& command, MergeFlags& flags, bool adapter_required) {
  const auto repeated = [&](const std::string& name, auto& values, const std::string& text) {
    return command.add_option(name, values, text)
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  repeated("--adapter,-a", flags.adapters,
           "LoRA adapter: PEFT or LLaMA-Factory folder, or a GGUF LoRA file; may be repeated")
      ->required(adapter_required);
  repeated("--weight,-w", flags.weights,
           "Scales an adapter's change: one for each --adapter, or for all but the first");
  command
      .add_option("--dtype", flags.dtype,
                  "Merged weights: keep (as the base stores them), float32, float16 or bfloat16")
      ->capture_default_str();
  command.add_option("--template", flags.chat_template,
                     "Whose chat template to keep when they differ: base or adapter");
  command.add_option("--tokenizer", flags.tokenizer,
                     "Whose tokenizer to keep: base or adapter (default: the adapter's, if any)");
  repeated("--rename", flags.renames,
           "FROM=TO: rewrite a prefix of the adapter's module names; may be repeated");
  command.add_option(
      "--initial-adapter", flags.initial,
      "Folder of the untrained adapter (PiSSA, CorDA and others that changed the base)");
  command.add_flag("--dequantize", flags.dequantize,
                   "Merge into a quantized GGUF base, dequantized");
  command.add_flag("--allow-partial", flags.allow_partial,
                   "Adapter keys that match nothing are warnings");
}

Status FillMergeOptions(const MergeFlags& flags, compile::MergeModelOptions& options) {
  options.initial_adapter = flags.initial;
  options.dequantize = flags.dequantize;
  options.allow_partial = flags.allow_partial;
  HEXPORT_ASSIGN_OR_RETURN(options.dtype, compile::ParseMergeDType(flags.dtype));
  HEXPORT_ASSIGN_OR_RETURN(options.tokenizer, ParseSource("--tokenizer", flags.tokenizer));
  HEXPORT_ASSIGN_OR_RETURN(options.chat_template, ParseSource("--template", flags.chat_template));
  if (flags.weights.size() > flags.adapters.size()) {
    return InvalidArgument("--weight: expected at most one for each of the " +
                           std::to_string(flags.adapters.size()) + " adapters, got " +
                           std::to_string(flags.weights.size()));
  }
  // "--adapter A --weight .5 --adapter B": CLI11 keeps the order within an option only, so that a
  // weight for some adapters is ambiguous.
  if (!flags.weights.empty() && flags.weights.size() != flags.adapters.size() &&
      flags.weights.size() + 1 != flags.adapters.size()) {
    return InvalidArgument("--weight: expected one for each adapter, or for all but the first");
  }
  const size_t without = flags.adapters.size() - flags.weights.size();
  for (size_t i = 0; i < flags.adapters.size(); ++i) {
    const bool given = !flags.weights.empty() && i >= without;
    options.adapters.push_back({flags.adapters[i], given ? flags.weights[i - without] : 1.0});
  }
  for (const std::string& rename : flags.renames) {
    const size_t equals = rename.find('=');
    if (equals == std::string::npos || equals == 0)
      return InvalidArgument("--rename: expected FROM=TO, got " + rename);
    options.rename.emplace_back(rename.substr(0, equals), rename.substr(equals + 1));
  }
  return OkStatus();
}

}  // namespace hexport::cli
