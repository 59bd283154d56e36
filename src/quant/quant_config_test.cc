#include "quant/quant_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/status_matchers.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

QuantConfig Parsed(const std::string& text) {
  const Result<QuantConfig> config = ParseQuantConfig(text, "q.json");
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  return config.ok() ? *config : QuantConfig();
}

decoder::LinearWeight Linear(const std::string& name, int64_t in = 64) {
  return {name + ".weight", name, in, 8, 1.0, name == "lm_head", 0, 0};
}

decoder::DecoderGraph Model() {
  decoder::DecoderGraph graph;
  graph.linears = {Linear("layers.0.mlp.down_proj"), Linear("layers.1.mlp.down_proj"),
                   Linear("lm_head")};
  graph.activations = {{{"layers.0.mlp.gated", DType::kFloat32, {1}, {}}, "layers.0.mlp.gated"},
                       {{"hidden_out", DType::kFloat32, {1}, {}}, "norm.input"}};
  return graph;
}

TEST(QuantConfig, EmptyObjectIsTheDefault) {
  const QuantConfig config = Parsed("{}");
  EXPECT_EQ(config.method, Method::kGptq);
  EXPECT_EQ(config.activation_bits, 16);
  EXPECT_EQ(config.kv_bits, 8);
  EXPECT_EQ(config.ranges, RangeMethod::kMinMax);
}

TEST(QuantConfig, RoundTrip) {
  const std::string text = R"({"method": "awq", "weights": "lpbq", "block_size": 16,
    "activation_bits": 8, "kv_bits": 16, "ranges": "percentile", "percentile": 99.5, "fold_channels": true,
    "exclude": ["lm_head"], "linears": [{"pattern": "layers.*.q", "weights": "int8"},
    {"pattern": "a", "block_size": 64, "method": "seqmse"}],
    "activations": [{"pattern": "b*", "bits": 8}, {"pattern": "c", "float16": true}],
    "float16": ["norm"]})";
  const std::string written = QuantConfigToJson(Parsed(text));
  EXPECT_EQ(QuantConfigToJson(Parsed(written)), written);
  const QuantConfig again = Parsed(written);
  EXPECT_EQ(again.method, Method::kAwq);
  EXPECT_EQ(again.weights.block_size, 16);
  EXPECT_EQ(again.percentile, 99.5);
  EXPECT_TRUE(again.fold_channels);
  EXPECT_EQ(again.linears[0].weights, WeightFormat::kInt8);
  EXPECT_EQ(again.linears[1].method, Method::kSeqMse);
  EXPECT_TRUE(again.activations[1].float16);
}

struct Fault {
  const char* text;
  const char* message;
};

class QuantConfigFaultTest : public ::testing::TestWithParam<Fault> {};

TEST_P(QuantConfigFaultTest, NamesThePathAndWhatWasExpected) {
  EXPECT_THAT(ParseQuantConfig(GetParam().text, "q.json"),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("q.json: "), HasSubstr(GetParam().message))));
}

INSTANTIATE_TEST_SUITE_P(
    All, QuantConfigFaultTest,
    ::testing::Values(
        Fault{R"({"metod": "rtn"})",
              "metod: expected a known field, got \"metod\"; did you mean "
              "\"method\"?"},
        Fault{R"({"method": "gtpq"})",
              "method: expected one of rtn, gptq, awq, smoothquant, "
              "seqmse, import, got \"gtpq\"; did you mean \"gptq\"?"},
        Fault{R"({"weights": 4})", "weights: expected one of int8, int4, lpbq, got 4"},
        Fault{R"({"block_size": 24})", "block_size: expected one of 16, 32, 64, got 24"},
        Fault{R"({"kv_bits": "8"})", "kv_bits: expected one of 8, 16, got \"8\""},
        Fault{R"({"percentile": 50})", "percentile: expected a number above 50.0"},
        Fault{R"({"exclude": "lm_head"})", "exclude: expected a list"},
        Fault{R"({"exclude": [""]})", "exclude[0]: expected a pattern"},
        Fault{R"({"linears": [{"pattern": "a", "weights": "int8"}, 3]})",
              "linears[1]: expected an object, got 3"},
        Fault{R"({"linears": [{"weights": "int8"}]})", "linears[0].pattern: expected a pattern"},
        Fault{R"({"linears": [{"pattern": "a"}]})", "linears[0]: expected weights, block_size"},
        Fault{R"({"linears": [{"pattern": "a", "weights": "int8", "block_size": 32}]})",
              "linears[0].block_size: expected none"},
        Fault{R"({"linears": [{"pattern": "a", "weigths": "int8"}]})",
              "linears[0].weigths: expected a known field"},
        Fault{R"({"activations": [{"pattern": "a", "bits": 4}]})",
              "activations[0].bits: expected one of 8, 16, got 4"},
        Fault{R"({"activations": [{"pattern": "a", "bits": 8, "float16": true}]})",
              "activations[0]: expected either"}));

TEST(QuantConfig, NoJsonIsDataLoss) {
  EXPECT_THAT(ParseQuantConfig("{", "q.json"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("q.json")));
}

TEST(QuantConfig, PatternsMatchWholeNames) {
  EXPECT_TRUE(MatchesPattern("layers.*.down_proj", "layers.3.mlp.down_proj"));
  EXPECT_TRUE(MatchesPattern("*", ""));
  EXPECT_TRUE(MatchesPattern("a*b*c", "a.b.b.c"));
  EXPECT_FALSE(MatchesPattern("layers.1", "layers.11"));
  EXPECT_FALSE(MatchesPattern("layers.1.*", "layers.11.mlp"));
  EXPECT_FALSE(MatchesPattern("", "a"));
}

TEST(QuantConfig, LaterRulesWinAndExclusionWinsOverAll) {
  const QuantConfig config = Parsed(R"({"weights": "lpbq", "method": "rtn",
    "exclude": ["layers.1.*"], "linears": [
    {"pattern": "layers.*", "weights": "int4", "method": "awq"},
    {"pattern": "*.down_proj", "weights": "lpbq", "block_size": 64}]})");
  const LinearPlan first = PlanLinear(config, Linear("layers.0.mlp.down_proj"));
  EXPECT_EQ(first.weights.format, WeightFormat::kLpbq);
  EXPECT_EQ(first.weights.block_size, 64);
  EXPECT_EQ(first.method, Method::kAwq);
  EXPECT_EQ(PlanLinear(config, Linear("layers.0.mlp.up_proj")).weights.format, WeightFormat::kInt4);
  EXPECT_EQ(PlanLinear(config, Linear("layers.1.mlp.down_proj")).weights.format,
            WeightFormat::kInt8);
}

TEST(QuantConfig, OutputProjectionIsInt8UnlessARuleNamesIt) {
  QuantConfig config = Parsed(R"({"weights": "lpbq"})");
  EXPECT_EQ(PlanLinear(config, Linear("lm_head")).weights.format, WeightFormat::kInt8);
  EXPECT_EQ(PlanLinear(config, Linear("lm_head")).method, Method::kGptq);
  for (const Method method : {Method::kRtn, Method::kAwq, Method::kSeqMse, Method::kImport}) {
    config.method = method;
    EXPECT_EQ(PlanLinear(config, Linear("lm_head")).method, Method::kRtn);
  }
  config.linears.push_back({"lm_head", WeightFormat::kLpbq, 16, {}});
  EXPECT_EQ(PlanLinear(config, Linear("lm_head")).weights.format, WeightFormat::kLpbq);
}

TEST(QuantConfig, Q07BlockThatDoesNotDivideGivesInt8) {
  const LinearPlan plan =
      PlanLinear(Parsed(R"({"weights": "lpbq", "block_size": 64})"), Linear("a", 96));
  EXPECT_EQ(plan.weights.format, WeightFormat::kInt8);
  EXPECT_TRUE(plan.block_does_not_divide);
}

TEST(QuantConfig, ActivationRules) {
  const QuantConfig config = Parsed(R"({"kv_bits": 16, "float16": ["norm", "x.*"],
    "activations": [{"pattern": "*.gated", "bits": 8}, {"pattern": "x.b", "bits": 16}]})");
  EXPECT_EQ(PlanActivation(config, "past_key_0_out").bits, 16);
  EXPECT_EQ(PlanActivation(config, "layers.0.gated").bits, 8);
  EXPECT_TRUE(PlanActivation(config, "x.a").float16);
  EXPECT_FALSE(PlanActivation(config, "x.b").float16);
  const std::vector<std::string> group = {"layers.0.other", "layers.0.gated"};
  EXPECT_EQ(PlanActivations(config, group).bits, 8);
}

TEST(QuantConfig, PatternThatMatchesNothingIsNamedWithANearName) {
  const QuantConfig config =
      Parsed(R"({"linears": [{"pattern": "layers.*.mlp.donw_proj", "weights": "int8"}]})");
  EXPECT_THAT(CheckConfig(config, Model(), "q.json"),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("q.json: linears[0].pattern: expected a pattern"),
                             HasSubstr("did you mean \"layers.*.mlp.down_proj\"?"))));
  EXPECT_THAT(CheckConfig(Parsed(R"({"exclude": ["layers.7.*"]})"), Model()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("exclude[0]")));
  EXPECT_THAT(CheckConfig(Parsed(R"({"float16": ["norms"]})"), Model()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("float16[0]")));
  EXPECT_THAT(CheckConfig(Parsed(R"({"activations": [{"pattern": "norm", "bits": 8}]})"), Model()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("activations[0].pattern")));
}

TEST(QuantConfig, PatternsThatMatchPass) {
  EXPECT_THAT(CheckConfig(Parsed(R"({"exclude": ["lm_head", "embed_tokens"], "float16": ["norm",
    "norm.input"], "activations": [{"pattern": "*.gated", "bits": 8}]})"),
                          Model()),
              IsOk());
}

}  // namespace
}  // namespace hexport::quant
