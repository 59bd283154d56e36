// The QDQ graph under configs: widths, caches and float16 islands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "quant/qdq.h"
#include "quant/tiny_model.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class QdqConfigTest : public ::testing::Test {
 protected:
  QdqConfigTest() : model_("qwen2"), graph_(model_.Graph({.ar = 4, .cl = 16})) {}
  QdqGraph Build(const QuantConfig& config) {
    Result<QdqGraph> qdq = BuildQdq(graph_, model_.ranges, *model_.store, {config});
    EXPECT_TRUE(qdq.ok()) << qdq.status().ToString();
    if (!qdq.ok()) return {};
    EXPECT_THAT(graph::CheckGraph(qdq->graph), IsOk());
    return *std::move(qdq);
  }
  static const graph::Node* Maker(const graph::Graph& graph, const std::string& value) {
    for (const graph::Node& node : graph.nodes) {
      for (const std::string& output : node.outputs) {
        if (output == value) return &node;
      }
    }
    return nullptr;
  }
  // Bits of what a node reads from a DequantizeLinear.
  static int BitsOf(const graph::Graph& graph, const std::string& value) {
    const graph::Node* node = Maker(graph, value);
    if (node == nullptr || node->op_type != "DequantizeLinear") return 0;
    return graph.FindInitializer(node->inputs[2])->dtype == DType::kUInt8 ? 8 : 16;
  }
  static const graph::Node* Quantizer(const graph::Graph& graph, const std::string& value) {
    for (const graph::Node& node : graph.nodes) {
      if (node.op_type == "QuantizeLinear" && node.inputs[0] == value) return &node;
    }
    return nullptr;
  }

  TinyModel model_;
  decoder::DecoderGraph graph_;
};

// Case Q14: a cache that is written with one scale and read with another drifts with every token.
TEST_F(QdqConfigTest, Q14CacheInAndOutShareOneEncodingAndDoNotDrift) {
  for (const int bits : {8, 16}) {
    QuantConfig config;
    config.kv_bits = bits;
    const QdqGraph qdq = Build(config);
    for (const std::string kind : {"key", "value"}) {
      for (const std::string layer : {"0", "1"}) {
        const std::string past = "past_" + kind + "_" + layer;
        const Encoding in = qdq.io.at(past + "_in"), out = qdq.io.at(past + "_out");
        EXPECT_EQ(in.scale, out.scale) << past;
        EXPECT_EQ(in.zero_point, out.zero_point) << past;
        EXPECT_EQ(in.bits, bits) << past;
        EXPECT_EQ(in.zero_point, 1 << (bits - 1)) << past;
        std::vector<uint16_t> codes(size_t{1} << bits);
        for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
        const std::vector<uint16_t> first = codes;
        std::vector<float> reals(codes.size());
        for (int step = 0; step < 64; ++step) {
          for (size_t i = 0; i < codes.size(); ++i)
            reals[i] = static_cast<float>(codes[i] - in.zero_point) * in.scale;
          QuantizeValues(reals, out, codes);
        }
        EXPECT_EQ(codes, first) << past;
      }
    }
    EXPECT_EQ(qdq.graph.FindInput("past_key_0_in")->dtype,
              bits == 8 ? DType::kUInt8 : DType::kUInt16);
  }
}

TEST_F(QdqConfigTest, EightBitLinearsReadAndWriteEightBits) {
  QuantConfig config;
  config.activation_bits = 8;
  const QdqGraph qdq = Build(config);
  int linears = 0;
  for (const graph::Node& node : qdq.graph.nodes) {
    if (node.op_type != "MatMul" || !node.inputs[1].ends_with(".weight.dq")) continue;
    ++linears;
    const int expected = node.name == "logits" ? 16 : 8;
    EXPECT_EQ(BitsOf(qdq.graph, node.inputs[0]), expected) << node.name;
    const graph::Node* quantizer = Quantizer(qdq.graph, node.outputs[0]);
    ASSERT_NE(quantizer, nullptr) << node.name;
    EXPECT_EQ(qdq.graph.FindInitializer(quantizer->inputs[2])->dtype,
              expected == 8 ? DType::kUInt8 : DType::kUInt16)
        << node.name;
  }
  EXPECT_EQ(linears, 2 * 7 + 1);
  EXPECT_EQ(qdq.graph.FindOutput("logits")->dtype, DType::kUInt16);
  EXPECT_EQ(qdq.activations.at("layers.1.input").bits, 16) << "the residual stays wide";
  EXPECT_EQ(qdq.activations.at("layers.1.input_layernorm").bits, 8);
}

TEST_F(QdqConfigTest, ARuleNarrowsOneActivation) {
  QuantConfig config;
  config.activations = {{"layers.0.mlp.gated", 8, false}, {"layers.1.mlp.silu", 8, false}};
  const QdqGraph qdq = Build(config);
  EXPECT_EQ(BitsOf(qdq.graph, Maker(qdq.graph, "layers.0.mlp.down_proj.float")->inputs[0]), 8);
  EXPECT_EQ(BitsOf(qdq.graph, Maker(qdq.graph, "layers.1.mlp.down_proj.float")->inputs[0]), 16);
  // A reader that is no linear gets 16 bits, after 8.
  EXPECT_EQ(BitsOf(qdq.graph, Maker(qdq.graph, "layers.1.mlp.gated.float")->inputs[0]), 16);
  EXPECT_EQ(qdq.activations.at("layers.1.mlp.silu").bits, 8);
}

TEST_F(QdqConfigTest, ARuleKeepsOneLinearWide) {
  QuantConfig config;
  config.activation_bits = 8;
  config.activations = {{"layers.0.mlp.gated", 16, false}};
  const QdqGraph qdq = Build(config);
  EXPECT_EQ(BitsOf(qdq.graph, Maker(qdq.graph, "layers.0.mlp.down_proj.float")->inputs[0]), 16);
  EXPECT_EQ(BitsOf(qdq.graph, Maker(qdq.graph, "layers.1.mlp.down_proj.float")->inputs[0]), 8);
}

TEST_F(QdqConfigTest, NormAndSoftmaxIslandsAreBetweenCasts) {
  QuantConfig config;
  config.float16 = {"norm", "softmax"};
  const QdqGraph qdq = Build(config);
  int islands = 0;
  for (const graph::Node& node : qdq.graph.nodes) {
    if (node.op_type != "RMSNormalization" && node.op_type != "Softmax") continue;
    ++islands;
    for (const std::string& input : node.inputs)
      EXPECT_EQ(Maker(qdq.graph, input)->op_type, "Cast") << node.name;
  }
  EXPECT_EQ(islands, 2 * 3 + 1);
}

TEST_F(QdqConfigTest, Float16BeforeALinearIsRefusedWithTheCompilersReason) {
  QuantConfig config;
  config.float16 = {"layers.0.mlp.gated"};
  EXPECT_THAT(BuildQdq(graph_, model_.ranges, *model_.store, {config}),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("layers.0.mlp.gated"), HasSubstr("standalone DQ op"))));
  config.float16 = {"past_key_0_out"};
  EXPECT_THAT(BuildQdq(graph_, model_.ranges, *model_.store, {config}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("past_key_0_in")));
}

}  // namespace
}  // namespace hexport::quant
