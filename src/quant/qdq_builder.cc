#include "quant/qdq_builder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "quant/weight_initializers.h"

namespace hexport::quant {
namespace {

using graph::Initializer;
using graph::Node;
using graph::ValueInfo;

// onnx::TensorProto::DataType's numbers.
constexpr int kOnnxFloat = 1, kOnnxFloat16 = 10;

DType CodeType(const Encoding& encoding) {
  return encoding.bits == 8 ? DType::kUInt8 : DType::kUInt16;
}

// A linear's weight as float32, dequantized when the bytes are asked for.
Initializer DequantizedLinear(const WeightStore& store, const Initializer& initializer) {
  Initializer out = initializer;
  const std::string name = initializer.name;
  out.source = [&store, name](std::span<std::byte> bytes) -> Status {
    HEXPORT_ASSIGN_OR_RETURN(const QuantizedWeight weight, store.Read(name));
    const std::vector<float> values = Dequantize(weight);
    if (values.size() * sizeof(float) != bytes.size()) {
      return Internal(name + ": expected a buffer of " +
                      std::to_string(values.size() * sizeof(float)) + " bytes, got " +
                      std::to_string(bytes.size()));
    }
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return OkStatus();
  };
  return out;
}

}  // namespace

QdqBuilder::QdqBuilder(const decoder::DecoderGraph& decoder, const RangeMap& ranges,
                       const WeightStore& store, const QuantConfig& config,
                       QdqBuilderOptions options)
    : decoder_(decoder),
      source_(decoder.graph),
      store_(store),
      options_(std::move(options)),
      encodings_(decoder, ranges, store, config) {
  for (const Initializer& initializer : source_.initializers)
    initializers_[initializer.name] = &initializer;
  for (const decoder::LinearWeight& linear : decoder.linears) linears_.insert(linear.name);
  for (const ValueInfo& output : source_.outputs) outputs_.insert(output.name);
}

Result<QdqGraph> QdqBuilder::Build() && {
  if (options_.activations) HEXPORT_RETURN_IF_ERROR(encodings_.Check());
  out_.graph.name = source_.name;
  for (const ValueInfo& input : source_.inputs) HEXPORT_RETURN_IF_ERROR(AddInput(input));
  for (const Node& node : source_.nodes) HEXPORT_RETURN_IF_ERROR(AddNode(node));
  for (const ValueInfo& output : source_.outputs) HEXPORT_RETURN_IF_ERROR(AddOutput(output));
  return std::move(out_);
}

bool QdqBuilder::StaysFloat(const std::string& activation) const {
  return !options_.activations ||
         options_.float_activations.contains(encodings_.FullName(activation));
}

Status QdqBuilder::AddInput(const ValueInfo& input) {
  ValueInfo info = input;
  const std::string& name = input.name;
  usable_[name] = name;
  if (input.dtype == DType::kFloat32 && !StaysFloat(name)) {
    if (encodings_.IsFloat16(name)) {
      HEXPORT_RETURN_IF_ERROR(AddFloat16(name, name));
    } else {
      HEXPORT_RETURN_IF_ERROR(AddQuantizedInput(info));
    }
  }
  out_.graph.inputs.push_back(std::move(info));
  return OkStatus();
}

Status QdqBuilder::AddQuantizedInput(ValueInfo& info) {
  const std::string& name = info.name;
  const bool narrow = encodings_.IsNarrow(name);
  const std::string wide = narrow ? name + ".wide.dq" : name + ".dq";
  usable_[name] = name + ".dq";
  if (options_.float_edges) {
    HEXPORT_RETURN_IF_ERROR(AddStep(name, Width::kWide, name, name + ".codes", wide));
  } else {
    HEXPORT_ASSIGN_OR_RETURN(const Encoding encoding, encodings_.Shared(name));
    HEXPORT_ASSIGN_OR_RETURN(const std::string shared, EncodingName(name, Width::kWide));
    info.dtype = CodeType(encoding);
    out_.io[name] = encoding;
    out_.graph.nodes.push_back(DequantizeNode(name, shared, wide));
  }
  if (!narrow) return OkStatus();
  return AddStep(name, Width::kNarrow, wide, name + ".8bit.codes", name + ".dq");
}

Status QdqBuilder::AddOutput(ValueInfo output) {
  if (!options_.float_edges) {
    HEXPORT_ASSIGN_OR_RETURN(const Encoding encoding, encodings_.Shared(output.name));
    output.dtype = CodeType(encoding);
    out_.io[output.name] = encoding;
  }
  out_.graph.outputs.push_back(std::move(output));
  return OkStatus();
}

Status QdqBuilder::AddNode(const Node& node) {
  Node copy = node;
  for (std::string& input : copy.inputs) {
    if (input.empty()) continue;
    HEXPORT_ASSIGN_OR_RETURN(input, UsableBy(node, input));
  }
  const bool float16 = options_.activations && encodings_.RunsInFloat16(node);
  // An Identity marks a change of encoding: its input's floats are quantized anew.
  const bool identity = node.op_type == "Identity" && !StaysFloat(node.outputs[0]);
  for (std::string& output : copy.outputs) {
    usable_[output] = output;
    if (float16) {
      output += ".f16";
    } else if (!StaysFloat(output)) {
      output += ".float";
    }
  }
  const std::string from = copy.inputs.empty() ? "" : copy.inputs[0];
  if (!identity) out_.graph.nodes.push_back(copy);
  if (float16) out_.float16.insert(node.outputs.begin(), node.outputs.end());
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const std::string& activation = node.outputs[i];
    std::string value = identity ? from : copy.outputs[i];
    if (float16 && (StaysFloat(activation) || encodings_.IsFloat16(activation))) {
      HEXPORT_RETURN_IF_ERROR(AddFloat16(activation, value));
      continue;
    }
    if (StaysFloat(activation)) continue;
    if (float16)
      AddCast(std::exchange(value, activation + ".float"), activation + ".float", DType::kFloat32);
    HEXPORT_RETURN_IF_ERROR(AddQuantize(activation, value, encodings_.IsNarrowLinear(node)));
  }
  return OkStatus();
}

// An activation that is not quantized, computed in float16 or an input to be rounded to it.
Status QdqBuilder::AddFloat16(const std::string& activation, const std::string& value) {
  float16_[activation] = value;
  out_.float16.insert(activation);
  if (value == activation) {  // a float32 graph input
    float16_[activation] = activation + ".f16";
    AddCast(value, activation + ".f16", DType::kFloat16);
    return OkStatus();
  }
  if (options_.float_edges) AddCast(value, activation, DType::kFloat32);
  usable_[activation] = options_.float_edges ? activation : "";
  return OkStatus();
}

Status QdqBuilder::AddQuantize(const std::string& activation, const std::string& value,
                               bool narrow_linear) {
  const bool output = outputs_.contains(activation) && !options_.float_edges;
  const bool read = options_.float_edges || encodings_.groups().IsConsumed(activation);
  std::string from = value;
  if (narrow_linear) {
    from = activation + ".narrow.dq";
    HEXPORT_RETURN_IF_ERROR(
        AddStep(activation, Width::kNarrow, value, activation + ".narrow.codes", from));
  }
  const std::string final_name = FinalName(activation);
  usable_[activation] = final_name;
  const std::string codes = output ? activation : activation + ".codes";
  if (!encodings_.IsNarrow(activation)) {
    return AddStep(activation, Width::kWide, from, codes, read ? final_name : "");
  }
  const std::string wide = activation + ".wide";
  HEXPORT_RETURN_IF_ERROR(AddStep(activation, Width::kWide, from, wide + ".codes", wide + ".dq"));
  HEXPORT_RETURN_IF_ERROR(
      AddStep(activation, Width::kNarrow, wide + ".dq", activation + ".8bit.codes", final_name));
  if (!output) return OkStatus();
  return AddStep(activation, Width::kWide, final_name, codes, "");
}

Status QdqBuilder::AddStep(const std::string& activation, Width width, const std::string& value,
                           const std::string& codes, const std::string& output) {
  HEXPORT_ASSIGN_OR_RETURN(const std::string encoding, EncodingName(activation, width));
  Node node;
  node.op_type = "QuantizeLinear";
  node.name = codes.ends_with(".codes") ? codes.substr(0, codes.size() - 5) + "q" : codes + ".q";
  node.inputs = {value, encoding + ".scale", encoding + ".zero_point"};
  node.outputs = {codes};
  out_.graph.nodes.push_back(std::move(node));
  if (output.empty()) return OkStatus();
  Node dequantize = DequantizeNode(codes, encoding, output);
  if (options_.float_edges) dequantize.name += ".dequantize";  // the op has the output's name
  out_.graph.nodes.push_back(std::move(dequantize));
  return OkStatus();
}

void QdqBuilder::AddCast(const std::string& value, const std::string& output, DType dtype) {
  Node node;
  node.op_type = "Cast";
  node.name = output + ".cast";
  node.inputs = {value};
  node.outputs = {output};
  node.attributes["to"] = int64_t{dtype == DType::kFloat16 ? kOnnxFloat16 : kOnnxFloat};
  out_.graph.nodes.push_back(std::move(node));
}

// Scalars are added to the graph on first use.
Result<std::string> QdqBuilder::EncodingName(const std::string& activation, Width width) {
  const std::string& root = encodings_.groups().Root(activation);
  HEXPORT_ASSIGN_OR_RETURN(const Encoding shared, encodings_.Shared(activation));
  HEXPORT_ASSIGN_OR_RETURN(const Encoding narrow, encodings_.Narrow(activation));
  out_.activations[activation] = encodings_.IsNarrow(activation) ? narrow : shared;
  const std::string name = width == Width::kNarrow ? root + ".8bit" : root;
  if (named_encodings_.insert(name).second)
    AddEncoding(name, width == Width::kNarrow ? narrow : shared, out_.graph);
  return name;
}

Result<std::string> QdqBuilder::UsableBy(const Node& node, const std::string& name) {
  if (!options_.activations) return Usable(name);
  if (encodings_.RunsInFloat16(node)) return UsableInFloat16(name);
  HEXPORT_ASSIGN_OR_RETURN(const std::string value, Usable(name));
  const bool narrow = encodings_.IsNarrow(name) && !StaysFloat(name);
  if (!narrow || encodings_.IsNarrowLinear(node)) return value;
  std::string& widened = widened_[name];
  if (widened.empty()) {
    widened = name + ".widened.dq";
    HEXPORT_RETURN_IF_ERROR(AddStep(name, Width::kWide, value, name + ".widened.codes", widened));
  }
  return widened;
}

Result<std::string> QdqBuilder::UsableInFloat16(const std::string& name) {
  std::string& value = float16_[name];
  if (!value.empty()) return value;
  const auto found = initializers_.find(name);
  const bool integers = found != initializers_.end() && found->second->dtype != DType::kFloat32;
  HEXPORT_ASSIGN_OR_RETURN(const std::string from, Usable(name));
  if (integers) return from;
  float16_[name] = name + ".f16";
  if (found == initializers_.end()) out_.float16.insert(name);
  AddCast(from, name + ".f16", DType::kFloat16);
  return name + ".f16";
}

Result<std::string> QdqBuilder::Usable(const std::string& name) {
  if (const auto found = usable_.find(name); found != usable_.end()) return found->second;
  const auto found = initializers_.find(name);
  if (found == initializers_.end())
    return Internal(name + ": expected an initializer or an earlier value");
  HEXPORT_ASSIGN_OR_RETURN(const std::string value, AddWeight(*found->second));
  usable_[name] = value;
  return value;
}

Result<std::string> QdqBuilder::AddWeight(const Initializer& initializer) {
  const std::string& name = initializer.name;
  if (initializer.dtype != DType::kFloat32 || !options_.weights) {
    out_.graph.initializers.push_back(initializer);
    return name;
  }
  if (linears_.contains(name) && options_.float_edges) {
    HEXPORT_RETURN_IF_ERROR(store_.Describe(name).status());
    out_.graph.initializers.push_back(DequantizedLinear(store_, initializer));
    return name;
  }
  if (linears_.contains(name)) {
    HEXPORT_RETURN_IF_ERROR(AddNpuWeight(store_, name, out_.graph));
  } else if (name == decoder_.embedding) {
    HEXPORT_RETURN_IF_ERROR(AddEmbedding(store_, name, out_.graph));
    out_.graph.nodes.push_back(DequantizeNode(name + ".uint16", name, name + ".dq"));
  } else {
    HEXPORT_RETURN_IF_ERROR(AddConstant(initializer));
  }
  return name + ".dq";
}

// Norm weights and biases: 16 bit per tensor.
Status QdqBuilder::AddConstant(const Initializer& initializer) {
  const int64_t count = NumElements(initializer.shape);
  if (count < 0) return Internal(initializer.name + ": expected a static shape");
  std::vector<float> values(static_cast<size_t>(count));
  HEXPORT_RETURN_IF_ERROR(initializer.source(std::as_writable_bytes(std::span<float>(values))));
  Range range;
  for (const float value : values) {
    if (!std::isfinite(value)) {
      return DataLoss(initializer.name + ": expected finite numbers, got " + std::to_string(value));
    }
    range.min = std::min(range.min, value);
    range.max = std::max(range.max, value);
  }
  const std::optional<Encoding> exact = encodings_.Exact(initializer.name);
  const Encoding encoding = exact.value_or(MakeEncoding(range, 16, /*symmetric=*/false));
  out_.constants[initializer.name] = encoding;
  std::vector<uint16_t> codes(values.size());
  QuantizeValues(values, encoding, codes);
  const std::string codes_name = initializer.name + ".uint16";
  out_.graph.initializers.push_back(graph::MakeConstant<uint16_t>(
      codes_name, DType::kUInt16, initializer.shape, std::move(codes)));
  AddEncoding(initializer.name, encoding, out_.graph);
  out_.graph.nodes.push_back(
      DequantizeNode(codes_name, initializer.name, initializer.name + ".dq"));
  return OkStatus();
}

}  // namespace hexport::quant
