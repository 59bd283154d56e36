// LoRA adapters matched to the tensors of a base model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "adapter/adapter_config.h"
#include "adapter/base_tensors.h"
#include "base/dtype.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "checkpoint/block_format.h"

namespace hexport::adapter {

// One adapter's change to one base tensor W [rows, columns]: delta = scale * left * right.
// Linear layers: left is lora_B, right is lora_A (arXiv:2106.09685). Embeddings: left is
// lora_embedding_A transposed, right lora_embedding_B transposed.
struct LowRankUpdate {
  int64_t rank = 0, rows = 0, columns = 0;
  double scale = 1.0;        // pattern, rsLoRA and the adapter's weight are in it
  std::vector<float> left;   // [rows, rank] row-major
  std::vector<float> right;  // [rank, columns] row-major
  // DoRA (arXiv:2402.09353): W' = magnitude * V / |V|, V = W + delta, the norm taken per row of W
  // for linear layers and per column for embeddings, as PEFT does. Empty: plain. With an adapter
  // weight w the result is W + w (W' - W); w is in dora_weight then, not in scale.
  std::vector<float> magnitude;  // [rows], or [columns] when magnitude_per_column
  bool magnitude_per_column = false;
  double dora_weight = 1.0;
  // PiSSA and OLoRA: the initial adapter, which the trainer took out of W. delta is then
  // scale * (left * right - initial_left * initial_right). Empty for all others.
  std::vector<float> initial_left, initial_right;  // [rows, initial_rank], [initial_rank, columns]
  int64_t initial_rank = 0;
};

// What a tensor of an adapter is to its module.
enum class TensorRole {
  kLoraA,       // [rank, in_features]
  kLoraB,       // [out_features, rank]
  kLoraBias,    // lora_B.bias [out_features], scaled like the delta
  kEmbeddingA,  // [rank, num_embeddings]
  kEmbeddingB,  // [embedding_dim, rank]
  kMagnitude,   // DoRA
  kWhole,       // takes the place of the base's tensor: module + "." + parameter
  kTokenRows,   // rows of the embedding, at trainable_token_indices
  kUnknown,     // matches nothing
};

// A tensor of an adapter's file. The bytes live as long as the adapter.
struct AdapterTensor {
  std::string key;        // as in the file
  std::string module;     // "model.layers.0.self_attn.q_proj", without prefix and adapter name
  std::string parameter;  // kWhole: "weight" or "bias"
  TensorRole role = TensorRole::kUnknown;
  bool saved_module = false;      // kWhole: the key itself says modules_to_save
  bool interleaved_rows = false;  // GGUF, llama: rows of q and k in GGUF's order
  bool transposed = false;        // GGUF: token_embd's A is [num_embeddings, rank]
  Shape shape;
  const checkpoint::BlockFormat* format = nullptr;
  const MappedFile* file = nullptr;  // that `bytes` are in
  std::span<const std::byte> bytes;
  // Gives the mapped pages of bytes [first, first + count) back; they are read again when needed.
  void Release(size_t first, size_t count) const;
};

// Widens to float32 and releases the pages. Errors: kInvalidArgument (wrong size of `out`),
// kUnimplemented (type).
Status ReadValues(const AdapterTensor& tensor, std::span<float> out);

// What one adapter key became; for reports.
struct AdapterKey {
  std::string key;     // as in the file
  std::string tensor;  // base tensor it acts on; empty: matched nothing
};

// An opened adapter: PEFT or LLaMA-Factory folder, or a GGUF LoRA file. Memory-mapped; values are
// read when asked for. Thread-safe after Open (const).
class Adapter {
 public:
  // `path`: a folder with adapter_config.json and adapter_model.safetensors, or a .gguf file.
  // Reads the config (or the metadata) and checks every header.
  // Adapter names inside keys (lora_A.default.weight) are taken out. Errors: kNotFound (no config,
  // no weights; adapter_model.bin is named and refused: pickle), kDataLoss (broken file),
  // kInvalidArgument (empty placeholder tensors, rank that differs from the config without a
  // pattern, A without B), kUnimplemented (what ParseAdapterConfig refuses, quantized adapters).
  static Result<std::unique_ptr<Adapter>> Open(const std::filesystem::path& path);
  virtual ~Adapter() = default;
  virtual const AdapterConfig& config() const = 0;
  virtual const std::filesystem::path& path() const = 0;
  virtual const std::vector<AdapterTensor>& tensors() const = 0;
  virtual int64_t tensor_count() const = 0;
  // Of the weights file and the config: SHA-256 over "<SHA-256 of weights>\n<config's bytes>".
  // Computed at the first call.
  virtual const std::string& sha256() const = 0;
  virtual bool gguf() const = 0;  // its config then holds the alpha alone, ranks are the tensors'
  virtual std::vector<std::string> warnings() const = 0;
};

struct MatchOptions {
  // Prefixes to rewrite in module paths, {"model.language_model.", "model."}.
  std::vector<std::pair<std::string, std::string>> rename;
  // Folder of the untrained adapter (initial A and B), for PiSSA and the like.
  std::filesystem::path initial_adapter;
};

// Adapters with their weights, matched to a base. Thread-safe (const). Borrows all of them.
class MatchedAdapters {
 public:
  struct Source {
    const Adapter* adapter;
    double weight = 1.0;  // scales the adapter's change
  };
  // Errors: kInvalidArgument (shapes that do not fit, named; more than one adapter with DoRA,
  // modules_to_save that disagree), kUnimplemented, kFailedPrecondition (hexport_base_sha256
  // differs from the base's: checked in Merge). Keys that match nothing are no error here: see
  // keys().
  static Result<std::unique_ptr<MatchedAdapters>> Match(std::vector<Source> sources,
                                                        const BaseTensors& base,
                                                        const MatchOptions& options);
  virtual ~MatchedAdapters() = default;

  virtual const std::vector<Source>& sources() const = 0;
  virtual const std::vector<AdapterKey>& keys() const = 0;  // of all adapters
  // Prefix rewriting that would match the unmatched keys ({"from", "to"}), or empty.
  virtual std::vector<std::pair<std::string, std::string>> SuggestedRename() const = 0;
  virtual const std::vector<std::string>& warnings() const = 0;

  // The tensors of the merged model, in the base's order, new ones (biases, an untied lm_head)
  // after. Shapes may differ from the base's (resized embeddings).
  struct MergedTensor {
    std::string name;
    Shape shape;
    bool low_rank = false;  // LowRank() is not empty
    bool replaced = false;  // values come from an adapter (modules_to_save, biases, embeddings)
  };
  virtual const std::vector<MergedTensor>& tensors() const = 0;
  // Changes to a tensor in the order of the adapters; empty: none. Reads A and B.
  virtual Result<std::vector<LowRankUpdate>> LowRank(const std::string& tensor) const = 0;
  // Rows [first_row, ...) of the values before any low-rank change: the adapter's where replaced,
  // else the base's; float32 row-major. Vectors count as one column. Errors: kNotFound,
  // kInvalidArgument.
  virtual Status ReadRows(const std::string& tensor, int64_t first_row,
                          std::span<float> out) const = 0;
  // config.json's fields of the merged model that differ from the base's.
  virtual int64_t vocab_size()
      const = 0;  // rows of embed_tokens after merging; -1: no embed_tokens
  virtual bool tie_word_embeddings() const = 0;
  // Fields that biases brought with them, "attention_bias" or "mlp_bias", to be true.
  virtual const std::vector<std::string>& bias_fields() const = 0;
};

}  // namespace hexport::adapter
