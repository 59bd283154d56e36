#include "runtime/graph_runner.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/attention_mask.h"
#include "base/rope.h"

namespace hexport::runtime {
namespace {

using bundle::IoEncoding;

size_t Size(int64_t value) { return static_cast<size_t>(value); }

std::string CacheName(const char* kind, int64_t layer, const char* end) {
  return std::string("past_") + kind + "_" + std::to_string(layer) + end;
}

// The masks and tables that a graph may have; it has those that a layer of it reads.
std::vector<IoEncoding> PossibleStepInputs(const RunnerFacts& facts, int64_t ar) {
  const bundle::ModelFacts& model = facts.model;
  const int64_t cl = facts.context_length;
  std::vector<IoEncoding> out = {{"attention_mask", "float32", {1, 1, ar, cl}, 0, 0}};
  if (model.sliding_window > 0)
    out.push_back({"sliding_attention_mask", "float32", {1, 1, ar, cl}, 0, 0});
  const auto add_tables = [&](const std::string& prefix, const std::vector<double>& frequencies) {
    if (frequencies.empty()) return;
    const auto pairs = static_cast<int64_t>(frequencies.size());
    for (const char* wave : {"cos", "sin"}) {
      out.push_back({prefix + "position_ids_" + wave, "float32", {1, 1, ar, pairs}, 0, 0});
    }
  };
  add_tables("", model.rope_frequencies);
  add_tables("local_", model.local_rope_frequencies);
  return out;
}

// The rest of the graph's interface as docs/architecture.md lays it down.
std::vector<IoEncoding> ExpectedInputs(const RunnerFacts& facts, int64_t ar) {
  const bundle::ModelFacts& model = facts.model;
  const int64_t cl = facts.context_length;
  std::vector<IoEncoding> out = {{"input_ids", "int32", {1, ar}, 0, 0}};
  for (int64_t layer = 0; layer < model.num_hidden_layers; ++layer) {
    const int64_t heads = model.num_key_value_heads;
    out.push_back(
        {CacheName("key", layer, "_in"), "float32", {heads, 1, model.head_dim, cl - ar}, 0, 0});
    out.push_back(
        {CacheName("value", layer, "_in"), "float32", {heads, 1, cl - ar, model.head_dim}, 0, 0});
  }
  return out;
}

std::vector<IoEncoding> ExpectedOutputs(const RunnerFacts& facts, int64_t ar) {
  const bundle::ModelFacts& model = facts.model;
  std::vector<IoEncoding> out = {{"logits", "float32", {1, ar, model.vocab_size}, 0, 0}};
  for (int64_t layer = 0; layer < model.num_hidden_layers; ++layer) {
    const int64_t heads = model.num_key_value_heads;
    out.push_back(
        {CacheName("key", layer, "_out"), "float32", {heads, 1, model.head_dim, ar}, 0, 0});
    out.push_back(
        {CacheName("value", layer, "_out"), "float32", {heads, 1, ar, model.head_dim}, 0, 0});
  }
  return out;
}

// Replaces dtype and encoding of each expected value by the graph's own; names and shapes must
// agree.
Status Describe(const std::string& where, const std::vector<IoEncoding>& actual,
                std::vector<IoEncoding>& expected) {
  for (IoEncoding& want : expected) {
    const auto found = std::find_if(actual.begin(), actual.end(),
                                    [&](const IoEncoding& io) { return io.name == want.name; });
    if (found == actual.end()) {
      return FailedPrecondition(where + ": expected a tensor " + want.name + ", got none");
    }
    if (found->shape != want.shape) {
      return FailedPrecondition(where + ": " + want.name + ": expected shape " +
                                ShapeString(want.shape) + ", got " + ShapeString(found->shape));
    }
    const bool is_ids = want.dtype == "int32";
    if (is_ids != (found->dtype == "int32") ||
        (!is_ids && found->dtype != "float32" && found->scale <= 0)) {
      return FailedPrecondition(where + ": " + want.name + ": expected " +
                                (is_ids ? "int32" : "float32 or codes with a scale above 0") +
                                ", got " + found->dtype + " with scale " +
                                std::to_string(found->scale));
    }
    want = *found;
  }
  return OkStatus();
}

float ToReal(double code, const IoEncoding& encoding) {
  return static_cast<float>((code - static_cast<double>(encoding.zero_point)) * encoding.scale);
}

}  // namespace

uint16_t ToCode(float value, const IoEncoding& encoding) {
  const double code = std::nearbyint(static_cast<double>(value) / encoding.scale) +
                      static_cast<double>(encoding.zero_point);
  return static_cast<uint16_t>(std::clamp(code, 0.0, 65535.0));
}

GraphRunner::GraphRunner(const RunnerFacts& facts, int64_t ar,
                         std::shared_ptr<ort::Session> session)
    : facts_(facts), ar_(ar), session_(std::move(session)), ids_(Size(ar)) {}

Result<std::unique_ptr<GraphRunner>> GraphRunner::Create(const RunnerFacts& facts,
                                                         const bundle::GraphEntry& entry,
                                                         std::shared_ptr<ort::Session> session) {
  if (entry.ar < 1 || entry.cl != facts.context_length || entry.ar >= entry.cl) {
    return FailedPrecondition(
        entry.name + ": expected ar from 1 and cl = " + std::to_string(facts.context_length) +
        ", got ar " + std::to_string(entry.ar) + ", cl " + std::to_string(entry.cl));
  }
  std::unique_ptr<GraphRunner> runner(new GraphRunner(facts, entry.ar, std::move(session)));
  HEXPORT_RETURN_IF_ERROR(runner->TakeEncodings(entry));
  HEXPORT_RETURN_IF_ERROR(runner->CheckNames().WithContext(entry.name));
  return runner;
}

Result<std::unique_ptr<GraphRunner>> GraphRunner::CreateFloat(
    const RunnerFacts& facts, int64_t ar, std::shared_ptr<ort::Session> session) {
  bundle::GraphEntry entry;
  entry.name = "float graph";
  entry.ar = ar;
  entry.cl = facts.context_length;
  entry.inputs = ExpectedInputs(facts, ar);
  for (IoEncoding& step : PossibleStepInputs(facts, ar)) {
    const std::vector<ort::IoInfo>& inputs = session->inputs();
    const bool has = std::any_of(inputs.begin(), inputs.end(),
                                 [&](const ort::IoInfo& io) { return io.name == step.name; });
    if (has) entry.inputs.push_back(std::move(step));
  }
  entry.outputs = ExpectedOutputs(facts, ar);
  return Create(facts, entry, std::move(session));
}

Status GraphRunner::TakeEncodings(const bundle::GraphEntry& entry) {
  std::vector<IoEncoding> inputs = ExpectedInputs(facts_, ar_),
                          outputs = ExpectedOutputs(facts_, ar_);
  HEXPORT_RETURN_IF_ERROR(Describe(entry.name, entry.inputs, inputs));
  HEXPORT_RETURN_IF_ERROR(Describe(entry.name, entry.outputs, outputs));
  HEXPORT_RETURN_IF_ERROR(TakeStepInputs(entry));
  logits_ = outputs[0];
  cache_in_.assign(inputs.begin() + 1, inputs.end());
  for (size_t i = 0; i < cache_in_.size(); ++i) {
    const IoEncoding &in = cache_in_[i], &out = outputs[i + 1];
    const bool codes = in.dtype == "uint8" && in.zero_point == 128;
    if ((!codes && in.dtype != "float32") || in.dtype != cache_in_[0].dtype) {
      return Unimplemented(entry.name + ": " + in.name +
                           ": expected uint8 with zero point 128 or float32, got " + in.dtype +
                           " with zero point " + std::to_string(in.zero_point));
    }
    if (in.dtype != out.dtype || in.scale != out.scale || in.zero_point != out.zero_point) {
      return FailedPrecondition(entry.name + ": expected one encoding for " + in.name + " and " +
                                out.name + ", got " + std::to_string(in.scale) + " and " +
                                std::to_string(out.scale));
    }
  }
  cache_dtype_ = cache_in_[0].dtype == "uint8" ? DType::kUInt8 : DType::kFloat32;
  for (const IoEncoding& output : outputs) output_names_.push_back(output.name);
  return OkStatus();
}

// Every input that is neither ids nor cache must be one that this runner can fill.
Status GraphRunner::TakeStepInputs(const bundle::GraphEntry& entry) {
  std::vector<IoEncoding> possible = PossibleStepInputs(facts_, ar_), wanted;
  for (const IoEncoding& input : entry.inputs) {
    if (input.name == "input_ids" || input.name.starts_with("past_")) continue;
    const auto found = std::find_if(possible.begin(), possible.end(),
                                    [&](const IoEncoding& io) { return io.name == input.name; });
    if (found == possible.end()) {
      return Unimplemented(entry.name + ": input " + input.name +
                           ": expected a mask or a position table of this model; use the hexport "
                           "that built the bundle, or a newer one");
    }
    wanted.push_back(*found);
  }
  const bool has_mask = std::any_of(wanted.begin(), wanted.end(), [](const IoEncoding& io) {
    return io.name.ends_with("attention_mask");
  });
  if (!has_mask)
    return FailedPrecondition(entry.name + ": expected a tensor attention_mask, got none");
  HEXPORT_RETURN_IF_ERROR(Describe(entry.name, entry.inputs, wanted));
  for (const IoEncoding& io : wanted) {
    if (io.dtype == "uint8") {
      return Unimplemented(entry.name + ": " + io.name + ": expected uint16 or float32, got uint8");
    }
    steps_.push_back({io, {}, {}});
  }
  return OkStatus();
}

// Shapes and types are checked by ort::Session::Run at the first call.
Status GraphRunner::CheckNames() const {
  const auto has = [](const std::vector<ort::IoInfo>& list, const std::string& name) {
    return std::any_of(list.begin(), list.end(),
                       [&](const ort::IoInfo& io) { return io.name == name; });
  };
  std::vector<std::string> inputs = {"input_ids"};
  for (const Input& step : steps_) inputs.push_back(step.io.name);
  for (const IoEncoding& io : cache_in_) inputs.push_back(io.name);
  for (const std::string& name : inputs) {
    if (!has(session_->inputs(), name)) {
      return FailedPrecondition("expected an input " + name + " in the model, got none");
    }
  }
  for (const std::string& name : output_names_) {
    if (!has(session_->outputs(), name)) {
      return FailedPrecondition("expected an output " + name + " in the model, got none");
    }
  }
  return OkStatus();
}

void GraphRunner::FillInputs(std::span<const int32_t> ids, const KvCache& cache) {
  std::fill(std::copy(ids.begin(), ids.end(), ids_.begin()), ids_.end(), 0);
  const bundle::ModelFacts& model = facts_.model;
  for (Input& step : steps_) {
    const std::string& name = step.io.name;
    if (name.ends_with("attention_mask")) {
      const int64_t window = name == "attention_mask" ? 0 : model.sliding_window;
      step.real = AttentionMask(ar_, facts_.context_length, cache.length(),
                                static_cast<int64_t>(ids.size()),
                                static_cast<float>(facts_.mask_floor), window);
      continue;
    }
    const bool local = name.starts_with("local_");
    std::vector<float> cos, sin;
    RopeTable(local ? model.local_rope_frequencies : model.rope_frequencies,
              local ? model.local_rope_attention_factor : model.rope_attention_factor,
              cache.length(), ar_, cos, sin);
    step.real = name.ends_with("cos") ? std::move(cos) : std::move(sin);
  }
}

ort::TensorView GraphRunner::View(Input& input) {
  if (input.io.dtype == "float32") return {DType::kFloat32, input.io.shape, input.real.data()};
  input.codes.resize(input.real.size());
  std::transform(input.real.begin(), input.real.end(), input.codes.begin(),
                 [&](float value) { return ToCode(value, input.io); });
  return {DType::kUInt16, input.io.shape, input.codes.data()};
}

Status GraphRunner::Run(std::span<const int32_t> ids, bool all_rows, KvCache& cache,
                        std::vector<float>& logits) {
  const int64_t count = static_cast<int64_t>(ids.size());
  if (count < 1 || count > ar_) {
    return InvalidArgument("graph with ar " + std::to_string(ar_) + ": got " +
                           std::to_string(count) + " tokens");
  }
  HEXPORT_RETURN_IF_ERROR(cache.Restride(stride()));
  FillInputs(ids, cache);
  std::map<std::string, ort::TensorView> inputs = {
      {"input_ids", {DType::kInt32, {1, ar_}, ids_.data()}}};
  for (Input& step : steps_) inputs[step.io.name] = View(step);
  for (size_t i = 0; i < cache_in_.size(); ++i) {
    const int64_t layer = static_cast<int64_t>(i / 2);
    const std::span<const std::byte> bytes = i % 2 == 0 ? cache.Key(layer) : cache.Value(layer);
    inputs[cache_in_[i].name] = {cache_dtype_, cache_in_[i].shape, bytes.data()};
  }
  HEXPORT_ASSIGN_OR_RETURN(std::vector<ort::Tensor> outputs, session_->Run(inputs, output_names_));
  HEXPORT_RETURN_IF_ERROR(TakeLogits(outputs[0], count, all_rows, logits));
  return Store(outputs, count, cache);
}

Status GraphRunner::Store(const std::vector<ort::Tensor>& outputs, int64_t count,
                          KvCache& cache) const {
  const int64_t largest = facts_.context_length - 1;
  const int64_t kept = std::min(count, largest - cache.length());
  // This graph's stride may be too short for what it returned
  if (cache.length() + kept > cache.stride()) HEXPORT_RETURN_IF_ERROR(cache.Restride(largest));
  for (int64_t layer = 0; layer < facts_.model.num_hidden_layers; ++layer) {
    const ort::Tensor &key = outputs[Size(1 + 2 * layer)], &value = outputs[Size(2 + 2 * layer)];
    HEXPORT_RETURN_IF_ERROR(cache.Append(layer, key.bytes, value.bytes, ar_, kept));
  }
  cache.Advance(kept);
  return OkStatus();
}

Status GraphRunner::TakeLogits(const ort::Tensor& tensor, int64_t count, bool all_rows,
                               std::vector<float>& out) const {
  if (tensor.shape != logits_.shape) {
    return FailedPrecondition("logits: expected shape " + ShapeString(logits_.shape) + ", got " +
                              ShapeString(tensor.shape));
  }
  const size_t vocab = Size(facts_.model.vocab_size);
  const size_t begin = all_rows ? 0 : Size(count - 1) * vocab, end = Size(count) * vocab;
  out.resize(end - begin);
  const auto convert = [&](const auto* codes) {
    std::transform(codes + begin, codes + end, out.begin(),
                   [&](auto code) { return ToReal(static_cast<double>(code), logits_); });
  };
  if (tensor.dtype == DType::kFloat32) {
    const float* values = tensor.as<float>().data();
    std::copy(values + begin, values + end, out.begin());
  } else if (tensor.dtype == DType::kUInt16) {
    convert(tensor.as<uint16_t>().data());
  } else if (tensor.dtype == DType::kUInt8) {
    convert(tensor.as<uint8_t>().data());
  } else {
    return FailedPrecondition("logits: expected float32, uint16 or uint8, got " +
                              std::string(DTypeName(tensor.dtype)));
  }
  return OkStatus();
}

}  // namespace hexport::runtime
