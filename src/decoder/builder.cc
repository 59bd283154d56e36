#include "decoder/builder.h"

#include <algorithm>
#include <utility>

namespace hexport::decoder {
namespace {

graph::ValueInfo MakeValue(const std::string& name, DType dtype, const Dims& dims) {
  graph::ValueInfo value{name, dtype, {}, {}};
  bool dynamic = false;
  for (const Dim& dim : dims) {
    value.shape.push_back(dim.size);
    value.symbols.push_back(dim.size == kDynamicDim ? dim.symbol : "");
    dynamic = dynamic || dim.size == kDynamicDim;
  }
  if (!dynamic) value.symbols.clear();
  return value;
}

std::span<float> AsFloats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace

void Builder::Input(const std::string& name, DType dtype, const Dims& dims,
                    const std::string& full_name) {
  result_.graph.inputs.push_back(MakeValue(name, dtype, dims));
  if (dtype == DType::kFloat32) {
    result_.activations.push_back(
        {result_.graph.inputs.back(), full_name.empty() ? name : full_name});
  }
}

void Builder::Output(const std::string& name) {
  const auto found =
      std::find_if(result_.activations.begin(), result_.activations.end(),
                   [&](const Activation& activation) { return activation.value.name == name; });
  if (found != result_.activations.end()) {
    result_.graph.outputs.push_back(found->value);
  } else if (status_.ok()) {
    status_ = Internal("decoder: no node makes the output " + name);
  }
}

std::string Builder::Emit(const std::string& op_type, std::vector<std::string> inputs,
                          const std::string& output, const Dims& dims,
                          std::map<std::string, graph::AttributeValue> attributes,
                          const std::string& full_name) {
  result_.graph.nodes.push_back(
      {op_type, "", output, std::move(inputs), {output}, std::move(attributes)});
  result_.activations.push_back(
      {MakeValue(output, DType::kFloat32, dims), full_name.empty() ? output : full_name});
  return output;
}

void Builder::SplitLast(const std::string& input, const std::vector<std::string>& parts,
                        const std::vector<int64_t>& sizes, Dims dims) {
  graph::Node node;
  node.op_type = "Split";
  node.name = parts.front();
  node.inputs = {input};
  node.outputs = parts;
  node.attributes["axis"] = int64_t{-1};
  const bool equal =
      std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size == sizes.front(); });
  if (equal) {
    node.attributes["num_outputs"] = static_cast<int64_t>(sizes.size());
  } else {
    std::string constant = "split";
    for (const int64_t size : sizes) constant += "." + std::to_string(size);
    if (result_.graph.FindInitializer(constant) == nullptr) {
      result_.graph.initializers.push_back(graph::MakeConstant<int64_t>(
          constant, DType::kInt64, {static_cast<int64_t>(sizes.size())}, sizes));
    }
    node.inputs.push_back(std::move(constant));
  }
  result_.graph.nodes.push_back(std::move(node));
  for (size_t i = 0; i < parts.size(); ++i) {
    dims.back() = sizes[i];
    result_.activations.push_back({MakeValue(parts[i], DType::kFloat32, dims), parts[i]});
  }
}

std::string Builder::Reshape(const std::string& input, const std::string& output, const Dims& dims,
                             const std::string& shape_name, const std::vector<int64_t>& target) {
  const std::string constant = "shape." + shape_name;
  if (result_.graph.FindInitializer(constant) == nullptr) {
    result_.graph.initializers.push_back(graph::MakeConstant<int64_t>(
        constant, DType::kInt64, {static_cast<int64_t>(target.size())}, target));
  }
  return Emit("Reshape", {input, constant}, output, dims);
}

void Builder::Expect(const std::string& tensor, const Shape& shape) {
  if (!status_.ok()) return;
  const TensorInfo* info = checkpoint_.Find(tensor);
  if (info == nullptr) {
    status_ = NotFound("checkpoint: expected a tensor \"" + tensor + "\", got none");
  } else if (info->shape != shape) {
    status_ = InvalidArgument("checkpoint: " + tensor + ": expected " + ShapeString(shape) +
                              ", got " + ShapeString(info->shape));
  }
}

std::string Builder::Vector(const std::string& name, const std::string& tensor, int64_t size,
                            double scale, double offset) {
  Expect(tensor, {size});
  auto source = [checkpoint = &checkpoint_, tensor, scale,
                 offset](std::span<std::byte> out) -> Status {
    const std::span<float> values = AsFloats(out);
    HEXPORT_RETURN_IF_ERROR(checkpoint->Read(tensor, values));
    for (float& value : values)
      value = static_cast<float>((static_cast<double>(value) + offset) * scale);
    return OkStatus();
  };
  result_.graph.initializers.push_back({name, DType::kFloat32, {size}, std::move(source)});
  return name;
}

std::string Builder::Norm(const std::string& input, const std::string& output,
                          const std::string& tensor, const Dims& dims, double scale) {
  const std::string weight =
      Vector(output + ".weight", tensor, dims.back().size, scale, config_.norm_offset);
  // One native op: decomposed, the range of x^2 ruins 16-bit activations.
  return Emit("RMSNormalization", {input, weight}, output, dims,
              {{"axis", int64_t{-1}}, {"epsilon", static_cast<float>(config_.rms_norm_eps)}});
}

std::string Builder::Linear(const std::string& input, const std::string& output,
                            const LinearWeight& weight, bool bias, const Dim& rows,
                            int64_t tensor_rows) {
  Expect(weight.tensor, {tensor_rows > 0 ? tensor_rows : weight.out_features, weight.in_features});
  result_.graph.initializers.push_back(
      {weight.name,
       DType::kFloat32,
       {weight.in_features, weight.out_features},
       [checkpoint = &checkpoint_, weight](std::span<std::byte> out) {
         return ReadLinear(*checkpoint, weight, AsFloats(out));
       }});
  result_.linears.push_back(weight);
  const Dims dims = {1, rows, weight.out_features};
  const std::string product = Emit("MatMul", {input, weight.name}, output, dims);
  if (!bias) return product;
  std::string tensor = weight.tensor;
  tensor.replace(tensor.rfind(".weight"), std::string::npos, ".bias");
  const std::string added =
      Vector(output + ".bias", tensor, weight.out_features, weight.scale, 0.0);
  return Emit("Add", {product, added}, output + ".biased", dims);
}

void Builder::Embedding(const std::string& output, const Dim& rows, const std::string& full_name) {
  const std::string tensor = "model.embed_tokens.weight";
  const Shape shape = {config_.vocab_size, config_.hidden_size};
  Expect(tensor, shape);
  result_.embedding = "embed_tokens.weight";
  result_.graph.initializers.push_back({result_.embedding, DType::kFloat32, shape,
                                        [checkpoint = &checkpoint_](std::span<std::byte> out) {
                                          return ReadEmbedding(*checkpoint, 0, AsFloats(out));
                                        }});
  Emit("Gather", {result_.embedding, "input_ids"}, output, {1, rows, config_.hidden_size},
       {{"axis", int64_t{0}}}, full_name);
}

void Builder::TiedHead(const std::string& input, const std::string& output, const Dim& rows) {
  std::string x = input;
  if (config_.embedding_scale != 1.0) {  // the table holds scaled rows
    const std::string factor = output + ".unscale";
    result_.graph.initializers.push_back(graph::MakeConstant<float>(
        factor, DType::kFloat32, {}, {static_cast<float>(1.0 / config_.embedding_scale)}));
    x = Emit("Mul", {input, factor}, output + ".input", {1, rows, config_.hidden_size});
  }
  const std::string turned =
      Emit("Transpose", {result_.embedding}, output + ".embedding",
           {config_.hidden_size, config_.vocab_size}, {{"perm", std::vector<int64_t>{1, 0}}});
  Emit("MatMul", {x, turned}, output, {1, rows, config_.vocab_size});
}

Result<DecoderGraph> Builder::Finish(std::string name) {
  HEXPORT_RETURN_IF_ERROR(status_);
  result_.graph.name = std::move(name);
  HEXPORT_RETURN_IF_ERROR(graph::CheckGraph(result_.graph));
  return std::move(result_);
}

}  // namespace hexport::decoder
