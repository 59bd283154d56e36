#include "quant/part_runner.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "graph/onnx_io.h"
#include "quant/activation_groups.h"
#include "quant/calibrate.h"

namespace hexport::quant {
namespace {

using decoder::DecoderGraph;
using graph::Graph;
using graph::Node;
using graph::ValueInfo;
using Scores = ActivationView::Scores;

// Columns of the output projection held at a time.
constexpr int64_t kVocabularyPiece = 8192;

struct FoundScores {
  Scores kind = Scores::kNone;
  bool windowed = false;
};

// Names of attention scores: what a Softmax reads, and from there back to the MatMul.
std::map<std::string, FoundScores> FindScores(const Graph& graph) {
  std::map<std::string, const Node*> producers;
  for (const Node& node : graph.nodes) {
    for (const std::string& output : node.outputs) producers[output] = &node;
  }
  std::map<std::string, FoundScores> scores;
  for (const Node& softmax : graph.nodes) {
    if (softmax.op_type != "Softmax") continue;
    const auto add = producers.find(softmax.inputs[0]);
    if (add == producers.end() || add->second->op_type != "Add") continue;
    const std::vector<std::string>& terms = add->second->inputs;
    const auto mask = std::find_if(terms.begin(), terms.end(), [](const std::string& term) {
      return term.ends_with("attention_mask");
    });
    if (mask == terms.end()) continue;
    const bool windowed = *mask == "sliding_attention_mask";
    scores[softmax.inputs[0]] = {Scores::kMasked, windowed};
    std::string value = mask == terms.begin() ? terms[1] : terms[0];
    while (producers.contains(value)) {
      scores[value] = {Scores::kUnmasked, windowed};
      const Node& node = *producers[value];
      if (node.op_type != "Reshape") break;
      value = node.inputs[0];
    }
  }
  return scores;
}

Result<std::unique_ptr<ort::Session>> OpenSession(const Graph& graph, bool quantized) {
  HEXPORT_ASSIGN_OR_RETURN(std::string bytes, graph::SerializeOnnx(graph));
  ort::SessionOptions options;
  options.prepack = false;
  options.spin = false;
  options.exact_qdq = quantized;
  return ort::Session::CreateFromBytes(bytes, options);
}

// What layers and the head have in common.
class Part : public PartRunner {
 public:
  Part(const Checkpoint& checkpoint, const PartOptions& options)
      : checkpoint_(checkpoint), config_(checkpoint.config()), options_(options) {}

 protected:
  Status Build(int64_t first_layer, int64_t last_layer, bool head) {
    decoder::DecoderOptions options;
    options.first_layer = first_layer;
    options.last_layer = last_layer;
    options.embedding = false;
    options.head = head;
    options.context_length = options_.context_length;
    HEXPORT_ASSIGN_OR_RETURN(decoder_, decoder::BuildDecoder(checkpoint_, options));
    if (options_.amend && !head) HEXPORT_RETURN_IF_ERROR(options_.amend(decoder_));
    for (const decoder::Activation& activation : decoder_.activations)
      full_names_[activation.value.name] = activation.name;
    scores_ = FindScores(decoder_.graph);
    graph_ = decoder_.graph;
    if (options_.quantized != nullptr) HEXPORT_RETURN_IF_ERROR(Quantize(head));
    if (options_.every_activation) ExposeActivations();
    return OkStatus();
  }

  Result<std::vector<ort::Tensor>> RunGraph(ort::Session& session, std::span<const float> hidden,
                                            std::map<std::string, ort::TensorView> inputs,
                                            const std::vector<std::string>& names) {
    const int64_t tokens = static_cast<int64_t>(hidden.size()) / config_.hidden_size;
    const int64_t context = options_.context_length > 0 ? options_.context_length : tokens;
    const decoder::StepInputs step{config_, tokens, tokens, 0, tokens, context, kMaskFloor};
    const float empty = 0.0f;
    std::map<std::string, std::vector<float>> surroundings;
    for (const ValueInfo& input : graph_.inputs) {
      if (inputs.contains(input.name)) continue;
      ort::TensorView& view = inputs[input.name];
      if (input.name == "hidden_in") {
        view = {DType::kFloat32, {1, tokens, config_.hidden_size}, hidden.data()};
      } else if (auto values = decoder::StepInput(step, input.name); values.has_value()) {
        const std::vector<float>& kept = surroundings[input.name] = *std::move(values);
        const auto columns = static_cast<int64_t>(kept.size()) / tokens;
        view = {DType::kFloat32, {1, 1, tokens, columns}, kept.data()};
      } else {
        const bool key = input.name.starts_with("past_key");
        const int64_t heads = config_.num_key_value_heads;
        view = {DType::kFloat32,
                {heads, 1, key ? config_.head_dim : 0, key ? 0 : config_.head_dim},
                &empty};
      }
    }
    return session.Run(inputs, names);
  }

  ActivationView View(size_t sample, const std::string& name, const ort::Tensor& tensor) const {
    ActivationView view;
    view.sample = sample;
    view.name = FullName(name);
    view.values = tensor.as<float>();
    view.columns = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (const auto found = scores_.find(name); found != scores_.end()) {
      view.scores = found->second.kind;
      if (found->second.windowed) view.window = config_.sliding_window;
    }
    return view;
  }

  bool quantized() const { return options_.quantized != nullptr; }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const PartOptions options_;
  Graph graph_;                       // as it is run
  std::vector<std::string> visited_;  // activations to ask for

 private:
  // The output projection's codes are read in pieces: its weight stays what it is.
  Status Quantize(bool head) {
    FakeQuantOptions fake = options_.quantized->options;
    if (head) fake.weights = false;
    HEXPORT_ASSIGN_OR_RETURN(
        QdqGraph quantized,
        BuildFakeQuant(decoder_, options_.quantized->ranges, options_.quantized->store,
                       options_.quantized->config, fake));
    graph_ = std::move(quantized.graph);
    encodings_ = std::move(quantized.activations);
    float16_ = std::move(quantized.float16);
    return OkStatus();
  }

  // Makes every visited activation a graph output.
  void ExposeActivations() {
    std::map<std::string, const ValueInfo*> values;
    for (const decoder::Activation& activation : decoder_.activations)
      values[activation.value.name] = &activation.value;
    std::set<std::string> declared;
    for (const ValueInfo& output : graph_.outputs) declared.insert(output.name);
    for (const Node& node : decoder_.graph.nodes) {
      if (MovesData(node.op_type) || (node.op_type == "Identity" && !options_.copies)) continue;
      for (const std::string& output : node.outputs) {
        if (!values.contains(output)) continue;
        visited_.push_back(output);
        if (!declared.contains(output)) graph_.outputs.push_back(*values.at(output));
      }
    }
  }

  std::map<std::string, FoundScores> scores_;
};

class Layer final : public Part {
 public:
  using Part::Part;

  Status Open(int64_t layer) {
    HEXPORT_RETURN_IF_ERROR(Build(layer, layer + 1, /*head=*/false));
    HEXPORT_ASSIGN_OR_RETURN(session_, OpenSession(graph_, quantized()));
    names_ = visited_;
    const auto found = std::find(names_.begin(), names_.end(), "hidden_out");
    hidden_out_ = static_cast<size_t>(found - names_.begin());
    if (found == names_.end()) names_.push_back("hidden_out");
    return OkStatus();
  }

  Status Load(size_t) override { return OkStatus(); }

  Result<PartResult> Run(size_t sample, std::span<const float> hidden) override {
    PartResult out;
    HEXPORT_ASSIGN_OR_RETURN(out.tensors, RunGraph(*session_, hidden, {}, names_));
    for (size_t i = 0; i < visited_.size(); ++i)
      out.activations.push_back(View(sample, names_[i], out.tensors[i]));
    out.hidden = out.tensors[hidden_out_].as<float>();
    return out;
  }

 private:
  std::unique_ptr<ort::Session> session_;
  std::vector<std::string> names_;
  size_t hidden_out_ = 0;
};

// The output projection enters as a graph input, piece by piece.
class Head final : public Part {
 public:
  using Part::Part;

  Status Open() {
    HEXPORT_RETURN_IF_ERROR(
        Build(config_.num_hidden_layers, config_.num_hidden_layers, /*head=*/true));
    if (decoder_.linears.size() != 1)
      return Internal("head graph: expected one linear, got another number");
    const decoder::LinearWeight& linear = decoder_.linears.front();
    std::erase_if(graph_.initializers,
                  [&](const graph::Initializer& i) { return i.name == linear.name; });
    graph_.inputs.push_back(
        {linear.name, DType::kFloat32, {linear.in_features, kDynamicDim}, {"", "piece"}});
    for (ValueInfo& output : graph_.outputs) {
      if (output.name == "logits") output.shape.back() = kDynamicDim;
      if (output.name == "logits") output.symbols = {"", "", "piece"};
    }
    HEXPORT_ASSIGN_OR_RETURN(session_, OpenSession(graph_, quantized()));
    return OkStatus();
  }

  size_t pieces() const override {
    const int64_t columns = decoder_.linears.front().out_features;
    return static_cast<size_t>((columns + kVocabularyPiece - 1) / kVocabularyPiece);
  }

  Status Load(size_t piece) override {
    first_ = static_cast<int64_t>(piece) * kVocabularyPiece;
    count_ = std::min(kVocabularyPiece, decoder_.linears.front().out_features - first_);
    return ReadColumns();
  }

  Result<PartResult> Run(size_t sample, std::span<const float> hidden) override {
    const decoder::LinearWeight& linear = decoder_.linears.front();
    std::vector<std::string> names = {"logits"};
    if (first_ == 0) {
      std::copy_if(visited_.begin(), visited_.end(), std::back_inserter(names),
                   [](const std::string& name) { return name != "logits"; });
    }
    PartResult out;
    HEXPORT_ASSIGN_OR_RETURN(
        out.tensors,
        RunGraph(*session_, hidden,
                 {{linear.name, {DType::kFloat32, {linear.in_features, count_}, weights_.data()}}},
                 names));
    for (size_t i = 0; i < names.size(); ++i)
      out.activations.push_back(View(sample, names[i], out.tensors[i]));
    out.activations.front().first_column = first_;
    return out;
  }

 private:
  // Columns [first_, first_ + count_) of the projection in the graph's layout.
  Status ReadColumns() {
    const decoder::LinearWeight& linear = decoder_.linears.front();
    if (quantized() && options_.quantized->options.weights) return ReadQuantizedColumns(linear);
    const auto in = static_cast<size_t>(linear.in_features), columns = static_cast<size_t>(count_);
    std::vector<float> rows(in * columns);
    HEXPORT_RETURN_IF_ERROR(checkpoint_.ReadRows(linear.tensor, linear.first_row + first_, rows));
    weights_.resize(rows.size());
    for (size_t n = 0; n < columns; ++n) {
      for (size_t k = 0; k < in; ++k) {
        weights_[k * columns + n] =
            static_cast<float>(static_cast<double>(rows[n * in + k]) * linear.scale);
      }
    }
    return OkStatus();
  }

  Status ReadQuantizedColumns(const decoder::LinearWeight& linear) {
    if (codes_.codes.empty()) {
      HEXPORT_ASSIGN_OR_RETURN(codes_, options_.quantized->store.Read(linear.name));
    }
    QuantizedWeight piece;
    piece.format = codes_.format;
    piece.block_size = codes_.block_size;
    piece.in_features = codes_.in_features;
    piece.out_features = count_;
    const auto all = static_cast<size_t>(codes_.out_features);
    const auto cut = [&](const auto& from, auto& to) {
      for (size_t row = 0; row < from.size() / all; ++row) {
        const auto begin =
            from.begin() + static_cast<std::ptrdiff_t>(row * all + static_cast<size_t>(first_));
        to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(count_));
      }
    };
    cut(codes_.codes, piece.codes);
    cut(codes_.channel_scales, piece.channel_scales);
    cut(codes_.block_scales, piece.block_scales);
    weights_ = Dequantize(piece);
    return OkStatus();
  }

  std::unique_ptr<ort::Session> session_;
  QuantizedWeight codes_;  // of a quantized head
  std::vector<float> weights_;
  int64_t first_ = 0, count_ = 0;
};

}  // namespace

const std::string& PartRunner::FullName(const std::string& name) const {
  return full_names_.at(name);
}

Result<std::unique_ptr<PartRunner>> PartRunner::OpenLayer(const Checkpoint& checkpoint,
                                                          int64_t layer,
                                                          const PartOptions& options) {
  auto part = std::make_unique<Layer>(checkpoint, options);
  HEXPORT_RETURN_IF_ERROR(part->Open(layer));
  return std::unique_ptr<PartRunner>(std::move(part));
}

Result<std::unique_ptr<PartRunner>> PartRunner::OpenHead(const Checkpoint& checkpoint,
                                                         const PartOptions& options) {
  auto part = std::make_unique<Head>(checkpoint, options);
  HEXPORT_RETURN_IF_ERROR(part->Open());
  return std::unique_ptr<PartRunner>(std::move(part));
}

}  // namespace hexport::quant
