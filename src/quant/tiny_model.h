// A tiny model of tests/data, calibrated and with its weights stored; tests only.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/progress.h"
#include "decoder/decoder.h"
#include "graph/onnx_io.h"
#include "ort/session.h"
#include "quant/calibrate.h"
#include "quant/fake_checkpoint.h"
#include "quant/weights.h"

namespace hexport::quant {

struct TinyModel {
  std::unique_ptr<Checkpoint> checkpoint;
  RangeMap ranges;
  std::unique_ptr<WeightStore> store;

  explicit TinyModel(const std::string& architecture, const WeightOptions& options = {}) {
    auto opened =
        Checkpoint::Open(std::filesystem::path(HEXPORT_TEST_DATA) / "tiny" / architecture);
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    if (!opened.ok()) return;
    checkpoint = *std::move(opened);
    const std::vector<TokenIds> samples = {{1, 5, 9, 33, 2, 60, 7}, {1, 44, 12}};
    const auto calibration = Calibrate(*checkpoint, samples, NullProgress());
    EXPECT_TRUE(calibration.ok()) << calibration.status().ToString();
    if (calibration.ok()) ranges = calibration->ranges;
    const std::filesystem::path path =
        std::filesystem::path(::testing::TempDir()) /
        ("hexport_tiny_" + std::to_string(getpid()) + ".safetensors");
    const Status written = QuantizeWeights(*checkpoint, Graph({}), options, path, NullProgress());
    EXPECT_TRUE(written.ok()) << written.ToString();
    auto read = WeightStore::Open(path);
    EXPECT_TRUE(read.ok()) << read.status().ToString();
    if (read.ok()) store = *std::move(read);
    std::filesystem::remove(path);  // the mapping stays
  }

  decoder::DecoderGraph Graph(const decoder::DecoderOptions& options) const {
    auto graph = decoder::BuildDecoder(*checkpoint, options);
    EXPECT_TRUE(graph.ok()) << graph.status().ToString();
    return graph.ok() ? *std::move(graph) : decoder::DecoderGraph();
  }
  decoder::DecoderGraph Layer(int64_t layer) const {
    decoder::DecoderOptions options;
    options.first_layer = layer;
    options.last_layer = layer + 1;
    options.embedding = options.head = false;
    return Graph(options);
  }

  // Runs a dynamic graph made from `layer` on `hidden` [tokens, hidden_size] without past; the
  // float values of `names`, which may be any values of the graph, or "<activation>.dq".
  std::map<std::string, std::vector<float>> Run(const decoder::DecoderGraph& layer,
                                                graph::Graph graph,
                                                const std::vector<float>& hidden,
                                                const std::vector<std::string>& names) const {
    const ModelConfig& config = checkpoint->config();
    const int64_t tokens = static_cast<int64_t>(hidden.size()) / config.hidden_size;
    for (const std::string& name : names) {
      if (graph.FindOutput(name) != nullptr) continue;
      for (const decoder::Activation& activation : layer.activations) {
        if (name != activation.value.name && name != activation.value.name + ".dq") continue;
        graph.outputs.push_back(activation.value);
        graph.outputs.back().name = name;
      }
    }
    const auto bytes = graph::SerializeOnnx(graph);
    EXPECT_TRUE(bytes.ok()) << bytes.status().ToString();
    if (!bytes.ok()) return {};
    ort::SessionOptions options;
    options.exact_qdq = true;
    const auto session = ort::Session::CreateFromBytes(*bytes, options);
    EXPECT_TRUE(session.ok()) << session.status().ToString();
    if (!session.ok()) return {};
    const decoder::StepInputs step{config, tokens, tokens, 0, tokens, tokens, kMaskFloor};
    std::map<std::string, std::vector<float>> values;
    std::map<std::string, ort::TensorView> inputs;
    const float nothing = 0.0f;
    const int64_t heads = config.num_key_value_heads, dim = config.head_dim;
    for (const graph::ValueInfo& input : graph.inputs) {
      ort::TensorView view{DType::kFloat32, {heads, 1, 0, dim}, &nothing};
      if (input.name.starts_with("past_key")) view.shape = {heads, 1, dim, 0};
      if (input.name == "hidden_in")
        view = {DType::kFloat32, {1, tokens, config.hidden_size}, hidden.data()};
      if (auto value = decoder::StepInput(step, input.name); value.has_value()) {
        values[input.name] = *std::move(value);
        const auto columns = static_cast<int64_t>(values[input.name].size()) / tokens;
        view = {DType::kFloat32, {1, 1, tokens, columns}, values[input.name].data()};
      }
      inputs[input.name] = view;
    }
    const auto tensors = (*session)->Run(inputs, names);
    EXPECT_TRUE(tensors.ok()) << tensors.status().ToString();
    std::map<std::string, std::vector<float>> out;
    for (size_t i = 0; tensors.ok() && i < names.size(); ++i) {
      const auto floats = (*tensors)[i].as<float>();
      out[names[i]].assign(floats.begin(), floats.end());
    }
    return out;
  }
};

// The largest difference, as a share of the largest of `expected`.
inline double RelativeDifference(const std::vector<float>& got,
                                 const std::vector<float>& expected) {
  EXPECT_EQ(got.size(), expected.size());
  EXPECT_FALSE(expected.empty());
  double most = 0.0, largest = 0.0;
  for (size_t i = 0; i < expected.size() && i < got.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i])));
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  return most / largest;
}

}  // namespace hexport::quant
