// The base model's tensors as they are stored, all of them, whether hexport's decoder needs them or
// not.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace hexport::adapter {

struct BaseTensor {
  std::string name;  // Hugging Face's
  Shape shape;
  std::string stored_dtype;  // "BF16", "F32", "Q4_1"
  std::string shard;         // file name it stands in; "model.safetensors" for a GGUF
};

struct BaseOptions {
  // A quantized GGUF base is only taken when its values may be used dequantized.
  bool dequantize = false;
};

// Memory-mapped. Thread-safe after Open (const).
class BaseTensors {
 public:
  // A Hugging Face folder (one safetensors file or shards with an index), or a .gguf file.
  // Errors: those of Checkpoint::Open; kUnimplemented for quantized safetensors (bitsandbytes,
  // GPTQ, AWQ, ...: the format is named) and for a GGUF without `dequantize`; kDataLoss for a
  // tensor that two files hold; kNotFound for a missing shard (named).
  static Result<std::unique_ptr<BaseTensors>> Open(const std::filesystem::path& path,
                                                   const BaseOptions& options);
  virtual ~BaseTensors() = default;
  virtual const std::filesystem::path& path() const = 0;       // as given to Open
  virtual const std::vector<BaseTensor>& tensors() const = 0;  // files in order, then as stored
  virtual const BaseTensor* Find(const std::string& name) const = 0;
  // Rows as float32, row-major; a vector is [n, 1], further dimensions count as columns. The pages
  // read are released afterwards. Errors: kNotFound, kInvalidArgument (not whole rows within the
  // tensor), kUnimplemented (not a float tensor).
  virtual Status ReadRows(const std::string& name, int64_t first_row,
                          std::span<float> out) const = 0;
  // Bytes as stored; empty for a GGUF. Valid while this lives.
  virtual std::span<const std::byte> Bytes(const std::string& name) const = 0;
  virtual void Release(const std::string& name) const = 0;  // give the mapped pages back
  virtual const std::string& config_json() const = 0;       // config.json; rebuilt for a GGUF
  virtual bool dequantized() const = 0;  // values are those of a quantized file, widened
  virtual std::vector<std::string> warnings() const = 0;  // stray files and the like
};

}  // namespace hexport::adapter
