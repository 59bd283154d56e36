// One linear layer as a graph, its quantized store and its input; tests only.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/progress.h"
#include "graph/onnx_io.h"
#include "ort/session.h"
#include "quant/fake_checkpoint.h"
#include "quant/weights.h"

namespace hexport::quant {

struct LinearFixture {
  static constexpr int64_t kTokens = 5;
  int64_t in = 0, out = 0;
  FakeCheckpoint checkpoint;
  decoder::DecoderGraph decoder;
  std::unique_ptr<WeightStore> store;
  std::vector<float> x;

  LinearFixture(int64_t in_features, int64_t out_features, const WeightOptions& options)
      : in(in_features), out(out_features), x(RandomValues(kTokens * in_features, 7, 1.0f)) {
    checkpoint.Add("linear", {out, in}, RandomValues(in * out, 8, 0.2f));
    graph::Graph& graph = decoder.graph;
    graph.name = "linear";
    graph.inputs = {{"x", DType::kFloat32, {1, kTokens, in}, {}}};
    graph.outputs = {{"y", DType::kFloat32, {1, kTokens, out}, {}}};
    graph.nodes = {{"MatMul", "", "y", {"x", "w"}, {"y"}, {}}};
    graph.initializers = {{"w", DType::kFloat32, {in, out}, {}}};
    decoder.linears = {{"w", "linear", in, out, 1.0, false, 0}};
    const std::filesystem::path path =
        std::filesystem::path(::testing::TempDir()) /
        ("hexport_linear_" + std::to_string(getpid()) + ".safetensors");
    const Status written = QuantizeWeights(checkpoint, decoder, options, path, NullProgress());
    EXPECT_TRUE(written.ok()) << written.ToString();
    Result<std::unique_ptr<WeightStore>> opened = WeightStore::Open(path);
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    if (opened.ok()) store = *std::move(opened);
    std::filesystem::remove(path);  // the mapping stays
  }

  // x times the dequantized weights, in double.
  std::vector<float> Expected() const {
    const Result<QuantizedWeight> weight = store->Read("w");
    EXPECT_TRUE(weight.ok()) << weight.status().ToString();
    const std::vector<float> w = Dequantize(*weight);
    std::vector<float> y(static_cast<size_t>(kTokens * out));
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t n = 0; n < out; ++n) {
        double sum = 0.0;
        for (int64_t k = 0; k < in; ++k) {
          sum += static_cast<double>(x[static_cast<size_t>(t * in + k)]) *
                 static_cast<double>(w[static_cast<size_t>(k * out + n)]);
        }
        y[static_cast<size_t>(t * out + n)] = static_cast<float>(sum);
      }
    }
    return y;
  }
};

// Runs a graph with one input and one output on ONNX Runtime's CPU; empty after a failure.
template <typename In, typename Out>
std::vector<Out> RunGraph(const graph::Graph& graph, DType dtype, const std::vector<In>& input) {
  const Result<std::string> bytes = graph::SerializeOnnx(graph);
  EXPECT_TRUE(bytes.ok()) << bytes.status().ToString();
  if (!bytes.ok()) return {};
  ort::SessionOptions options;
  options.exact_qdq = true;
  const Result<std::unique_ptr<ort::Session>> session =
      ort::Session::CreateFromBytes(*bytes, options);
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  if (!session.ok()) return {};
  const graph::ValueInfo& info = graph.inputs.front();
  const Result<std::vector<ort::Tensor>> outputs =
      (*session)->Run({{info.name, {dtype, info.shape, input.data()}}}, {});
  EXPECT_TRUE(outputs.ok()) << outputs.status().ToString();
  if (!outputs.ok()) return {};
  const std::span<const Out> values = outputs->front().as<Out>();
  return {values.begin(), values.end()};
}

}  // namespace hexport::quant
