// ONNX Runtime behind a small face: the only folder that includes its headers. The library is
// opened at run time (HEXPORT_ORT_ROOT, HEXPORT_QNN_ROOT, else the places the build was configured
// with).
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace hexport::ort {

// A view of row-major bytes owned by the caller.
struct TensorView {
  DType dtype = DType::kFloat32;
  Shape shape;
  const void* data = nullptr;
};

// A result. Bytes are owned.
struct Tensor {
  DType dtype = DType::kFloat32;
  Shape shape;
  std::vector<std::byte> bytes;
  template <typename T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

struct IoInfo {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;  // kDynamicDim where symbolic
};

struct SessionOptions {
  enum class Provider { kCpu, kQnn };
  Provider provider = Provider::kCpu;
  int intra_op_threads = 0;  // 0: ONNX Runtime's choice
  bool optimize = true;      // false: no graph rewriting at all
  // Computes every Quantize/Dequantize as written (session.disable_quant_qdq). With `optimize`,
  // dequantized weights are folded: 4 bytes a weight, and fast. With optimize = false, or the
  // config entry session.disable_qdq_constant_folding = 1, codes stay mapped from the external
  // data file and one weight at a time is dequantized in each run: least memory, several times
  // slower.
  bool exact_qdq = false;
  bool prepack = true;  // false saves a copy of the weights
  bool memory_arena = false;
  // Threads that wait for work spin: the next operator starts sooner. false where our own threads
  // compute between the operators (session.intra_op.allow_spinning).
  bool spin = true;
  std::map<std::string, std::string> config_entries;  // "ep.context_enable": "1", ...
  // "soc_model": "57", ...; backend_path is filled in.
  std::map<std::string, std::string> qnn_options;
};

// Both look in the environment variable's folder only, when it is set (HEXPORT_ORT_ROOT,
// HEXPORT_QNN_ROOT); else in the configured folder, then relative to the executable (see
// find_library.h). Folder layouts accepted: <root>/lib/libonnxruntime.so*,
// <root>/libonnxruntime.so*, <root>/capi/... Errors: kUnavailable, with the places looked at and
// what to set.
Result<std::filesystem::path> FindOrtLibrary();
// Folder that holds libonnxruntime_providers_qnn.so, libQnnHtp.so, libGenie.so. Errors:
// kUnavailable.
Result<std::filesystem::path> FindQnnFolder();
// Value of LD_LIBRARY_PATH for a child that loads libGenie.so: the QNN folder, the C++ runtime of
// its wheel (<QNN folder>/../onnxruntime_qnn.libs), then the present value. "" when the QNN folder
// is not found.
std::string VendorLibraryPath();
// "1.32.0"; QAIRT's build id as the backend library reports or contains it ("unknown" when it can't
// be read).
Result<std::string> OrtVersion();
Result<std::string> QnnVersion();

// A loaded model. Run is not thread-safe.
class Session {
 public:
  // Errors: kUnavailable (library missing), kNotFound (model), kDataLoss (not a valid model),
  // kInternal with ONNX Runtime's own message and what it logged; kUnimplemented naming the node
  // when the NPU cannot take it and CPU fallback is off.
  static Result<std::unique_ptr<Session>> Create(const std::filesystem::path& model,
                                                 const SessionOptions& options);
  // A serialized model in memory (no external data).
  static Result<std::unique_ptr<Session>> CreateFromBytes(std::string_view model,
                                                          const SessionOptions& options);
  ~Session();
  const std::vector<IoInfo>& inputs() const;
  const std::vector<IoInfo>& outputs() const;
  // Inputs by name; outputs in the order asked for (all when `output_names` is empty).
  // Errors: kInvalidArgument (name, dtype or shape: expected, got), kResourceExhausted, kInternal.
  Result<std::vector<Tensor>> Run(const std::map<std::string, TensorView>& inputs,
                                  const std::vector<std::string>& output_names);

 private:
  Session();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hexport::ort
