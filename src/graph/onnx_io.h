// ONNX files: protobuf from the real schema (onnx-ml.proto), IR version 10, opset 23 plus
// com.microsoft 1.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "graph/graph.h"

namespace hexport::graph {

struct OnnxWriteOptions {
  // Initializers together larger than this go to an external data file beside the model.
  int64_t external_data_threshold_bytes = int64_t{1} << 30;
  int64_t min_external_tensor_bytes = 1024;  // smaller tensors always stay inside
  std::string external_data_name;            // default "<stem>.data"
  std::string producer_version = "0.1.0";
};

// Writes model and data (each under a temporary name, then renamed); initializer bytes are asked
// for one tensor at a time. Offsets are multiples of 4096. Errors: CheckGraph's, a source's, or
// writing errors.
Status WriteOnnx(const Graph& graph, const std::filesystem::path& path,
                 const OnnxWriteOptions& options);

// One external data file that several models of the same folder share: a tensor is stored once per
// name; a second model with an initializer of the same name, dtype and shape refers to the stored
// bytes.
class SharedWeights {
 public:
  static Result<std::unique_ptr<SharedWeights>> Create(const std::filesystem::path& data_path);
  // The model must lie in the same folder as the data file. Tensors below min_external_tensor_bytes
  // stay inside.
  Status WriteModel(const Graph& graph, const std::filesystem::path& path,
                    const OnnxWriteOptions& options);
  Status
  Commit();  // renames the data file into place; models are written before and are valid after it

 private:
  struct Location {
    DType dtype;
    Shape shape;
    uint64_t offset, size;
  };
  SharedWeights() = default;
  std::filesystem::path data_path_;
  std::unique_ptr<FileWriter> writer_;
  std::map<std::string, Location> stored_;
};

// Reads a model; initializer sources read external data lazily. Errors: kDataLoss (not ONNX,
// external data out of range), kUnimplemented (subgraphs, sparse tensors), kNotFound (model or data
// file).
Result<Graph> ReadOnnx(const std::filesystem::path& path);

// The serialized bytes with all weights inside, for one-layer graphs that never touch the disk.
// kResourceExhausted above 2 GB (protobuf's limit).
Result<std::string> SerializeOnnx(const Graph& graph);

}  // namespace hexport::graph
