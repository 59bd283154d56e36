#include <memory>
#include <string>
#include <utility>

#include "checkpoint/gguf_file.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/mapped_checkpoint.h"

namespace hexport::checkpoint {
namespace {

int64_t InterleavedHeads(const ModelConfig& config, const std::string& name) {
  if (!InterleavesQueryAndKey(config.architecture)) return 0;
  if (name.find(".self_attn.q_proj.") != std::string::npos) return config.num_attention_heads;
  if (name.find(".self_attn.k_proj.") != std::string::npos) return config.num_key_value_heads;
  return 0;
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> OpenGguf(const std::filesystem::path& path) {
  const std::string where = path.string();
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  auto contents = std::make_shared<GgufContents>();
  HEXPORT_ASSIGN_OR_RETURN(*contents, ParseGguf(file->bytes(), where));
  CheckpointParts parts;
  HEXPORT_ASSIGN_OR_RETURN(parts.config, GgufModelConfig(*contents, file->bytes(), where));
  if (parts.config.name.empty()) parts.config.name = path.stem().string();
  for (const GgufTensor& source : contents->tensors) {
    const std::optional<std::string> name = HfTensorName(source.name, parts.config.architecture);
    if (!name.has_value()) continue;
    StoredTensor tensor;
    tensor.info = {*name, source.shape, std::string(source.format->name)};
    tensor.format = source.format;
    tensor.file = file.get();
    tensor.offset = source.offset;
    tensor.bytes = source.bytes;
    tensor.interleaved_heads = InterleavedHeads(parts.config, *name);
    parts.tensors.push_back(std::move(tensor));
  }
  HEXPORT_RETURN_IF_ERROR(KeepExpectedTensors(parts, where));
  parts.files = {path};
  parts.text = [contents, where] { return GgufText(*contents, where); };
  // The metadata (megabytes of vocabulary) is read again when the text is asked for.
  file->Release(0, file->bytes().size());
  parts.mappings.push_back(std::move(file));
  return MakeCheckpoint(std::move(parts));
}

}  // namespace hexport::checkpoint
