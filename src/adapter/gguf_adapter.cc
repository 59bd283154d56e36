// GGUF LoRA files as llama.cpp's convert_lora_to_gguf.py writes and its loader reads them
// (https://github.com/ggml-org/llama.cpp, src/llama-adapter.cpp).
#include <memory>
#include <utility>

#include "adapter/adapter_file.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/gguf_model.h"

namespace hexport::adapter {
namespace {

using checkpoint::GgufTensor;

constexpr std::string_view kSuffixA = ".lora_a", kSuffixB = ".lora_b";
constexpr std::string_view kWeight = ".weight";

Status Stray(const std::string& where, std::string_view name) {
  std::string what = "a tensor of the model itself (modules_to_save, a resized embedding)";
  if (name == "rope_freqs.weight") what = "a table that the base has";
  return Unimplemented(where + ": tensor " + std::string(name) +
                       ": expected only pairs of .lora_a and .lora_b, got " + what +
                       "; merge from the PEFT folder that this file was made of");
}

Status AddTensor(const GgufTensor& source, std::string_view architecture, const std::string& where,
                 AdapterParts& parts) {
  AdapterTensor tensor;
  std::string_view name = source.name;
  const bool is_a = name.ends_with(kSuffixA);
  if (!is_a && !name.ends_with(kSuffixB)) return Stray(where, name);
  name.remove_suffix(kSuffixA.size());
  std::optional<std::string> hf =
      checkpoint::HfTensorName(name, architecture == "gemma3" ? "gemma3_text" : architecture);
  const bool known = hf.has_value() && hf->ends_with(kWeight);
  tensor.key = source.name;
  tensor.module = known ? hf->substr(0, hf->size() - kWeight.size()) : std::string(name);
  const bool embedding = name == "token_embd.weight";
  tensor.role = is_a ? (embedding ? TensorRole::kEmbeddingA : TensorRole::kLoraA)
                     : (embedding ? TensorRole::kEmbeddingB : TensorRole::kLoraB);
  tensor.transposed = embedding && is_a;
  // The converter interleaves the rows of B as it does those of the weight.
  tensor.interleaved_rows =
      !is_a && checkpoint::InterleavesQueryAndKey(architecture) &&
      (tensor.module.ends_with("self_attn.q_proj") || tensor.module.ends_with("self_attn.k_proj"));
  tensor.shape = source.shape;
  tensor.format = source.format;
  if (tensor.format->widen == nullptr) {
    return Unimplemented(where + ": tensor " + tensor.key +
                         ": expected a type that can be read, "
                         "got " +
                         std::string(tensor.format->name));
  }
  tensor.file = parts.file.get();
  tensor.bytes = parts.file->bytes().subspan(source.offset, source.bytes);
  parts.tensors.push_back(std::move(tensor));
  return OkStatus();
}

}  // namespace

Result<AdapterParts> ReadGgufAdapter(const std::filesystem::path& path) {
  const std::string where = path.string();
  AdapterParts parts;
  parts.path = path;
  parts.gguf = true;
  HEXPORT_ASSIGN_OR_RETURN(parts.file, MappedFile::Open(path));
  HEXPORT_ASSIGN_OR_RETURN(const checkpoint::GgufContents contents,
                           checkpoint::ParseGguf(parts.file->bytes(), where));
  const checkpoint::GgufMetadata metadata(contents, where);
  HEXPORT_ASSIGN_OR_RETURN(const std::string_view kind, metadata.String("general.type", "model"));
  if (kind != "adapter") {
    return InvalidArgument(where + ": general.type: expected adapter, got " + std::string(kind) +
                           (kind == "model" ? "; this is a whole model" : ""));
  }
  HEXPORT_ASSIGN_OR_RETURN(const std::string_view type, metadata.String("adapter.type", ""));
  if (type != "lora") {
    return Unimplemented(where + ": adapter.type: expected lora, got \"" + std::string(type) +
                         "\"");
  }
  if (metadata.Find("adapter.alora.invocation_tokens") != nullptr) {
    return Unimplemented(where +
                         ": adapter.alora.invocation_tokens: an activated LoRA is on for "
                         "some tokens only, so no single set of weights equals it");
  }
  HEXPORT_ASSIGN_OR_RETURN(const std::string_view architecture,
                           metadata.String("general.architecture"));
  parts.config.peft_type = "LORA";
  HEXPORT_ASSIGN_OR_RETURN(parts.config.lora_alpha, metadata.Number("adapter.lora.alpha"));
  for (const GgufTensor& tensor : contents.tensors) {
    HEXPORT_RETURN_IF_ERROR(AddTensor(tensor, architecture, where, parts));
  }
  if (parts.tensors.empty()) return InvalidArgument(where + ": expected tensors, got none");
  return parts;
}

}  // namespace hexport::adapter
