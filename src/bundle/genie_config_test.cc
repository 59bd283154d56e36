#include "bundle/genie_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/status_matchers.h"

namespace hexport::bundle {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using nlohmann::json;
using ::testing::HasSubstr;

Manifest SmolLm() {
  Manifest manifest;
  manifest.context_length = 256;
  manifest.model.vocab_size = 49152;
  manifest.model.head_dim = 64;
  manifest.model.rope_theta = 100000;
  manifest.model.bos_token_id = 1;
  manifest.model.eos_token_ids = {2};
  return manifest;
}

GenieOptions Options() {
  GenieOptions options;
  options.binaries = {"a.bin", "b.bin"};
  options.tokenizer_path = "tokenizer.json";
  options.extensions_path = "htp.json";
  return options;
}

json Dialog(const Manifest& manifest, const GenieOptions& options) {
  const Result<std::string> text = GenieConfigJson(manifest, options);
  EXPECT_THAT(text, IsOk());
  return text.ok() ? json::parse(*text).at("dialog") : json();
}

TEST(GenieConfigTest, HoldsTheMandatoryFields) {
  const json dialog = Dialog(SmolLm(), Options());
  EXPECT_EQ(dialog.at("version"), 1);
  EXPECT_EQ(dialog.at("type"), "basic");
  EXPECT_EQ(dialog.at("max-num-tokens"), 512);
  EXPECT_EQ(
      dialog.at("context"),
      json::parse(R"({"version":1,"size":256,"n-vocab":49152,"bos-token":-1,"eos-token":2})"));
  EXPECT_EQ(dialog.at("tokenizer"), json::parse(R"({"version":1,"path":"tokenizer.json"})"));
  EXPECT_EQ(
      dialog.at("engine").at("model"),
      json::parse(
          R"({"version":1,"type":"binary","binary":{"version":1,"ctx-bins":["a.bin","b.bin"]}})"));
}

TEST(GenieConfigTest, SeveralEosTokensAreAList) {
  Manifest manifest = SmolLm();
  manifest.model.eos_token_ids = {2, 0};
  EXPECT_EQ(Dialog(manifest, Options()).at("context").at("eos-token"), json({2, 0}));
}

TEST(GenieConfigTest, TemperatureZeroIsGreedy) {
  const json sampler = Dialog(SmolLm(), Options()).at("sampler");
  EXPECT_EQ(sampler.at("greedy"), true);
  EXPECT_EQ(sampler.at("top-k"), 1);
}

TEST(GenieConfigTest, SamplingFieldsAreWritten) {
  GenieOptions options = Options();
  options.temperature = 0.5;
  options.seed = (int64_t{1} << 40) + 7;  // Genie refuses seeds above 2^31 - 1
  const json sampler = Dialog(SmolLm(), options).at("sampler");
  EXPECT_FALSE(sampler.contains("greedy"));
  EXPECT_EQ(sampler.at("temp"), 0.5);
  EXPECT_EQ(sampler.at("top-k"), 40);
  EXPECT_EQ(sampler.at("top-p"), 0.95);
  EXPECT_EQ(sampler.at("seed"), 7);
}

TEST(GenieConfigTest, PlainRopeStandsInTheBackend) {
  const json engine = Dialog(SmolLm(), Options()).at("engine");
  const json& htp = engine.at("backend").at("QnnHtp");
  EXPECT_EQ(htp.at("kv-dim"), 64);
  EXPECT_EQ(htp.at("pos-id-dim"), 32);
  EXPECT_EQ(htp.at("rope-theta"), 100000);
  EXPECT_FALSE(engine.at("model").contains("positional-encoding"));
}

TEST(GenieConfigTest, Llama3ScalingStandsInTheModel) {
  Manifest manifest = SmolLm();
  manifest.model.rope_theta = 500000;
  manifest.model.rope_scaling = "llama3";
  manifest.model.rope_factor = 32;
  manifest.model.rope_original_max_position_embeddings = 8192;
  const json engine = Dialog(manifest, Options()).at("engine");
  EXPECT_EQ(engine.at("model").at("positional-encoding"),
            json::parse(R"({"type":"rope","rope-dim":32,
      "rope-theta":500000,"rope-scaling":{"rope-type":"llama3","factor":32.0,"low-freq-factor":1.0,
      "high-freq-factor":4.0,"original-max-position-embeddings":8192}})"));
  EXPECT_FALSE(engine.at("backend").at("QnnHtp").contains("rope-theta"));
  EXPECT_FALSE(engine.at("backend").at("QnnHtp").contains("pos-id-dim"));
}

TEST(GenieConfigTest, LinearScalingHasItsFactor) {
  Manifest manifest = SmolLm();
  manifest.model.rope_scaling = "linear";
  manifest.model.rope_factor = 2;
  EXPECT_EQ(Dialog(manifest, Options())["engine"]["model"]["positional-encoding"]["rope-scaling"],
            json::parse(R"({"rope-type":"linear","factor":2.0})"));
}

TEST(GenieConfigTest, UnknownScalingIsUnimplemented) {
  Manifest manifest = SmolLm();
  manifest.model.rope_scaling = "yarn";
  EXPECT_THAT(GenieConfigJson(manifest, Options()),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("yarn")));
}

TEST(GenieConfigTest, InputsThatGenieDoesNotFillAreRefused) {
  for (const char* name : {"sliding_attention_mask", "local_position_ids_cos"}) {
    Manifest manifest = SmolLm();
    GraphEntry graph;
    graph.name = "prompt";
    graph.inputs = {{"attention_mask", "uint16", {1, 1, 1, 2}, 1, 0},
                    {name, "uint16", {1, 1, 1, 2}, 1, 0}};
    manifest.graphs = {graph};
    EXPECT_THAT(CheckGenie(manifest), StatusIs(StatusCode::kUnimplemented, HasSubstr(name)));
    manifest.graphs[0].inputs.pop_back();
    EXPECT_THAT(CheckGenie(manifest), IsOk());
  }
}

TEST(GenieConfigTest, RopeOverAPartOfTheHeadIsRefused) {
  Manifest manifest = SmolLm();
  manifest.model.rope_frequencies.assign(24, 1.0);  // 48 of 64 elements
  EXPECT_THAT(CheckGenie(manifest), StatusIs(StatusCode::kUnimplemented, HasSubstr("48")));
  manifest.model.rope_frequencies.assign(32, 1.0);
  EXPECT_THAT(CheckGenie(manifest), IsOk());
}

TEST(GenieConfigTest, FractionalThetaIsRefused) {
  Manifest manifest = SmolLm();
  manifest.model.rope_theta = 10000.5;
  EXPECT_THAT(GenieConfigJson(manifest, Options()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("10000.5")));
}

TEST(GenieConfigTest, EmulatorNeedsNoMmapAndNoPolling) {
  GenieOptions options = Options();
  EXPECT_EQ(Dialog(SmolLm(), options)["engine"]["backend"]["QnnHtp"]["use-mmap"], true);
  options.emulator = true;
  const json htp = Dialog(SmolLm(), options)["engine"]["backend"]["QnnHtp"];
  EXPECT_EQ(htp.at("use-mmap"), false);
  EXPECT_EQ(htp.at("poll"), false);
}

TEST(BackendConfigTest, EmulatorTakesDevicesAlone) {
  EXPECT_EQ(
      json::parse(BackendConfigJson(57, 75, true)),
      json::parse(
          R"({"devices":[{"soc_model":57,"dsp_arch":"v75","cores":[{"core_id":0,"perf_profile":"burst",
      "rpc_control_latency":100}]}]})"));
}

TEST(BackendConfigTest, PhoneSharesWeights) {
  const json config = json::parse(BackendConfigJson(69, 79, false));
  EXPECT_EQ(config.at("context").at("weight_sharing_enabled"), true);
  EXPECT_EQ(config.at("memory").at("mem_type"), "shared_buffer");
  EXPECT_EQ(config.at("devices").at(0).at("dsp_arch"), "v79");
}

}  // namespace
}  // namespace hexport::bundle
