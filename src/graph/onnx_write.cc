#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <onnx-ml.pb.h>

#include <exception>
#include <limits>
#include <new>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

#include "graph/onnx_io.h"
#include "graph/onnx_types.h"

namespace hexport::graph {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kIrVersion = 10;
constexpr size_t kDataAlignment = 4096;
constexpr int64_t kProtobufLimit = std::numeric_limits<int32_t>::max();

// Where a tensor's bytes lie in the external file.
struct Extent {
  uint64_t offset = 0, size = 0;
};

void FillValueInfo(const ValueInfo& value, onnx::ValueInfoProto* proto) {
  proto->set_name(value.name);
  auto* tensor = proto->mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(ToOnnxType(value.dtype));
  auto* shape = tensor->mutable_shape();
  for (size_t i = 0; i < value.shape.size(); ++i) {
    auto* dimension = shape->add_dim();
    if (value.shape[i] >= 0) {
      dimension->set_dim_value(value.shape[i]);
    } else if (i < value.symbols.size() && !value.symbols[i].empty()) {
      dimension->set_dim_param(value.symbols[i]);
    }
  }
}

struct FillAttribute {
  onnx::AttributeProto* proto;
  void operator()(int64_t value) const {
    proto->set_type(onnx::AttributeProto::INT);
    proto->set_i(value);
  }
  void operator()(float value) const {
    proto->set_type(onnx::AttributeProto::FLOAT);
    proto->set_f(value);
  }
  void operator()(const std::string& value) const {
    proto->set_type(onnx::AttributeProto::STRING);
    proto->set_s(value);
  }
  void operator()(const std::vector<int64_t>& values) const {
    proto->set_type(onnx::AttributeProto::INTS);
    for (int64_t value : values) proto->add_ints(value);
  }
  void operator()(const std::vector<float>& values) const {
    proto->set_type(onnx::AttributeProto::FLOATS);
    for (float value : values) proto->add_floats(value);
  }
};

void FillNode(const Node& node, onnx::NodeProto* proto) {
  proto->set_op_type(node.op_type);
  if (!node.domain.empty()) proto->set_domain(node.domain);
  proto->set_name(node.name);
  for (const std::string& input : node.inputs) proto->add_input(input);
  for (const std::string& output : node.outputs) proto->add_output(output);
  for (const auto& [name, value] : node.attributes) {
    auto* attribute = proto->add_attribute();
    attribute->set_name(name);
    std::visit(FillAttribute{attribute}, value);
  }
}

// Everything but the initializers.
void FillModel(const Graph& graph, const std::string& producer_version, onnx::ModelProto* model) {
  model->set_ir_version(kIrVersion);
  model->set_producer_name("hexport");
  model->set_producer_version(producer_version);
  auto* opset = model->add_opset_import();
  opset->set_domain("");
  opset->set_version(graph.opset);
  std::set<std::string> domains;
  for (const Node& node : graph.nodes) {
    if (!node.domain.empty() && node.domain != "ai.onnx") domains.insert(node.domain);
  }
  for (const std::string& domain : domains) {
    auto* other = model->add_opset_import();
    other->set_domain(domain);
    other->set_version(1);
  }
  auto* proto = model->mutable_graph();
  proto->set_name(graph.name.empty() ? "graph" : graph.name);
  for (const ValueInfo& input : graph.inputs) FillValueInfo(input, proto->add_input());
  for (const ValueInfo& output : graph.outputs) FillValueInfo(output, proto->add_output());
  for (const Node& node : graph.nodes) FillNode(node, proto->add_node());
}

Status FillFrom(const Initializer& initializer, std::span<std::byte> out) {
  if (!initializer.source)
    return Internal("initializer " + initializer.name + ": it has no source of bytes");
  return initializer.source(out).WithContext("initializer " + initializer.name);
}

onnx::TensorProto* AddTensor(const Initializer& initializer, onnx::ModelProto* model) {
  auto* tensor = model->mutable_graph()->add_initializer();
  tensor->set_name(initializer.name);
  tensor->set_data_type(ToOnnxType(initializer.dtype));
  for (int64_t dimension : initializer.shape) tensor->add_dims(dimension);
  return tensor;
}

Status AddInline(const Initializer& initializer, onnx::ModelProto* model) {
  std::string* raw = AddTensor(initializer, model)->mutable_raw_data();
  raw->resize(static_cast<size_t>(NumBytes(initializer.dtype, initializer.shape)));
  return FillFrom(initializer, std::as_writable_bytes(std::span<char>(raw->data(), raw->size())));
}

void AddExternal(const Initializer& initializer, const std::string& location, const Extent& extent,
                 onnx::ModelProto* model) {
  auto* tensor = AddTensor(initializer, model);
  tensor->set_data_location(onnx::TensorProto::EXTERNAL);
  const std::pair<const char*, std::string> entries[] = {{"location", location},
                                                         {"offset", std::to_string(extent.offset)},
                                                         {"length", std::to_string(extent.size)}};
  for (const auto& [key, value] : entries) {
    auto* entry = tensor->add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  }
}

// Asks the source for its bytes and appends them, aligned. The bytes are gone when this returns.
Result<Extent> AppendTensor(const Initializer& initializer, FileWriter& writer) {
  const auto size = static_cast<size_t>(NumBytes(initializer.dtype, initializer.shape));
  const std::unique_ptr<std::byte[]> bytes(new (std::nothrow) std::byte[size]);
  if (bytes == nullptr) {
    return ResourceExhausted("initializer " + initializer.name + ": no memory for " +
                             std::to_string(size) + " bytes");
  }
  const std::span<std::byte> view(bytes.get(), size);
  HEXPORT_RETURN_IF_ERROR(FillFrom(initializer, view));
  HEXPORT_RETURN_IF_ERROR(writer.PadTo(kDataAlignment));
  const Extent extent{writer.offset(), size};
  HEXPORT_RETURN_IF_ERROR(writer.Write(std::span<const std::byte>(view)));
  return extent;
}

// Lets protobuf write into a FileWriter, piece by piece.
class WriterStream : public google::protobuf::io::CopyingOutputStream {
 public:
  explicit WriterStream(FileWriter& writer) : writer_(writer) {}
  bool Write(const void* buffer, int size) override {
    status_ = writer_.Write(
        std::string_view(static_cast<const char*>(buffer), static_cast<size_t>(size)));
    return status_.ok();
  }
  const Status& status() const { return status_; }

 private:
  FileWriter& writer_;
  Status status_;
};

Status CheckProtobufSize(const onnx::ModelProto& model) {
  if (model.ByteSizeLong() > static_cast<size_t>(kProtobufLimit)) {
    return ResourceExhausted(
        "model of " + std::to_string(model.ByteSizeLong()) +
        " bytes: protobuf takes at most 2 GB; write the weights as external data");
  }
  return OkStatus();
}

Status WriteProto(const onnx::ModelProto& model, FileWriter& writer) {
  HEXPORT_RETURN_IF_ERROR(CheckProtobufSize(model));
  WriterStream stream(writer);
  bool written = false;
  {
    google::protobuf::io::CopyingOutputStreamAdaptor adaptor(&stream);
    written = model.SerializeToZeroCopyStream(&adaptor) && adaptor.Flush();
  }
  HEXPORT_RETURN_IF_ERROR(stream.status());
  return written ? OkStatus() : Internal("protobuf could not serialize the model");
}

// Runs `body`, turning protobuf's and the allocator's throws into a Status.
template <typename Body>
auto Guard(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory to write an ONNX model");
  } catch (const std::exception& error) {
    return Internal(std::string("writing an ONNX model: ") + error.what());
  }
}

Status CheckDataName(const std::string& name) {
  if (name.empty() || name == "." || name == ".." || fs::path(name).filename() != fs::path(name)) {
    return InvalidArgument("external_data_name: expected a file name without folders, got \"" +
                           name + "\"");
  }
  return OkStatus();
}

bool IsExternal(const Initializer& initializer, const OnnxWriteOptions& options) {
  const int64_t size = NumBytes(initializer.dtype, initializer.shape);
  return size > 0 && size >= options.min_external_tensor_bytes;
}

Status WriteOnnxUnguarded(const Graph& graph, const fs::path& path,
                          const OnnxWriteOptions& options) {
  HEXPORT_RETURN_IF_ERROR(CheckGraph(graph));
  const std::string location = options.external_data_name.empty() ? path.stem().string() + ".data"
                                                                  : options.external_data_name;
  HEXPORT_RETURN_IF_ERROR(CheckDataName(location));
  int64_t total = 0;
  for (const Initializer& initializer : graph.initializers)
    total += NumBytes(initializer.dtype, initializer.shape);
  const bool external = total > options.external_data_threshold_bytes;

  onnx::ModelProto model;
  FillModel(graph, options.producer_version, &model);
  std::unique_ptr<FileWriter> data;
  for (const Initializer& initializer : graph.initializers) {
    if (!external || !IsExternal(initializer, options)) {
      HEXPORT_RETURN_IF_ERROR(AddInline(initializer, &model));
      continue;
    }
    if (data == nullptr) {
      HEXPORT_ASSIGN_OR_RETURN(data, FileWriter::Create(path.parent_path() / location));
    }
    HEXPORT_ASSIGN_OR_RETURN(const Extent extent, AppendTensor(initializer, *data));
    AddExternal(initializer, location, extent, &model);
  }
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<FileWriter> writer, FileWriter::Create(path));
  HEXPORT_RETURN_IF_ERROR(WriteProto(model, *writer));
  // Both files are whole on disk before either takes its name.
  if (data != nullptr) HEXPORT_RETURN_IF_ERROR(data->Commit());
  return writer->Commit();
}

}  // namespace

Status WriteOnnx(const Graph& graph, const fs::path& path, const OnnxWriteOptions& options) {
  return Guard([&] { return WriteOnnxUnguarded(graph, path, options); }).WithContext(path.string());
}

Result<std::string> SerializeOnnx(const Graph& graph) {
  return Guard([&]() -> Result<std::string> {
    HEXPORT_RETURN_IF_ERROR(CheckGraph(graph));
    int64_t total = 0;
    for (const Initializer& initializer : graph.initializers)
      total += NumBytes(initializer.dtype, initializer.shape);
    if (total > kProtobufLimit) {
      return ResourceExhausted("graph " + graph.name + ": expected at most 2 GB of weights, got " +
                               std::to_string(total) + " bytes; write them as external data");
    }
    onnx::ModelProto model;
    FillModel(graph, OnnxWriteOptions().producer_version, &model);
    for (const Initializer& initializer : graph.initializers)
      HEXPORT_RETURN_IF_ERROR(AddInline(initializer, &model));
    HEXPORT_RETURN_IF_ERROR(CheckProtobufSize(model));
    std::string bytes;
    if (!model.SerializeToString(&bytes))
      return Internal("protobuf could not serialize " + graph.name);
    return bytes;
  });
}

Result<std::unique_ptr<SharedWeights>> SharedWeights::Create(const fs::path& data_path) {
  HEXPORT_RETURN_IF_ERROR(CheckDataName(data_path.filename().string()));
  std::unique_ptr<SharedWeights> shared(new SharedWeights());
  shared->data_path_ = data_path;
  HEXPORT_ASSIGN_OR_RETURN(shared->writer_, FileWriter::Create(data_path));
  return shared;
}

Status SharedWeights::WriteModel(const Graph& graph, const fs::path& path,
                                 const OnnxWriteOptions& options) {
  if (path.parent_path().lexically_normal() != data_path_.parent_path().lexically_normal()) {
    return InvalidArgument(path.string() + ": expected a model in the folder of " +
                           data_path_.string() + ", which holds its weights");
  }
  return Guard([&]() -> Status {
           HEXPORT_RETURN_IF_ERROR(CheckGraph(graph));
           onnx::ModelProto model;
           FillModel(graph, options.producer_version, &model);
           for (const Initializer& initializer : graph.initializers) {
             if (!IsExternal(initializer, options)) {
               HEXPORT_RETURN_IF_ERROR(AddInline(initializer, &model));
               continue;
             }
             auto found = stored_.find(initializer.name);
             if (found == stored_.end() || found->second.dtype != initializer.dtype ||
                 found->second.shape != initializer.shape) {
               HEXPORT_ASSIGN_OR_RETURN(const Extent extent, AppendTensor(initializer, *writer_));
               found = stored_
                           .insert_or_assign(initializer.name,
                                             Location{initializer.dtype, initializer.shape,
                                                      extent.offset, extent.size})
                           .first;
             }
             AddExternal(initializer, data_path_.filename().string(),
                         {found->second.offset, found->second.size}, &model);
           }
           HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<FileWriter> writer,
                                    FileWriter::Create(path));
           HEXPORT_RETURN_IF_ERROR(WriteProto(model, *writer));
           return writer->Commit();
         })
      .WithContext(path.string());
}

Status SharedWeights::Commit() { return writer_->Commit(); }

}  // namespace hexport::graph
