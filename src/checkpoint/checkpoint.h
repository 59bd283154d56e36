// A model checkpoint: a GGUF file or a Hugging Face folder (safetensors, sharded or not).
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "checkpoint/model_config.h"
#include "checkpoint/packed_weight.h"

namespace hexport {

struct TensorInfo {
  std::string
      name;     // Hugging Face's, whatever the source: "model.layers.0.self_attn.q_proj.weight"
  Shape shape;  // [out_features, in_features] for linear layers
  std::string stored_dtype;   // "BF16", "Q4_1", "GPTQ-4", "AWQ-4", ...
  uint64_t stored_bytes = 0;  // of codes and scales; 0: not known
};

// What a template or tokenizer needs, as text, whatever the source.
struct TextAssets {
  // Hugging Face tokenizer.json; rebuilt from GGUF metadata, SentencePiece or vocab.json
  std::string tokenizer_json;
  std::string chat_template;  // Jinja source; empty: the checkpoint has none
  // All templates by name, "default" (chat_template) among them; "tool_use" where there is one.
  std::map<std::string, std::string> chat_templates;
  std::map<std::string, std::string> template_places;  // name -> file, for messages
  std::string bos_token;                               // texts; empty: none
  std::string eos_token;
  bool add_bos_token = false;
};

// A template and the file it came from.
struct ChosenTemplate {
  std::string name, source, where;
};

// The template to render with: the one called `name`; without a name "tool_use" when tools are
// given and there is one, else "default". Errors: kUnimplemented (no template at all; never a
// silent ChatML), kNotFound (no such name; lists those there are).
Result<ChosenTemplate> SelectTemplate(const TextAssets& text, std::string_view name, bool tools);

// Tokenizer and template alone: of a Hugging Face folder (an adapter's too) or a GGUF file; no
// weight is looked at. A folder with a template but no tokenizer gives an empty tokenizer_json.
// Errors: kNotFound (neither is there), kDataLoss, kInvalidArgument, kUnimplemented as
// Checkpoint::Text.
Result<TextAssets> OpenText(const std::filesystem::path& path);

// Memory-mapped; tensors are read one at a time. Thread-safe after Open (const).
class Checkpoint {
 public:
  // `path`: a .gguf file, a .safetensors file beside config.json, or a folder with config.json.
  // Checks every header against the file: offsets, sizes, dtypes, and that every tensor that the
  // architecture needs is there with the right shape.
  // Errors: kNotFound (path, shard, tensor: named), kDataLoss (truncated or lying header, with byte
  // offset, expected and got), kUnimplemented (architecture, tensor type), kInvalidArgument.
  static Result<std::unique_ptr<Checkpoint>> Open(const std::filesystem::path& path);
  virtual ~Checkpoint() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  // nullptr if there is no such tensor. lm_head.weight is absent in tied models.
  virtual const TensorInfo* Find(const std::string& name) const = 0;
  // Dequantizes or widens to float32, row-major, in the order of Hugging Face (llama GGUF q/k rows
  // restored). `out` must hold exactly NumElements(shape). The pages read are released afterwards.
  // Errors: kNotFound, kInvalidArgument (wrong size of `out`).
  virtual Status Read(const std::string& name, std::span<float> out) const = 0;
  // Rows [first_row, first_row + out.size()/columns) of a 2-D tensor; for embeddings. Errors as
  // Read.
  virtual Status ReadRows(const std::string& name, int64_t first_row,
                          std::span<float> out) const = 0;
  // The integers that a linear's weight is stored as: GPTQ, AWQ, or GGUF's Q4_0, Q4_1 and Q8_0.
  // Column n of `codes` is row n of Read. nullopt: stored otherwise, or changed by this view.
  // Errors: kNotFound.
  virtual Result<std::optional<PackedWeight>> ReadPacked(const std::string& name) const {
    if (Find(name) == nullptr) return NotFound("tensor " + name + ": not in the checkpoint");
    return std::optional<PackedWeight>();
  }
  // Errors: kNotFound when there is no tokenizer; kUnimplemented for an unknown tokenizer.ggml.pre
  // or model.
  virtual Result<TextAssets> Text() const = 0;
  // Files the checkpoint consists of, in a stable order; for hashing.
  virtual std::vector<std::filesystem::path> Files() const = 0;
};

}  // namespace hexport
