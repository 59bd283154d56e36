#include "decoder/decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/status_matchers.h"
#include "decoder/fake_checkpoint.h"

namespace hexport::decoder {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DecoderGraph Build(const Checkpoint& checkpoint, const DecoderOptions& options) {
  Result<DecoderGraph> built = BuildDecoder(checkpoint, options);
  EXPECT_THAT(built, IsOk());
  return built.ok() ? *std::move(built) : DecoderGraph{};
}

DecoderOptions Static(int64_t ar, int64_t cl) {
  DecoderOptions options;
  options.ar = ar;
  options.cl = cl;
  return options;
}

DecoderOptions Layers(int64_t first, int64_t last, bool embedding, bool head) {
  DecoderOptions options;
  options.first_layer = first;
  options.last_layer = last;
  options.embedding = embedding;
  options.head = head;
  return options;
}

std::vector<std::string> Describe(const std::vector<graph::ValueInfo>& values) {
  std::vector<std::string> out;
  for (const graph::ValueInfo& value : values) {
    out.push_back(value.name + " " + std::string(DTypeName(value.dtype)) + " " +
                  ShapeString(value.shape));
  }
  return out;
}

std::vector<float> ValuesOf(const graph::Graph& graph, const std::string& name) {
  const graph::Initializer* initializer = graph.FindInitializer(name);
  EXPECT_NE(initializer, nullptr) << name;
  if (initializer == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(NumElements(initializer->shape)));
  EXPECT_THAT(initializer->source(std::as_writable_bytes(std::span(values))), IsOk());
  return values;
}

std::map<std::string, const Activation*> ByName(const DecoderGraph& decoder) {
  std::map<std::string, const Activation*> found;
  for (const Activation& activation : decoder.activations) found[activation.name] = &activation;
  return found;
}

TEST(BuildDecoderTest, StaticInputsAreGenies) {
  const FakeCheckpoint checkpoint;
  const DecoderGraph decoder = Build(checkpoint, Static(3, 8));
  EXPECT_THAT(
      Describe(decoder.graph.inputs),
      ElementsAre("input_ids int32 [1, 3]", "attention_mask float32 [1, 1, 3, 8]",
                  "position_ids_cos float32 [1, 1, 3, 2]", "position_ids_sin float32 [1, 1, 3, 2]",
                  "past_key_0_in float32 [2, 1, 4, 5]", "past_value_0_in float32 [2, 1, 5, 4]",
                  "past_key_1_in float32 [2, 1, 4, 5]", "past_value_1_in float32 [2, 1, 5, 4]"));
}

TEST(BuildDecoderTest, StaticOutputsAreGenies) {
  const FakeCheckpoint checkpoint;
  const DecoderGraph decoder = Build(checkpoint, Static(3, 8));
  EXPECT_THAT(
      Describe(decoder.graph.outputs),
      ElementsAre("logits float32 [1, 3, 10]", "past_key_0_out float32 [2, 1, 4, 3]",
                  "past_value_0_out float32 [2, 1, 3, 4]", "past_key_1_out float32 [2, 1, 4, 3]",
                  "past_value_1_out float32 [2, 1, 3, 4]"));
}

TEST(BuildDecoderTest, DynamicDimensionsCarrySymbols) {
  const FakeCheckpoint checkpoint;
  const DecoderGraph decoder = Build(checkpoint, {});
  EXPECT_THAT(decoder.graph.FindInput("attention_mask")->symbols, ElementsAre("", "", "ar", "cl"));
  EXPECT_THAT(decoder.graph.FindInput("past_key_1_in")->symbols, ElementsAre("", "", "", "past"));
  EXPECT_THAT(decoder.graph.FindOutput("logits")->symbols, ElementsAre("", "ar", ""));
}

TEST(BuildDecoderTest, ActivationNamesDependNeitherOnShapesNorOnTheRange) {
  const FakeCheckpoint checkpoint;
  const auto full = Build(checkpoint, Static(3, 8));
  std::set<std::string> expected, got;
  for (const Activation& activation : full.activations) {
    EXPECT_EQ(activation.name, activation.value.name);
    expected.insert(activation.name);
  }
  EXPECT_EQ(expected.size(), full.activations.size());
  for (const DecoderOptions& part : {Layers(0, 0, true, false), Layers(0, 1, false, false),
                                     Layers(1, 2, false, false), Layers(2, 2, false, true)}) {
    for (const Activation& activation : Build(checkpoint, part).activations)
      got.insert(activation.name);
  }
  EXPECT_EQ(got, expected);
}

TEST(BuildDecoderTest, ActivationsAreAllNodeOutputsAndFloatInputs) {
  const FakeCheckpoint checkpoint;
  const DecoderGraph decoder = Build(checkpoint, Static(1, 4));
  std::vector<std::string> expected, got;
  for (const auto& input : decoder.graph.inputs) {
    if (input.dtype == DType::kFloat32) expected.push_back(input.name);
  }
  for (const auto& node : decoder.graph.nodes) {
    expected.insert(expected.end(), node.outputs.begin(), node.outputs.end());
  }
  for (const Activation& activation : decoder.activations) {
    got.push_back(activation.value.name);
    EXPECT_GT(NumElements(activation.value.shape), 0) << activation.name;
  }
  EXPECT_EQ(got, expected);
}

TEST(BuildDecoderTest, OneLayerStandsForItsResiduals) {
  const FakeCheckpoint checkpoint;
  const DecoderGraph decoder = Build(checkpoint, Layers(1, 2, false, false));
  EXPECT_EQ(decoder.graph.inputs[0].name, "hidden_in");
  EXPECT_EQ(decoder.graph.outputs[0].name, "hidden_out");
  const auto names = ByName(decoder);
  EXPECT_EQ(names.at("layers.1.input")->value.name, "hidden_in");
  EXPECT_EQ(names.at("norm.input")->value.name, "hidden_out");
  EXPECT_EQ(ResidualName(checkpoint.config(), 1), "layers.1.input");
  EXPECT_EQ(ResidualName(checkpoint.config(), 2), "norm.input");
  EXPECT_EQ(decoder.embedding, "");
}

TEST(BuildDecoderTest, HeadAloneNeedsNoMask) {
  const FakeCheckpoint checkpoint;
  const DecoderGraph decoder = Build(checkpoint, Layers(2, 2, false, true));
  EXPECT_THAT(Describe(decoder.graph.inputs), ElementsAre("hidden_in float32 [1, -1, 8]"));
  EXPECT_THAT(Describe(decoder.graph.outputs), ElementsAre("logits float32 [1, -1, 10]"));
}

TEST(BuildDecoderTest, ScaleIsFoldedIntoQueryWeightAndBias) {
  const FakeCheckpoint checkpoint;  // element i is i; 1/sqrt(4) = 0.5
  const DecoderGraph decoder = Build(checkpoint, {});
  const std::vector<float> weight = ValuesOf(decoder.graph, "layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(weight[1], 0.5f * 8);   // [in 0, out 1] <- row 1, column 0
  EXPECT_EQ(weight[16], 0.5f * 1);  // [in 1, out 0]
  EXPECT_EQ(ValuesOf(decoder.graph, "layers.0.self_attn.q_proj.bias")[3], 1.5f);
  EXPECT_EQ(ValuesOf(decoder.graph, "layers.0.self_attn.k_proj.bias")[3], 3.0f);
}

TEST(BuildDecoderTest, ScaleGoesIntoTheQueryNormWhenThereIsOne) {
  const FakeCheckpoint checkpoint(/*qk_norm=*/true);
  const DecoderGraph decoder = Build(checkpoint, {});
  EXPECT_EQ(ValuesOf(decoder.graph, "layers.1.self_attn.q_proj.weight")[1], 8.0f);
  EXPECT_THAT(ValuesOf(decoder.graph, "layers.1.self_attn.q_norm.weight"),
              ElementsAre(0.0f, 0.5f, 1.0f, 1.5f));
  EXPECT_THAT(ValuesOf(decoder.graph, "layers.1.self_attn.k_norm.weight"),
              ElementsAre(0.0f, 1.0f, 2.0f, 3.0f));
}

TEST(BuildDecoderTest, TiedHeadComesFromTheEmbedding) {
  const FakeCheckpoint checkpoint;
  const DecoderGraph decoder = Build(checkpoint, {});
  EXPECT_EQ(decoder.linears.back().name, "lm_head.weight");
  EXPECT_EQ(decoder.linears.back().tensor, "model.embed_tokens.weight");
  EXPECT_TRUE(decoder.linears.back().lm_head);
  EXPECT_EQ(decoder.embedding, "embed_tokens.weight");
}

TEST(BuildDecoderTest, OwnHeadIsUsed) {
  FakeCheckpoint checkpoint;
  checkpoint.mutable_config().tie_word_embeddings = false;
  checkpoint.Add("lm_head.weight", {10, 8});
  EXPECT_EQ(Build(checkpoint, {}).linears.back().tensor, "lm_head.weight");
}

TEST(BuildDecoderTest, EmitsNoIdentityTranspose) {
  const FakeCheckpoint checkpoint;
  const DecoderGraph decoder = Build(checkpoint, Static(1, 4));
  for (const graph::Node& node : decoder.graph.nodes) {
    if (node.op_type != "Transpose") continue;
    EXPECT_FALSE(std::ranges::is_sorted(std::get<std::vector<int64_t>>(node.attributes.at("perm"))))
        << node.name;
  }
}

TEST(BuildDecoderTest, EveryLinearIsAMatMulOfItsInitializer) {
  const FakeCheckpoint checkpoint;
  const DecoderGraph decoder = Build(checkpoint, {});
  EXPECT_EQ(decoder.linears.size(), 2u * 7 + 1);
  for (const LinearWeight& linear : decoder.linears) {
    const auto node = std::ranges::find_if(decoder.graph.nodes, [&](const graph::Node& candidate) {
      return candidate.op_type == "MatMul" && candidate.inputs[1] == linear.name;
    });
    ASSERT_NE(node, decoder.graph.nodes.end()) << linear.name;
    EXPECT_EQ(decoder.graph.FindInitializer(linear.name)->shape,
              (Shape{linear.in_features, linear.out_features}));
    EXPECT_EQ(node->name,
              linear.lm_head ? "logits" : linear.name.substr(0, linear.name.rfind(".weight")));
  }
}

std::vector<std::string> StepInputsOf(const Checkpoint& checkpoint, const DecoderOptions& options) {
  std::vector<std::string> names;
  for (const graph::ValueInfo& input : Build(checkpoint, options).graph.inputs) {
    if (input.name != "input_ids" && !input.name.starts_with("past_")) names.push_back(input.name);
  }
  return names;
}

TEST(BuildDecoderTest, ASecondMaskOnlyWhereAWindowIsShorterThanTheContext) {
  FakeCheckpoint checkpoint;
  checkpoint.mutable_config().sliding_window = 5;
  checkpoint.mutable_config().sliding_layers = {false, true};
  EXPECT_THAT(StepInputsOf(checkpoint, Static(1, 5)),
              ElementsAre("attention_mask", "position_ids_cos", "position_ids_sin"));
  EXPECT_THAT(StepInputsOf(checkpoint, Static(1, 6)),
              ElementsAre("attention_mask", "sliding_attention_mask", "position_ids_cos",
                          "position_ids_sin"));
  DecoderOptions dynamic;
  EXPECT_EQ(StepInputsOf(checkpoint, dynamic).size(), 4u);  // the context is not known
  dynamic.context_length = 5;
  EXPECT_EQ(StepInputsOf(checkpoint, dynamic).size(), 3u);
  checkpoint.mutable_config().sliding_layers = {true, true};
  EXPECT_THAT(StepInputsOf(checkpoint, Static(1, 6)),
              ElementsAre("sliding_attention_mask", "position_ids_cos", "position_ids_sin"));
}

TEST(BuildDecoderTest, ASecondRopeIsTheSlidingLayers) {
  FakeCheckpoint checkpoint;
  ModelConfig& config = checkpoint.mutable_config();
  config.sliding_window = 64;
  config.sliding_layers = {true, false};
  config.local_rope = RopeParameters{100.0, 4, {}};
  const DecoderGraph decoder = Build(checkpoint, Static(1, 8));
  for (const graph::Node& node : decoder.graph.nodes) {
    if (node.op_type != "Mul" || !node.name.ends_with("_cos")) continue;
    EXPECT_EQ(node.inputs[1],
              node.name.starts_with("layers.0.") ? "local_position_ids_cos" : "position_ids_cos")
        << node.name;
  }
}

TEST(BuildDecoderTest, LayersWithoutRopeReadNoTable) {
  FakeCheckpoint checkpoint;
  checkpoint.mutable_config().no_rope_layers = {true, true};
  EXPECT_THAT(StepInputsOf(checkpoint, Static(1, 8)), ElementsAre("attention_mask"));
}

TEST(BuildDecoderTest, FusedProjectionsAreRowsOfOneTensor) {
  FakeCheckpoint checkpoint;
  ModelConfig& config = checkpoint.mutable_config();
  config.fused_projections = true;
  config.attention_bias = false;
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    checkpoint.Add(std::string(layer) + "self_attn.qkv_proj.weight", {32, 8});
    checkpoint.Add(std::string(layer) + "mlp.gate_up_proj.weight", {24, 8});
  }
  const DecoderGraph decoder = Build(checkpoint, {});
  std::map<std::string, std::pair<std::string, int64_t>> rows;
  for (const LinearWeight& linear : decoder.linears)
    rows[linear.name] = {linear.tensor, linear.first_row};
  const std::string qkv = "model.layers.1.self_attn.qkv_proj.weight";
  EXPECT_EQ(rows["layers.1.self_attn.q_proj.weight"], std::pair(qkv, int64_t{0}));
  EXPECT_EQ(rows["layers.1.self_attn.k_proj.weight"], std::pair(qkv, int64_t{16}));
  EXPECT_EQ(rows["layers.1.self_attn.v_proj.weight"], std::pair(qkv, int64_t{24}));
  EXPECT_EQ(rows["layers.1.mlp.up_proj.weight"].second, 12);
  // Element i is i: [in 0, out 0] of v is row 24, column 0.
  EXPECT_EQ(ValuesOf(decoder.graph, "layers.1.self_attn.v_proj.weight")[0], 24.0f * 8);
}

TEST(BuildDecoderTest, RefusesContextNotLongerThanTheChunk) {
  const FakeCheckpoint checkpoint;
  EXPECT_THAT(BuildDecoder(checkpoint, Static(4, 4)),
              StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("ar 4"), HasSubstr("cl 4"))));
  EXPECT_THAT(BuildDecoder(checkpoint, Static(0, 4)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("ar 0")));
  EXPECT_THAT(BuildDecoder(checkpoint, Static(kDynamicDim, 4)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("both dynamic")));
}

TEST(BuildDecoderTest, RefusesBadLayerRanges) {
  const FakeCheckpoint checkpoint;
  for (const DecoderOptions& options :
       {Layers(-2, 1, false, false), Layers(2, 1, false, false), Layers(0, 3, true, false),
        Layers(1, 2, true, true), Layers(0, 1, true, true), Layers(1, 1, false, false)}) {
    EXPECT_THAT(BuildDecoder(checkpoint, options),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("decoder")));
  }
}

TEST(BuildDecoderTest, NamesAMissingTensor) {
  FakeCheckpoint checkpoint;
  checkpoint.Remove("model.layers.1.mlp.up_proj.weight");
  EXPECT_THAT(BuildDecoder(checkpoint, {}),
              StatusIs(StatusCode::kNotFound, HasSubstr("layers.1.mlp.up_proj.weight")));
}

TEST(BuildDecoderTest, NamesATensorOfTheWrongShape) {
  FakeCheckpoint checkpoint;
  checkpoint.Remove("model.layers.0.self_attn.k_proj.bias");
  checkpoint.Add("model.layers.0.self_attn.k_proj.bias", {7});
  EXPECT_THAT(BuildDecoder(checkpoint, {}),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("k_proj.bias"), HasSubstr("expected [8], got [7]"))));
}

TEST(ReadLinearTest, TransposesAcrossBlocksOfRows) {
  FakeCheckpoint checkpoint;
  checkpoint.Add("tall", {150, 3});  // more rows than a block, and not a multiple of it
  const LinearWeight linear{"tall.weight", "tall", 3, 150, 2.0, false, -1};
  std::vector<float> values(450);
  ASSERT_THAT(ReadLinear(checkpoint, linear, values), IsOk());
  for (size_t in = 0; in < 3; ++in) {
    for (size_t out = 0; out < 150; ++out) {
      ASSERT_EQ(values[in * 150 + out], 2.0f * static_cast<float>(out * 3 + in))
          << in << ", " << out;
    }
  }
}

TEST(ReadEmbeddingTest, RowsAreScaled) {
  FakeCheckpoint checkpoint;
  checkpoint.mutable_config().embedding_scale = 0.5;
  std::vector<float> row(8);
  ASSERT_THAT(ReadEmbedding(checkpoint, 2, row), IsOk());
  EXPECT_EQ(row[3], 0.5f * 19);  // element i is i
}

TEST(ReadLinearTest, RefusesAWrongSize) {
  const FakeCheckpoint checkpoint;
  std::vector<float> values(3);
  EXPECT_THAT(ReadLinear(checkpoint, {"w", "tall", 2, 2, 1.0, false, -1}, values),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("[2, 2]")));
}

}  // namespace
}  // namespace hexport::decoder
