#include "ort/session.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

#include "ort/element_type.h"
#include "ort/library.h"
#include "ort/session_options.h"
#include "ort/unsupported_nodes.h"

namespace hexport::ort {
namespace {

using Value = Handle<OrtValue>;

// "name float32 [1, ?]".
std::string Describe(DType dtype, const Shape& shape) {
  std::string text = std::string(DTypeName(dtype)) + " [";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + (shape[i] == kDynamicDim ? "?" : std::to_string(shape[i]));
  }
  return text + "]";
}

std::string Names(const std::vector<IoInfo>& infos) {
  std::string text;
  for (const IoInfo& info : infos) text += (text.empty() ? "" : ", ") + info.name;
  return text;
}

const IoInfo* FindIo(const std::vector<IoInfo>& infos, std::string_view name) {
  const auto found =
      std::find_if(infos.begin(), infos.end(), [&](const IoInfo& i) { return i.name == name; });
  return found == infos.end() ? nullptr : &*found;
}

bool IsStatic(const Shape& shape) { return NumElements(shape) >= 0; }

Status CheckInput(const IoInfo& info, const TensorView& view) {
  bool fits = view.dtype == info.dtype && view.shape.size() == info.shape.size();
  for (size_t i = 0; fits && i < info.shape.size(); ++i) {
    fits = view.shape[i] >= 0 && (info.shape[i] == kDynamicDim || info.shape[i] == view.shape[i]);
  }
  if (!fits) {
    return InvalidArgument("input " + info.name + ": expected " + Describe(info.dtype, info.shape) +
                           ", got " + Describe(view.dtype, view.shape));
  }
  const int64_t bytes = NumBytes(view.dtype, view.shape);
  if (bytes < 0 || (bytes > 0 && view.data == nullptr)) {
    return InvalidArgument("input " + info.name + ": expected " + Describe(view.dtype, view.shape) +
                           " bytes, got " +
                           (bytes < 0 ? "a size that overflows" : "a null pointer"));
  }
  return OkStatus();
}

}  // namespace

struct Session::Impl {
  Library* library = nullptr;
  Handle<OrtSession> session{nullptr, nullptr};
  Handle<OrtMemoryInfo> cpu_memory{nullptr, nullptr};
  std::vector<IoInfo> inputs, outputs;

  const OrtApi& api() const { return *library->api; }
  Status Check(OrtStatus* status, std::string_view context, uint64_t mark) const {
    return ToStatus(*library, status, context, mark);
  }
  Status Inspect();
  Result<std::vector<IoInfo>> InspectSide(bool input);
  Result<IoInfo> ReadTypeInfo(std::string name, const OrtTypeInfo* type);
  Result<Value> Wrap(DType dtype, const Shape& shape, void* data) const;
  Result<Tensor> Copy(const IoInfo& info, OrtValue* value) const;
  Result<std::vector<Tensor>> Run(const std::map<std::string, TensorView>& feeds,
                                  const std::vector<const IoInfo*>& wanted);
};

Result<IoInfo> Session::Impl::ReadTypeInfo(std::string name, const OrtTypeInfo* type) {
  const uint64_t mark = library->log.Mark();
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;  // owned by `type`
  HEXPORT_RETURN_IF_ERROR(Check(api().CastTypeInfoToTensorInfo(type, &tensor), name, mark));
  if (tensor == nullptr) return Unimplemented(name + ": expected a tensor, got another ONNX type");
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  HEXPORT_RETURN_IF_ERROR(Check(api().GetTensorElementType(tensor, &element), name, mark));
  const std::optional<DType> dtype = FromOnnxType(element);
  if (!dtype) {
    return Unimplemented(name +
                         ": expected a number or bool of at least 8 bits, got ONNX element type " +
                         std::to_string(element));
  }
  size_t rank = 0;
  HEXPORT_RETURN_IF_ERROR(Check(api().GetDimensionsCount(tensor, &rank), name, mark));
  Shape shape(rank);
  HEXPORT_RETURN_IF_ERROR(Check(api().GetDimensions(tensor, shape.data(), rank), name, mark));
  for (int64_t& dim : shape) dim = dim < 0 ? kDynamicDim : dim;
  return IoInfo{std::move(name), *dtype, std::move(shape)};
}

Result<std::vector<IoInfo>> Session::Impl::InspectSide(bool input) {
  const uint64_t mark = library->log.Mark();
  const char* where = input ? "model inputs" : "model outputs";
  OrtAllocator* allocator = nullptr;  // ONNX Runtime's own, never freed
  HEXPORT_RETURN_IF_ERROR(Check(api().GetAllocatorWithDefaultOptions(&allocator), where, mark));
  size_t count = 0;
  const OrtSession* s = session.get();
  OrtStatus* counted =
      input ? api().SessionGetInputCount(s, &count) : api().SessionGetOutputCount(s, &count);
  HEXPORT_RETURN_IF_ERROR(Check(counted, where, mark));
  std::vector<IoInfo> infos;
  for (size_t i = 0; i < count; ++i) {
    char* raw_name = nullptr;
    HEXPORT_RETURN_IF_ERROR(Check(input ? api().SessionGetInputName(s, i, allocator, &raw_name)
                                        : api().SessionGetOutputName(s, i, allocator, &raw_name),
                                  where, mark));
    std::string name = raw_name;
    allocator->Free(allocator, raw_name);
    OrtTypeInfo* raw_type = nullptr;
    HEXPORT_RETURN_IF_ERROR(Check(input ? api().SessionGetInputTypeInfo(s, i, &raw_type)
                                        : api().SessionGetOutputTypeInfo(s, i, &raw_type),
                                  where, mark));
    const Handle<OrtTypeInfo> type(raw_type, api().ReleaseTypeInfo);
    HEXPORT_ASSIGN_OR_RETURN(IoInfo info, ReadTypeInfo(std::move(name), type.get()));
    infos.push_back(std::move(info));
  }
  return infos;
}

Status Session::Impl::Inspect() {
  OrtMemoryInfo* memory = nullptr;
  HEXPORT_RETURN_IF_ERROR(
      Check(api().CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory), "CPU memory",
            library->log.Mark()));
  cpu_memory = Handle<OrtMemoryInfo>(memory, api().ReleaseMemoryInfo);
  HEXPORT_ASSIGN_OR_RETURN(inputs, InspectSide(true));
  HEXPORT_ASSIGN_OR_RETURN(outputs, InspectSide(false));
  return OkStatus();
}

Result<Value> Session::Impl::Wrap(DType dtype, const Shape& shape, void* data) const {
  static std::byte nothing[1];  // a tensor without elements still wants an address
  const std::optional<ONNXTensorElementDataType> element = ToOnnxType(dtype);
  const int64_t bytes = NumBytes(dtype, shape);
  if (!element || bytes < 0)
    return Internal("tensor " + Describe(dtype, shape) + " cannot be passed on");
  OrtValue* value = nullptr;
  HEXPORT_RETURN_IF_ERROR(
      Check(api().CreateTensorWithDataAsOrtValue(cpu_memory.get(), data == nullptr ? nothing : data,
                                                 static_cast<size_t>(bytes), shape.data(),
                                                 shape.size(), *element, &value),
            Describe(dtype, shape), library->log.Mark()));
  return Value(value, api().ReleaseValue);
}

// A result whose shape was not known beforehand.
Result<Tensor> Session::Impl::Copy(const IoInfo& info, OrtValue* value) const {
  const uint64_t mark = library->log.Mark();
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  HEXPORT_RETURN_IF_ERROR(Check(api().GetTensorTypeAndShape(value, &raw), info.name, mark));
  const Handle<OrtTensorTypeAndShapeInfo> shape_info(raw, api().ReleaseTensorTypeAndShapeInfo);
  size_t rank = 0;
  HEXPORT_RETURN_IF_ERROR(Check(api().GetDimensionsCount(raw, &rank), info.name, mark));
  Tensor tensor{info.dtype, Shape(rank), {}};
  HEXPORT_RETURN_IF_ERROR(
      Check(api().GetDimensions(raw, tensor.shape.data(), rank), info.name, mark));
  void* data = nullptr;
  HEXPORT_RETURN_IF_ERROR(Check(api().GetTensorMutableData(value, &data), info.name, mark));
  const int64_t bytes = NumBytes(tensor.dtype, tensor.shape);
  if (bytes < 0)
    return Internal(info.name + ": ONNX Runtime returned shape " + ShapeString(tensor.shape));
  const auto* first = static_cast<const std::byte*>(data);
  if (bytes > 0) tensor.bytes.assign(first, first + bytes);
  return tensor;
}

Result<std::vector<Tensor>> Session::Impl::Run(const std::map<std::string, TensorView>& feeds,
                                               const std::vector<const IoInfo*>& wanted) {
  std::vector<Value> held;
  std::vector<const char*> input_names, output_names;
  std::vector<const OrtValue*> input_values;
  for (const auto& [name, view] : feeds) {
    // ONNX Runtime takes a pointer to mutable bytes for inputs and outputs alike, but only reads
    // inputs.
    HEXPORT_ASSIGN_OR_RETURN(Value value,
                             Wrap(view.dtype, view.shape, const_cast<void*>(view.data)));
    input_names.push_back(name.c_str());
    input_values.push_back(value.get());
    held.push_back(std::move(value));
  }
  std::vector<Tensor> results(wanted.size());
  std::vector<OrtValue*> output_values(wanted.size(), nullptr);
  for (size_t i = 0; i < wanted.size(); ++i) {
    output_names.push_back(wanted[i]->name.c_str());
    if (!IsStatic(wanted[i]->shape)) continue;  // left to ONNX Runtime
    results[i] = {wanted[i]->dtype, wanted[i]->shape, {}};
    results[i].bytes.resize(static_cast<size_t>(NumBytes(results[i].dtype, results[i].shape)));
    HEXPORT_ASSIGN_OR_RETURN(Value value,
                             Wrap(results[i].dtype, results[i].shape, results[i].bytes.data()));
    output_values[i] = value.get();
    held.push_back(std::move(value));
  }
  const uint64_t mark = library->log.Mark();
  OrtStatus* status =
      api().Run(session.get(), nullptr, input_names.data(), input_values.data(), input_names.size(),
                output_names.data(), output_names.size(), output_values.data());
  std::vector<Value> allocated;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!IsStatic(wanted[i]->shape)) allocated.emplace_back(output_values[i], api().ReleaseValue);
  }
  HEXPORT_RETURN_IF_ERROR(Check(status, "run", mark));
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (IsStatic(wanted[i]->shape)) continue;
    HEXPORT_ASSIGN_OR_RETURN(results[i], Copy(*wanted[i], output_values[i]));
  }
  return results;
}

Session::Session() : impl_(std::make_unique<Impl>()) {}
Session::~Session() = default;

const std::vector<IoInfo>& Session::inputs() const { return impl_->inputs; }
const std::vector<IoInfo>& Session::outputs() const { return impl_->outputs; }

namespace {

// `create` calls CreateSession or CreateSessionFromArray.
template <typename CreateCall>
Result<Handle<OrtSession>> Open(Library& library, const SessionOptions& options,
                                std::string_view where, const CreateCall& create) {
  HEXPORT_ASSIGN_OR_RETURN(const Handle<OrtSessionOptions> ort_options,
                           MakeOrtOptions(library, options));
  const uint64_t mark = library.log.Mark();
  OrtSession* session = nullptr;
  const Status status = ToStatus(library, create(ort_options.get(), &session), where, mark);
  Handle<OrtSession> opened(session, library.api->ReleaseSession);
  if (status.ok()) return opened;
  if (status.message().find("fallback to CPU EP") == std::string::npos) return status;
  const std::vector<std::string> nodes = UnsupportedNodes(library.log.LinesSince(mark));
  if (nodes.empty()) return status;
  const auto trace_dir = options.qnn_options.find("framework_op_trace_dir");
  return UnsupportedNodesError(nodes,
                               trace_dir == options.qnn_options.end() ? "" : trace_dir->second)
      .WithContext(where);
}

}  // namespace

Result<std::unique_ptr<Session>> Session::Create(const std::filesystem::path& model,
                                                 const SessionOptions& options) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(model, error)) {
    return NotFound(model.string() + ": expected an ONNX model file, got " +
                    (std::filesystem::exists(model, error) ? "something else" : "nothing"));
  }
  HEXPORT_ASSIGN_OR_RETURN(Library* const library, GetLibrary());
  std::unique_ptr<Session> made(new Session());
  made->impl_->library = library;
  HEXPORT_ASSIGN_OR_RETURN(made->impl_->session,
                           Open(*library, options, model.string(),
                                [&](const OrtSessionOptions* ort_options, OrtSession** session) {
                                  return library->api->CreateSession(library->env, model.c_str(),
                                                                     ort_options, session);
                                }));
  HEXPORT_RETURN_IF_ERROR(made->impl_->Inspect().WithContext(model.string()));
  return made;
}

Result<std::unique_ptr<Session>> Session::CreateFromBytes(std::string_view model,
                                                          const SessionOptions& options) {
  HEXPORT_ASSIGN_OR_RETURN(Library* const library, GetLibrary());
  std::unique_ptr<Session> made(new Session());
  made->impl_->library = library;
  HEXPORT_ASSIGN_OR_RETURN(made->impl_->session,
                           Open(*library, options, "model in memory",
                                [&](const OrtSessionOptions* ort_options, OrtSession** session) {
                                  return library->api->CreateSessionFromArray(
                                      library->env, model.data(), model.size(), ort_options,
                                      session);
                                }));
  HEXPORT_RETURN_IF_ERROR(made->impl_->Inspect().WithContext("model in memory"));
  return made;
}

Result<std::vector<Tensor>> Session::Run(const std::map<std::string, TensorView>& inputs,
                                         const std::vector<std::string>& output_names) {
  for (const auto& [name, view] : inputs) {
    if (FindIo(impl_->inputs, name) == nullptr) {
      return InvalidArgument("input " + name + ": expected one of " + Names(impl_->inputs) +
                             ", got this name");
    }
  }
  for (const IoInfo& info : impl_->inputs) {
    const auto found = inputs.find(info.name);
    if (found == inputs.end()) {
      return InvalidArgument("input " + info.name + ": expected " +
                             Describe(info.dtype, info.shape) + ", got nothing");
    }
    HEXPORT_RETURN_IF_ERROR(CheckInput(info, found->second));
  }
  std::vector<const IoInfo*> wanted;
  for (const std::string& name : output_names) {
    wanted.push_back(FindIo(impl_->outputs, name));
    if (wanted.back() == nullptr) {
      return InvalidArgument("output " + name + ": expected one of " + Names(impl_->outputs) +
                             ", got this name");
    }
  }
  if (output_names.empty()) {
    for (const IoInfo& info : impl_->outputs) wanted.push_back(&info);
  }
  try {
    return impl_->Run(inputs, wanted);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("run: not enough memory for the outputs");
  }
}

}  // namespace hexport::ort
