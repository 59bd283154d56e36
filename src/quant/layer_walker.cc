#include "quant/layer_walker.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "decoder/decoder.h"
#include "graph/graph.h"
#include "graph/onnx_io.h"
#include "ort/session.h"
#include "quant/activation_groups.h"
#include "quant/calibrate.h"

namespace hexport::quant {
namespace {

using decoder::DecoderGraph;
using graph::Graph;
using graph::Node;
using graph::ValueInfo;
using Samples = std::vector<std::vector<int32_t>>;
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

// A part of the decoder as it is run.
struct Part {
  DecoderGraph decoder;
  std::map<std::string, std::string> full_names;  // of activations, in the whole graph
  std::vector<std::string> visited;               // activations to ask for
  std::map<std::string, FoundScores> scores;
};

// Makes every visited activation a graph output.
void ExposeActivations(Part& part) {
  Graph& graph = part.decoder.graph;
  std::map<std::string, const ValueInfo*> values;
  for (const decoder::Activation& activation : part.decoder.activations) {
    values[activation.value.name] = &activation.value;
    part.full_names[activation.value.name] = activation.name;
  }
  std::set<std::string> declared;
  for (const ValueInfo& output : graph.outputs) declared.insert(output.name);
  for (const Node& node : graph.nodes) {
    if (MovesData(node.op_type) || node.op_type == "Identity") continue;
    for (const std::string& output : node.outputs) {
      if (!values.contains(output)) continue;  // codes, weights
      part.visited.push_back(output);
      if (!declared.contains(output)) graph.outputs.push_back(*values.at(output));
    }
  }
}

Result<std::unique_ptr<ort::Session>> OpenSession(const Graph& graph, bool quantized) {
  HEXPORT_ASSIGN_OR_RETURN(std::string bytes, graph::SerializeOnnx(graph));
  ort::SessionOptions options;
  options.prepack = false;
  options.exact_qdq = quantized;
  return ort::Session::CreateFromBytes(bytes, options);
}

// Inputs of a part that depend on the sample's length alone.
struct Surroundings {
  std::map<std::string, std::vector<float>> values;
  float empty = 0.0f;  // what a view of no elements points at
};

class Walk {
 public:
  Walk(const Checkpoint& checkpoint, const Samples& samples, const WalkOptions& options,
       const ActivationVisitor& visit, Progress& progress)
      : checkpoint_(checkpoint),
        config_(checkpoint.config()),
        samples_(samples),
        options_(options),
        visit_(visit),
        progress_(progress) {}

  Status Run() {
    HEXPORT_RETURN_IF_ERROR(CheckSamples(samples_, config_.vocab_size));
    HEXPORT_RETURN_IF_ERROR(Embed());
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      progress_.Update(options_.stage, layer, config_.num_hidden_layers + 1);
      HEXPORT_RETURN_IF_ERROR(RunLayer(layer).WithContext("layer " + std::to_string(layer)));
    }
    progress_.Update(options_.stage, config_.num_hidden_layers, config_.num_hidden_layers + 1);
    if (options_.head) HEXPORT_RETURN_IF_ERROR(RunHead().WithContext("output projection"));
    progress_.Update(options_.stage, config_.num_hidden_layers + 1, config_.num_hidden_layers + 1);
    return OkStatus();
  }

 private:
  Status Embed() {
    const std::string name = decoder::ResidualName(config_, 0);
    for (size_t s = 0; s < samples_.size(); ++s) {
      HEXPORT_ASSIGN_OR_RETURN(std::vector<float> embedded, EmbedSample(checkpoint_, samples_[s]));
      const std::vector<float>& hidden = hidden_.emplace_back(std::move(embedded));
      if (options_.every_activation) {
        HEXPORT_RETURN_IF_ERROR(
            visit_({s, name, hidden, config_.hidden_size, Scores::kNone, 0, 0}));
      }
    }
    return OkStatus();
  }

  Result<Part> MakePart(int64_t first_layer, int64_t last_layer, bool head) {
    decoder::DecoderOptions options;
    options.first_layer = first_layer;
    options.last_layer = last_layer;
    options.embedding = false;
    options.head = head;
    options.context_length = options_.context_length;
    Part part;
    HEXPORT_ASSIGN_OR_RETURN(part.decoder, decoder::BuildDecoder(checkpoint_, options));
    if (options_.amend && first_layer < last_layer)
      HEXPORT_RETURN_IF_ERROR(options_.amend(part.decoder));
    part.scores = FindScores(part.decoder.graph);
    if (options_.quantized != nullptr) HEXPORT_RETURN_IF_ERROR(QuantizePart(head, part));
    if (options_.every_activation) ExposeActivations(part);
    return part;
  }

  // The output projection's codes are read in pieces: its weight stays what it is.
  Status QuantizePart(bool head, Part& part) {
    FakeQuantOptions fake = options_.quantized->options;
    if (head) fake.weights = false;
    HEXPORT_ASSIGN_OR_RETURN(
        part.decoder.graph,
        BuildFakeQuant(part.decoder, options_.quantized->ranges, options_.quantized->store,
                       options_.quantized->config, fake));
    return OkStatus();
  }

  Surroundings SurroundingsOf(const Graph& graph, size_t sample) const {
    const auto tokens = static_cast<int64_t>(samples_[sample].size());
    const int64_t context = options_.context_length > 0 ? options_.context_length : tokens;
    const decoder::StepInputs step{config_, tokens, tokens, 0, tokens, context, kMaskFloor};
    Surroundings out;
    for (const ValueInfo& input : graph.inputs) {
      if (auto values = decoder::StepInput(step, input.name); values.has_value())
        out.values[input.name] = *std::move(values);
    }
    return out;
  }

  std::map<std::string, ort::TensorView> InputsOf(const Graph& graph, size_t sample,
                                                  const Surroundings& around) {
    const int64_t tokens = static_cast<int64_t>(samples_[sample].size());
    std::map<std::string, ort::TensorView> inputs;
    for (const ValueInfo& input : graph.inputs) {
      ort::TensorView& view = inputs[input.name];
      if (input.name == "hidden_in") {
        view = {DType::kFloat32, {1, tokens, config_.hidden_size}, hidden_[sample].data()};
      } else if (const auto step = around.values.find(input.name); step != around.values.end()) {
        const auto columns = static_cast<int64_t>(step->second.size()) / tokens;
        view = {DType::kFloat32, {1, 1, tokens, columns}, step->second.data()};
      } else {
        const bool key = input.name.starts_with("past_key");
        const int64_t heads = config_.num_key_value_heads;
        view = {DType::kFloat32,
                {heads, 1, key ? config_.head_dim : 0, key ? 0 : config_.head_dim},
                &around.empty};
      }
    }
    return inputs;
  }

  Status Visit(const Part& part, size_t sample, const std::string& name,
               const ort::Tensor& tensor) {
    ActivationView view;
    view.sample = sample;
    view.name = part.full_names.at(name);
    view.values = tensor.as<float>();
    view.columns = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (const auto found = part.scores.find(name); found != part.scores.end()) {
      view.scores = found->second.kind;
      if (found->second.windowed) view.window = config_.sliding_window;
    }
    return visit_(view);
  }

  Status RunLayer(int64_t layer) {
    HEXPORT_ASSIGN_OR_RETURN(const Part part, MakePart(layer, layer + 1, /*head=*/false));
    HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<ort::Session> session,
                             OpenSession(part.decoder.graph, options_.quantized != nullptr));
    std::vector<std::string> names = part.visited;
    const auto hidden_out = std::find(names.begin(), names.end(), "hidden_out");
    const size_t hidden_index = static_cast<size_t>(hidden_out - names.begin());
    if (hidden_out == names.end()) names.push_back("hidden_out");
    for (size_t s = 0; s < samples_.size(); ++s) {
      const Surroundings around = SurroundingsOf(part.decoder.graph, s);
      HEXPORT_ASSIGN_OR_RETURN(const std::vector<ort::Tensor> tensors,
                               session->Run(InputsOf(part.decoder.graph, s, around), names));
      for (size_t i = 0; i < part.visited.size(); ++i) {
        HEXPORT_RETURN_IF_ERROR(Visit(part, s, names[i], tensors[i]));
      }
      const std::span<const float> hidden = tensors[hidden_index].as<float>();
      hidden_[s].assign(hidden.begin(), hidden.end());
    }
    return OkStatus();
  }

  // The output projection is as large as the vocabulary: it enters as a graph input, piece by
  // piece.
  Status RunHead() {
    HEXPORT_ASSIGN_OR_RETURN(Part part,
                             MakePart(config_.num_hidden_layers, config_.num_hidden_layers, true));
    Graph& graph = part.decoder.graph;
    if (part.decoder.linears.size() != 1)
      return Internal("head graph: expected one linear, got another number");
    const decoder::LinearWeight& linear = part.decoder.linears.front();
    std::erase_if(graph.initializers,
                  [&](const graph::Initializer& i) { return i.name == linear.name; });
    graph.inputs.push_back(
        {linear.name, DType::kFloat32, {linear.in_features, kDynamicDim}, {"", "piece"}});
    for (ValueInfo& output : graph.outputs) {
      if (output.name == "logits") output.shape.back() = kDynamicDim;
      if (output.name == "logits") output.symbols = {"", "", "piece"};
    }
    HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<ort::Session> session,
                             OpenSession(graph, options_.quantized != nullptr));
    std::vector<float> weights;
    for (int64_t first = 0; first < linear.out_features; first += kVocabularyPiece) {
      const int64_t count = std::min(kVocabularyPiece, linear.out_features - first);
      HEXPORT_RETURN_IF_ERROR(ReadColumns(linear, first, count, weights));
      HEXPORT_RETURN_IF_ERROR(RunHeadPiece(part, *session, linear, first, weights));
    }
    return OkStatus();
  }

  // Columns [first, first + count) of the projection in the graph's layout.
  Status ReadColumns(const decoder::LinearWeight& linear, int64_t first, int64_t count,
                     std::vector<float>& out) {
    const size_t in = static_cast<size_t>(linear.in_features), columns = static_cast<size_t>(count);
    if (options_.quantized != nullptr && options_.quantized->options.weights)
      return ReadQuantizedColumns(linear, static_cast<size_t>(first), columns, out);
    std::vector<float> rows(in * columns);
    HEXPORT_RETURN_IF_ERROR(checkpoint_.ReadRows(linear.tensor, linear.first_row + first, rows));
    out.resize(rows.size());
    for (size_t n = 0; n < columns; ++n) {
      for (size_t k = 0; k < in; ++k) {
        out[k * columns + n] =
            static_cast<float>(static_cast<double>(rows[n * in + k]) * linear.scale);
      }
    }
    return OkStatus();
  }

  Status ReadQuantizedColumns(const decoder::LinearWeight& linear, size_t first, size_t columns,
                              std::vector<float>& out) {
    if (head_codes_.codes.empty()) {
      HEXPORT_ASSIGN_OR_RETURN(head_codes_, options_.quantized->store.Read(linear.name));
    }
    QuantizedWeight piece;
    piece.format = head_codes_.format;
    piece.block_size = head_codes_.block_size;
    piece.in_features = head_codes_.in_features;
    piece.out_features = static_cast<int64_t>(columns);
    const auto all = static_cast<size_t>(head_codes_.out_features);
    const auto cut = [&](const auto& from, auto& to) {
      for (size_t row = 0; row < from.size() / all; ++row) {
        const auto begin = from.begin() + static_cast<std::ptrdiff_t>(row * all + first);
        to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(columns));
      }
    };
    cut(head_codes_.codes, piece.codes);
    cut(head_codes_.channel_scales, piece.channel_scales);
    cut(head_codes_.block_scales, piece.block_scales);
    out = Dequantize(piece);
    return OkStatus();
  }

  Status RunHeadPiece(const Part& part, ort::Session& session, const decoder::LinearWeight& linear,
                      int64_t first, const std::vector<float>& weights) {
    const Graph& graph = part.decoder.graph;
    const int64_t count = static_cast<int64_t>(weights.size()) / linear.in_features;
    std::vector<std::string> names = {"logits"};
    if (first == 0) {
      std::copy_if(part.visited.begin(), part.visited.end(), std::back_inserter(names),
                   [](const std::string& name) { return name != "logits"; });
    }
    const Surroundings around;
    for (size_t s = 0; s < samples_.size(); ++s) {
      std::map<std::string, ort::TensorView> inputs = InputsOf(graph, s, around);
      inputs[linear.name] = {DType::kFloat32, {linear.in_features, count}, weights.data()};
      HEXPORT_ASSIGN_OR_RETURN(const std::vector<ort::Tensor> tensors, session.Run(inputs, names));
      HEXPORT_RETURN_IF_ERROR(
          visit_({s, "logits", tensors[0].as<float>(), count, Scores::kNone, first, 0}));
      for (size_t i = 1; i < names.size(); ++i)
        HEXPORT_RETURN_IF_ERROR(Visit(part, s, names[i], tensors[i]));
    }
    return OkStatus();
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const Samples& samples_;
  const WalkOptions& options_;
  const ActivationVisitor& visit_;
  Progress& progress_;
  QuantizedWeight head_codes_;              // of a quantized walk
  std::vector<std::vector<float>> hidden_;  // [tokens, hidden_size] a sample
};

}  // namespace

Status CheckSamples(const Samples& samples, int64_t vocab_size) {
  if (samples.empty()) return InvalidArgument("samples: expected at least one text, got none");
  for (size_t s = 0; s < samples.size(); ++s) {
    if (samples[s].empty())
      return InvalidArgument("sample " + std::to_string(s) + ": expected tokens, got none");
    for (const int32_t id : samples[s]) {
      if (id >= 0 && id < vocab_size) continue;
      return InvalidArgument("sample " + std::to_string(s) + ": expected ids below " +
                             std::to_string(vocab_size) + ", got " + std::to_string(id) +
                             "; use this checkpoint's own tokenizer");
    }
  }
  return OkStatus();
}

Result<std::vector<float>> EmbedSample(const Checkpoint& checkpoint,
                                       const std::vector<int32_t>& sample) {
  const auto width = static_cast<size_t>(checkpoint.config().hidden_size);
  std::vector<float> hidden(sample.size() * width);
  for (size_t t = 0; t < sample.size(); ++t) {
    HEXPORT_RETURN_IF_ERROR(decoder::ReadEmbedding(
        checkpoint, sample[t], std::span<float>(hidden).subspan(t * width, width)));
  }
  return hidden;
}

Status WalkDecoder(const Checkpoint& checkpoint, const Samples& samples, const WalkOptions& options,
                   const ActivationVisitor& visit, Progress& progress) {
  return Walk(checkpoint, samples, options, visit, progress).Run();
}

}  // namespace hexport::quant
