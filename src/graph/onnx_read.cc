#include <onnx-ml.pb.h>

#include <charconv>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/mapped_file.h"
#include "graph/onnx_io.h"
#include "graph/onnx_types.h"

namespace hexport::graph {
namespace {

namespace fs = std::filesystem;
using MappedFiles = std::map<std::string, std::shared_ptr<const MappedFile>>;

Result<ValueInfo> ReadValueInfo(const onnx::ValueInfoProto& proto) {
  if (!proto.type().has_tensor_type()) {
    return Unimplemented("value \"" + proto.name() +
                         "\": expected a dense tensor, got another ONNX type");
  }
  const auto& tensor = proto.type().tensor_type();
  const std::optional<DType> dtype = FromOnnxType(tensor.elem_type());
  if (!dtype) {
    return Unimplemented("value \"" + proto.name() + "\": ONNX element type " +
                         std::to_string(tensor.elem_type()) + " is not supported");
  }
  ValueInfo value{proto.name(), *dtype, {}, {}};
  bool dynamic = false;
  for (const auto& dimension : tensor.shape().dim()) {
    const bool known = dimension.has_dim_value() && dimension.dim_value() >= 0;
    value.shape.push_back(known ? dimension.dim_value() : kDynamicDim);
    value.symbols.push_back(known ? "" : dimension.dim_param());
    dynamic = dynamic || !known;
  }
  if (!dynamic) value.symbols.clear();
  return value;
}

Result<AttributeValue> ReadAttribute(const onnx::AttributeProto& proto, const std::string& where) {
  using Proto = onnx::AttributeProto;
  switch (proto.type()) {
    case Proto::INT:
      return AttributeValue(static_cast<int64_t>(proto.i()));
    case Proto::FLOAT:
      return AttributeValue(proto.f());
    case Proto::STRING:
      return AttributeValue(proto.s());
    case Proto::INTS:
      return AttributeValue(std::vector<int64_t>(proto.ints().begin(), proto.ints().end()));
    case Proto::FLOATS:
      return AttributeValue(std::vector<float>(proto.floats().begin(), proto.floats().end()));
    default:
      return Unimplemented(
          where + ": attribute \"" + proto.name() + "\" of ONNX type " +
          std::to_string(proto.type()) +
          (proto.has_g() ? " holds a subgraph, which hexport does not read" : " is not supported"));
  }
}

Result<Node> ReadNode(const onnx::NodeProto& proto) {
  Node node{
      proto.op_type(), proto.domain() == "ai.onnx" ? "" : proto.domain(), proto.name(), {}, {}, {}};
  node.inputs.assign(proto.input().begin(), proto.input().end());
  node.outputs.assign(proto.output().begin(), proto.output().end());
  if (node.name.empty() && !node.outputs.empty()) node.name = node.outputs.front();
  const std::string where = "node \"" + node.name + "\" (" + node.op_type + ")";
  for (const auto& attribute : proto.attribute()) {
    HEXPORT_ASSIGN_OR_RETURN(AttributeValue value, ReadAttribute(attribute, where));
    node.attributes.emplace(attribute.name(), std::move(value));
  }
  return node;
}

template <typename To, typename Field>
void AppendAs(const Field& field, std::vector<std::byte>& out) {
  for (const auto item : field) {
    const To value = static_cast<To>(item);
    const auto bytes = std::as_bytes(std::span<const To>(&value, 1));
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
}

// Bytes of a tensor stored in one of TensorProto's typed fields.
Result<std::vector<std::byte>> TypedBytes(const onnx::TensorProto& tensor, DType dtype) {
  std::vector<std::byte> bytes;
  switch (dtype) {
    case DType::kFloat32:
      AppendAs<float>(tensor.float_data(), bytes);
      break;
    case DType::kFloat64:
      AppendAs<double>(tensor.double_data(), bytes);
      break;
    case DType::kInt64:
      AppendAs<int64_t>(tensor.int64_data(), bytes);
      break;
    case DType::kInt32:
      AppendAs<int32_t>(tensor.int32_data(), bytes);
      break;
    case DType::kInt16:
    case DType::kUInt16:
    case DType::kFloat16:
    case DType::kBFloat16:
      AppendAs<uint16_t>(tensor.int32_data(), bytes);
      break;
    // int4 and uint4: each entry holds one packed byte.
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
    case DType::kInt4:
    case DType::kUInt4:
      AppendAs<uint8_t>(tensor.int32_data(), bytes);
      break;
  }
  return bytes;
}

Result<uint64_t> ParseCount(const std::string& text, const std::string& where) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return DataLoss(where + ": expected a whole number, got \"" + text + "\"");
  }
  return value;
}

Result<std::shared_ptr<const MappedFile>> OpenData(const std::string& location,
                                                   const fs::path& folder, const std::string& where,
                                                   MappedFiles& files) {
  const fs::path relative = fs::path(location).lexically_normal();
  if (location.empty() || relative.is_absolute() ||
      (!relative.empty() && *relative.begin() == "..")) {
    return DataLoss(where +
                    ": expected an external data location below the model's folder, got \"" +
                    location + "\"");
  }
  auto& file = files[relative.string()];
  if (file == nullptr) {
    auto opened = MappedFile::Open(folder / relative);
    if (!opened.ok()) return opened.status().WithContext(where + ": external data");
    file = *std::move(opened);
  }
  return file;
}

Result<DataSource> ExternalSource(const onnx::TensorProto& tensor, uint64_t expected,
                                  const fs::path& folder, MappedFiles& files) {
  const std::string where = "initializer \"" + tensor.name() + "\"";
  std::string location;
  uint64_t offset = 0;
  std::optional<uint64_t> length;
  for (const auto& entry : tensor.external_data()) {
    if (entry.key() == "location") location = entry.value();
    if (entry.key() == "offset") {
      HEXPORT_ASSIGN_OR_RETURN(offset, ParseCount(entry.value(), where + ": offset"));
    }
    if (entry.key() == "length") {
      HEXPORT_ASSIGN_OR_RETURN(length, ParseCount(entry.value(), where + ": length"));
    }
  }
  HEXPORT_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file,
                           OpenData(location, folder, where, files));
  if (length.value_or(expected) != expected) {
    return DataLoss(where + ": expected " + std::to_string(expected) +
                    " bytes for its type and shape, got length " + std::to_string(*length));
  }
  const uint64_t available = file->bytes().size();
  if (offset > available || expected > available - offset) {
    return DataLoss(where + ": expected bytes [" + std::to_string(offset) + ", " +
                    std::to_string(offset) + "+" + std::to_string(expected) + ") of " + location +
                    ", got a file of " + std::to_string(available) +
                    " bytes; copy the .data file again");
  }
  return DataSource([file, offset, where](std::span<std::byte> out) {
    const std::span<const std::byte> bytes = file->bytes();
    if (out.size() > bytes.size() - offset)
      return Internal(where + ": asked for more bytes than it has");
    if (!out.empty()) std::memcpy(out.data(), bytes.data() + offset, out.size());
    file->Release(offset, out.size());
    return OkStatus();
  });
}

Result<Initializer> ReadTensor(onnx::TensorProto& tensor, const fs::path& folder,
                               MappedFiles& files) {
  const std::string where = "initializer \"" + tensor.name() + "\"";
  const std::optional<DType> dtype = FromOnnxType(tensor.data_type());
  if (!dtype) {
    return Unimplemented(where + ": ONNX element type " + std::to_string(tensor.data_type()) +
                         " is not supported");
  }
  const Shape shape(tensor.dims().begin(), tensor.dims().end());
  const int64_t size = NumBytes(*dtype, shape);
  if (size < 0) return DataLoss(where + ": impossible shape " + ShapeString(shape));
  if (tensor.data_location() == onnx::TensorProto::EXTERNAL) {
    HEXPORT_ASSIGN_OR_RETURN(DataSource source,
                             ExternalSource(tensor, static_cast<uint64_t>(size), folder, files));
    return Initializer{tensor.name(), *dtype, shape, std::move(source)};
  }
  Initializer initializer;
  size_t got = 0;
  if (tensor.has_raw_data()) {
    auto raw = std::make_shared<std::string>();
    raw->swap(*tensor.mutable_raw_data());
    got = raw->size();
    initializer = {tensor.name(), *dtype, shape, [raw, where](std::span<std::byte> out) {
                     if (out.size() != raw->size())
                       return Internal(where + ": asked for a wrong number of bytes");
                     if (!out.empty()) std::memcpy(out.data(), raw->data(), out.size());
                     return OkStatus();
                   }};
  } else {
    HEXPORT_ASSIGN_OR_RETURN(std::vector<std::byte> bytes, TypedBytes(tensor, *dtype));
    got = bytes.size();
    initializer = MakeConstantBytes(tensor.name(), *dtype, shape, std::move(bytes));
  }
  if (got != static_cast<size_t>(size)) {
    return DataLoss(where + ": expected " + std::to_string(size) + " bytes for " +
                    ShapeString(shape) + " " + std::string(DTypeName(*dtype)) + ", got " +
                    std::to_string(got));
  }
  return initializer;
}

bool IsTensorConstant(const onnx::NodeProto& node) {
  return node.op_type() == "Constant" && node.output_size() == 1 && node.attribute_size() == 1 &&
         node.attribute(0).has_t();
}

Status ReadGraph(onnx::ModelProto& model, const fs::path& folder, Graph& graph) {
  onnx::GraphProto& proto = *model.mutable_graph();
  if (proto.sparse_initializer_size() > 0)
    return Unimplemented("sparse initializers are not supported");
  if (model.functions_size() > 0)
    return Unimplemented("model-local functions are not supported; inline them");
  graph.name = proto.name();
  for (const auto& opset : model.opset_import()) {
    if (opset.domain().empty() || opset.domain() == "ai.onnx") graph.opset = opset.version();
  }
  MappedFiles files;
  for (onnx::TensorProto& tensor : *proto.mutable_initializer()) {
    HEXPORT_ASSIGN_OR_RETURN(Initializer initializer, ReadTensor(tensor, folder, files));
    graph.initializers.push_back(std::move(initializer));
  }
  std::map<std::string, bool> initialized;
  for (const Initializer& initializer : graph.initializers) initialized[initializer.name] = true;
  for (const auto& input : proto.input()) {
    if (initialized.contains(input.name()))
      continue;  // IR version 3 lists initializers among the inputs
    HEXPORT_ASSIGN_OR_RETURN(ValueInfo value, ReadValueInfo(input));
    graph.inputs.push_back(std::move(value));
  }
  for (const auto& output : proto.output()) {
    HEXPORT_ASSIGN_OR_RETURN(ValueInfo value, ReadValueInfo(output));
    graph.outputs.push_back(std::move(value));
  }
  for (onnx::NodeProto& node : *proto.mutable_node()) {
    if (IsTensorConstant(node)) {
      onnx::TensorProto& tensor = *node.mutable_attribute(0)->mutable_t();
      tensor.set_name(node.output(0));
      HEXPORT_ASSIGN_OR_RETURN(Initializer constant, ReadTensor(tensor, folder, files));
      graph.initializers.push_back(std::move(constant));
      continue;
    }
    HEXPORT_ASSIGN_OR_RETURN(Node read, ReadNode(node));
    graph.nodes.push_back(std::move(read));
  }
  return OkStatus();
}

Result<Graph> ReadOnnxUnguarded(const fs::path& path) {
  onnx::ModelProto model;
  {
    HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
    const std::span<const std::byte> bytes = file->bytes();
    if (bytes.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
      return DataLoss("expected an ONNX model of at most 2 GB, got " +
                      std::to_string(bytes.size()) + " bytes");
    }
    if (!model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) || !model.has_graph()) {
      return DataLoss("expected an ONNX model, got " + std::to_string(bytes.size()) +
                      " bytes that are not one, or only a part of one");
    }
  }
  Graph graph;
  HEXPORT_RETURN_IF_ERROR(ReadGraph(model, path.parent_path(), graph));
  if (const Status checked = CheckGraph(graph); !checked.ok()) return DataLoss(checked.message());
  return graph;
}

}  // namespace

Result<Graph> ReadOnnx(const fs::path& path) {
  try {
    Result<Graph> graph = ReadOnnxUnguarded(path);
    if (!graph.ok()) return graph.status().WithContext(path.string());
    return graph;
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(path.string() + ": no memory to read this model");
  } catch (const std::exception& error) {
    return Internal(path.string() + ": " + error.what());
  }
}

}  // namespace hexport::graph
