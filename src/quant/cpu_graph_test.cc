#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "base/status_matchers.h"
#include "quant/linear_fixture.h"
#include "quant/qdq.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::StatusIs;
using ::testing::HasSubstr;

// Format and in_features. 40 is divided by no block of MatMulNBits; 96 by 32; 256 by 128.
class CpuLinearTest : public ::testing::TestWithParam<std::tuple<WeightFormat, int64_t>> {};

TEST_P(CpuLinearTest, MatMulNBitsEqualsTheDequantizedWeights) {
  const auto [format, in] = GetParam();
  const LinearFixture fixture(in, 24, {format, 16});
  ASSERT_NE(fixture.store, nullptr);
  const Result<graph::Graph> graph = BuildCpu(fixture.decoder, *fixture.store);
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  ASSERT_EQ(graph->nodes.front().op_type, "MatMulNBits");
  const std::vector<float> y = RunGraph<float, float>(*graph, DType::kFloat32, fixture.x);
  const std::vector<float> expected = fixture.Expected();
  ASSERT_EQ(y.size(), expected.size());
  // |y| is about sqrt(in) * 0.2 < 4; float32 sums of 256 terms are good to 1e-5.
  for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 1e-4) << i;
}

TEST_P(CpuLinearTest, Int8ActivationsStayCloseWithTheSameWeights) {
  const auto [format, in] = GetParam();
  const LinearFixture fixture(in, 24, {format, 16});
  ASSERT_NE(fixture.store, nullptr);
  const Result<graph::Graph> graph =
      BuildCpu(fixture.decoder, *fixture.store, {.int8_activations = true});
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  const std::vector<float> y = RunGraph<float, float>(*graph, DType::kFloat32, fixture.x);
  const std::vector<float> expected = fixture.Expected();
  ASSERT_EQ(y.size(), expected.size());
  // Inputs are rounded by at most 3.5 / 254; errors of `in` products of weights of 0.2 add up as
  // sqrt(in) * 0.2 * 0.008 < 0.03; four of those.
  for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 0.12) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Formats, CpuLinearTest,
    ::testing::Combine(::testing::Values(WeightFormat::kInt8, WeightFormat::kInt4,
                                         WeightFormat::kLpbq),
                       ::testing::Values(int64_t{40}, int64_t{96}, int64_t{256})));

TEST(CpuGraphTest, EmbeddingRowsAreTheTablesCodes) {
  FakeCheckpoint checkpoint;
  checkpoint.mutable_config().vocab_size = 6;
  checkpoint.mutable_config().hidden_size = 4;
  const std::vector<float> table = RandomValues(24, 3, 1.0f);
  checkpoint.Add("model.embed_tokens.weight", {6, 4}, table);
  decoder::DecoderGraph decoder;
  decoder.embedding = "table";
  decoder.graph.name = "embedding";
  decoder.graph.inputs = {{"input_ids", DType::kInt32, {1, 3}, {}}};
  decoder.graph.outputs = {{"x", DType::kFloat32, {1, 3, 4}, {}}};
  decoder.graph.nodes = {
      {"Gather", "", "x", {"table", "input_ids"}, {"x"}, {{"axis", int64_t{0}}}}};
  decoder.graph.initializers = {{"table", DType::kFloat32, {6, 4}, {}}};
  const std::filesystem::path path =
      std::filesystem::path(::testing::TempDir()) /
      ("hexport_embedding_" + std::to_string(getpid()) + ".safetensors");
  ASSERT_THAT(QuantizeWeights(checkpoint, decoder, {}, path, NullProgress()),
              ::hexport::testing::IsOk());
  const Result<std::unique_ptr<WeightStore>> store = WeightStore::Open(path);
  ASSERT_TRUE(store.ok());
  const Result<Encoding> encoding = (*store)->EmbeddingEncoding("table");
  ASSERT_TRUE(encoding.ok());

  const Result<graph::Graph> graph = BuildCpu(decoder, **store);
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  const std::vector<int32_t> ids = {5, 0, 2};
  const std::vector<float> x = RunGraph<int32_t, float>(*graph, DType::kInt32, ids);
  ASSERT_EQ(x.size(), 12u);
  for (size_t i = 0; i < x.size(); ++i) {
    const float original = table[static_cast<size_t>(ids[i / 4]) * 4 + i % 4];
    EXPECT_NEAR(x[i], original, encoding->scale * 0.51f) << i;
  }
  std::filesystem::remove(path);
}

TEST(CpuGraphTest, WeightThatTheStoreLacksIsNamed) {
  LinearFixture fixture(32, 8, {});
  ASSERT_NE(fixture.store, nullptr);
  fixture.decoder.linears[0].name = "other";
  fixture.decoder.graph.nodes[0].inputs[1] = "other";
  fixture.decoder.graph.initializers[0].name = "other";
  EXPECT_THAT(BuildCpu(fixture.decoder, *fixture.store),
              StatusIs(StatusCode::kNotFound, HasSubstr("other")));
}

}  // namespace
}  // namespace hexport::quant
