#include "adapter/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "adapter/merge_fixture.h"

namespace hexport::adapter {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::MakeAdapter;
using ::testing::Not;
using testing::Product;
using testing::StatusIs;
using testing::TinyAdapter;
using testing::TinyModel;
using testing::TinyTensor;

constexpr const char* kQ0 = "model.layers.0.self_attn.q_proj";
const std::string kKeyQ0 = std::string("base_model.model.") + kQ0;

// A model whose q_proj of layer 0 is W, all else as generated.
TinyModel WithQ0(TinyModel model, TinyTensor weight) {
  model.tensors[std::string(kQ0) + ".weight"] = std::move(weight);
  return model;
}

// An adapter for that module alone.
TinyAdapter OnQ0(nlohmann::json config, TinyTensor a, TinyTensor b) {
  TinyAdapter adapter;
  adapter.config = std::move(config);
  adapter.config["peft_type"] = "LORA";
  adapter.config["target_modules"] = {kQ0};
  adapter.tensors[kKeyQ0 + ".lora_A.weight"] = std::move(a);
  adapter.tensors[kKeyQ0 + ".lora_B.weight"] = std::move(b);
  return adapter;
}

TEST_F(MergeTest, AddsTheScaledProductAndCopiesTheRest) {
  const TinyModel model = testing::Tl3();
  const TinyAdapter adapter = MakeAdapter(model, 4, 8, {"q_proj", "down_proj"});
  const auto merged = MergeTiny(model, adapter);
  ASSERT_THAT(merged, IsOk());
  EXPECT_THAT(merged->report.failures, IsEmpty());
  EXPECT_EQ(merged->report.matched, 8);
  EXPECT_EQ(merged->report.adapter_tensors, 8);
  EXPECT_EQ(merged->report.tensors_in, static_cast<int64_t>(model.tensors.size()));
  EXPECT_EQ(merged->report.tensors_out, static_cast<int64_t>(model.tensors.size()));
  EXPECT_EQ(merged->report.tensors_changed, 4);
  for (const auto& [name, tensor] : model.tensors) {
    const std::string key = "base_model.model." + name.substr(0, name.rfind('.'));
    const auto a = adapter.tensors.find(key + ".lora_A.weight");
    if (a == adapter.tensors.end()) {
      EXPECT_EQ(merged->tensors.at(name).values, tensor.values) << name;
      continue;
    }
    const auto product = Product(adapter.tensors.at(key + ".lora_B.weight"), a->second);
    EXPECT_LT(MaxError(merged->tensors.at(name), tensor, 2.0, product), 1e-6) << name;
  }
}

// L01: alpha / sqrt(r): 16 / sqrt(16) = 4, 16 / sqrt(64) = 2.
TEST_F(MergeTest, L01RankStabilizedScale) {
  for (const auto& [r, scale] : {std::pair{16, 4.0}, std::pair{64, 2.0}}) {
    const TinyModel model = testing::Tl3();
    TinyAdapter adapter = MakeAdapter(model, r, 16, {"q_proj"});
    adapter.config["use_rslora"] = true;
    const auto merged = MergeTiny(model, adapter);
    ASSERT_THAT(merged, IsOk());
    const auto product = Product(adapter.tensors.at(kKeyQ0 + ".lora_B.weight"),
                                 adapter.tensors.at(kKeyQ0 + ".lora_A.weight"));
    const std::string name = std::string(kQ0) + ".weight";
    EXPECT_LT(MaxError(merged->tensors.at(name), model.tensors.at(name), scale, product), 1e-6);
  }
}

// L03: the norm is that of an output row: [[7.0710678, 7.0710678], [0, 1]].
TEST_F(MergeTest, L03DoraNormPerOutputRow) {
  const TinyModel model = WithQ0(testing::Tl3(), {{2, 2}, {3, 4, 0, 2}, "F32"});
  TinyAdapter adapter = OnQ0({{"r", 1}, {"lora_alpha", 0.5}, {"use_dora", true}},
                             {{1, 2}, {1, 0}, "F32"}, {{2, 1}, {2, 0}, "F32"});
  adapter.tensors[kKeyQ0 + ".lora_magnitude_vector"] = {{2}, {10, 1}, "F32"};
  const auto merged = MergeTiny(model, adapter);
  ASSERT_THAT(merged, IsOk());
  EXPECT_EQ(merged->report.matched, 3);
  const auto& values = merged->tensors.at(std::string(kQ0) + ".weight").values;
  const std::vector<double> expected{7.0710678, 7.0710678, 0, 1};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(static_cast<double>(values[i]), expected[i], 1e-6) << i;
  }
}

// L04: each tensor is read by its own type: 0.5 + 6.0 = 6.5.
TEST_F(MergeTest, L04AdapterTypesAreReadPerTensor) {
  for (const auto& [type_a, type_b] :
       {std::pair{"BF16", "BF16"}, std::pair{"F16", "BF16"}, std::pair{"F32", "F16"}}) {
    const TinyModel model = WithQ0(testing::Tl3(), {{2, 2}, std::vector<float>(4, 0.5f), "F32"});
    const TinyAdapter adapter =
        OnQ0({{"r", 2}, {"lora_alpha", 2}}, {{2, 2}, std::vector<float>(4, 1.5f), type_a},
             {{2, 2}, std::vector<float>(4, 2.0f), type_b});
    const auto merged = MergeTiny(model, adapter);
    ASSERT_THAT(merged, IsOk());
    EXPECT_EQ(merged->tensors.at(std::string(kQ0) + ".weight").values, std::vector<float>(4, 6.5f));
  }
}

// L05: the delta is float32 and rounded once: 1 + 0.003 stays 1.0, 1 + 0.005 becomes 1.0078125.
TEST_F(MergeTest, L05OneRoundingAndTheShareLost) {
  TinyModel model = testing::Tl3();
  for (auto& [name, tensor] : model.tensors) tensor.dtype = "BF16";
  model = WithQ0(model, {{2, 2}, std::vector<float>(4, 1.0f), "BF16"});
  const auto adapter = [](float delta) {
    return OnQ0({{"r", 1}, {"lora_alpha", 1}}, {{1, 2}, {1, 1}, "F32"},
                {{2, 1}, {delta, delta}, "F32"});
  };
  const std::string name = std::string(kQ0) + ".weight";
  const auto lost = MergeTiny(model, adapter(0.003f));
  ASSERT_THAT(lost, IsOk());
  EXPECT_EQ(lost->tensors.at(name).values, std::vector<float>(4, 1.0f));
  EXPECT_EQ(lost->report.delta_lost_share, 1.0);
  EXPECT_TRUE(lost->report.identity);
  EXPECT_THAT(lost->report.failures, ElementsAre(HasSubstr("--dtype float32")));

  const auto kept = MergeTiny(model, adapter(0.005f));
  ASSERT_THAT(kept, IsOk());
  EXPECT_EQ(kept->tensors.at(name).values, std::vector<float>(4, 1.0078125f));
  EXPECT_EQ(kept->report.delta_lost_share, 0.0);
  EXPECT_NEAR(kept->report.delta_relative_error, (0.0078125 - 0.005) / 0.005, 1e-5);
  EXPECT_THAT(kept->report.failures, IsEmpty());

  MergeOptions options;
  options.dtype = DType::kFloat32;
  const auto exact = MergeTiny(model, adapter(0.003f), options);
  ASSERT_THAT(exact, IsOk());
  EXPECT_EQ(exact->tensors.at(name).values, std::vector<float>(4, 1.003f));
  EXPECT_EQ(exact->tensors.at(name).dtype, "F32");
  EXPECT_EQ(exact->config["torch_dtype"], "float32");
  EXPECT_THAT(exact->report.failures, IsEmpty());
}

// PEFT's DoRA of an embedding takes the norm of a column of W: |V| over the vocabulary.
TEST_F(MergeTest, L03DoraOfAnEmbeddingNormsColumns) {
  TinyModel model = testing::Tq2();
  TinyAdapter adapter;
  adapter.config = {{"peft_type", "LORA"},
                    {"r", 1},
                    {"lora_alpha", 0.5},
                    {"use_dora", true},
                    {"target_modules", {"embed_tokens"}}};
  const std::string name = "model.embed_tokens.weight";
  TinyTensor& weight = model.tensors[name];
  std::fill(weight.values.begin(), weight.values.end(), 0.0f);
  for (size_t column = 0; column < 32; ++column) weight.values[column] = 1.0f;
  weight.values[0] = 3;   // row 0, column 0
  weight.values[32] = 2;  // row 1, column 0: 2 + 0.5 * 4 * 1 = 4
  std::vector<float> a(64, 0.0f), b(32, 0.0f), magnitude(32, 7.0f);
  a[1] = 4;
  b[0] = 1;
  magnitude[0] = 10;
  adapter.tensors["base_model.model.model.embed_tokens.lora_embedding_A"] = {{1, 64}, a, "F32"};
  adapter.tensors["base_model.model.model.embed_tokens.lora_embedding_B"] = {{32, 1}, b, "F32"};
  adapter.tensors["base_model.model.model.embed_tokens.lora_magnitude_vector"] = {
      {32}, magnitude, "F32"};
  const auto merged = MergeTiny(model, adapter);
  ASSERT_THAT(merged, IsOk());
  const auto& values = merged->tensors.at(name).values;
  EXPECT_NEAR(values[0], 6.0f, 1e-6f);   // 10 * 3 / 5
  EXPECT_NEAR(values[32], 8.0f, 1e-6f);  // 10 * 4 / 5
  EXPECT_NEAR(values[1], 7.0f, 1e-6f);   // 7 * 1 / 1
}

TEST_F(MergeTest, L14UntrainedAdapterIsAnExactIdentity) {
  const TinyModel model = testing::Tl3();
  TinyAdapter adapter = MakeAdapter(model, 4, 8, {"q_proj"});
  for (auto& [key, tensor] : adapter.tensors) {
    if (key.find("lora_B") != std::string::npos) {
      std::fill(tensor.values.begin(), tensor.values.end(), 0.0f);
    }
  }
  const auto merged = MergeTiny(model, adapter);
  ASSERT_THAT(merged, IsOk());
  EXPECT_TRUE(merged->report.identity);
  EXPECT_EQ(merged->report.delta_norm, 0);
  EXPECT_THAT(merged->report.failures, ElementsAre(HasSubstr("adapter is an exact identity")));
}

// L14: a base that holds the adapter already.
TEST_F(MergeTest, L14MergedTwiceIsSeen) {
  const TinyModel model = testing::Tl3();
  TinyAdapter adapter = MakeAdapter(model, 4, 32, {"q_proj", "v_proj", "gate_proj", "up_proj"});
  for (auto& [key, tensor] : adapter.tensors) {
    for (float& value : tensor.values) value *= 4;
  }
  const auto once = MergeTiny(model, adapter);
  ASSERT_THAT(once, IsOk());
  EXPECT_LT(std::abs(once->report.base_projection), 4 * once->report.base_projection_sigma);
  EXPECT_THAT(once->report.warnings, Not(Contains(HasSubstr("holds this adapter"))));
  EXPECT_THAT(once->report.warnings, Not(Contains(HasSubstr("hold this adapter already"))));

  // By its record.
  const std::filesystem::path merged_base = directory_ / "merged";
  std::filesystem::copy(Out(), merged_base);
  base_path_ = merged_base;
  ASSERT_THAT(Match({{directory_ / "adapter", 1.0}}), IsOk());
  EXPECT_THAT(Merge(), StatusIs(StatusCode::kFailedPrecondition,
                                HasSubstr("this adapter is in the base already")));
  // By its numbers.
  std::filesystem::remove(merged_base / "hexport_merge.json");
  const auto twice = Merge();
  ASSERT_THAT(twice, IsOk());
  EXPECT_NEAR(twice->report.base_projection, 1.0, 4 * twice->report.base_projection_sigma);
  EXPECT_THAT(twice->report.warnings, Contains(HasSubstr("seems to hold this adapter already")));
}

TEST_F(MergeTest, L14BaseOtherThanTheRecordedOneIsRefused) {
  const TinyModel model = testing::Tl3();
  TinyAdapter adapter = MakeAdapter(model, 4, 8, {"q_proj"});
  const auto first = MergeTiny(model, adapter);
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(first->report.base_sha256.size(), 64u);
  adapter.config["hexport_base_sha256"] = first->report.base_sha256;
  const auto same = MergeTiny(model, adapter);
  ASSERT_THAT(same, IsOk());
  EXPECT_EQ(same->report.base_sha256, first->report.base_sha256);
  TinyModel other = model;
  other.tensors["model.norm.weight"].values[0] += 1;
  EXPECT_THAT(MergeTiny(other, adapter), StatusIs(StatusCode::kFailedPrecondition,
                                                  AllOf(HasSubstr("hexport_base_sha256"),
                                                        HasSubstr(first->report.base_sha256))));
}

// L22: all biases of qwen2 and the seven a layer of a llama with attention_bias and mlp_bias.
TEST_F(MergeTest, L22BiasesStay) {
  testing::TinySizes sizes;
  sizes.qkv_bias = sizes.o_bias = sizes.mlp_bias = true;
  TinyModel llama = MakeModel(sizes);
  llama.config["attention_bias"] = llama.config["mlp_bias"] = true;
  for (const TinyModel& model : {testing::Tq2(), llama}) {
    const auto merged = MergeTiny(model, MakeAdapter(model, 4, 8, {"q_proj", "down_proj"}));
    ASSERT_THAT(merged, IsOk());
    EXPECT_EQ(merged->report.tensors_out, merged->report.tensors_in);
    int64_t biases = 0;
    for (const auto& [name, tensor] : model.tensors) {
      if (!name.ends_with(".bias")) continue;
      ++biases;
      EXPECT_EQ(merged->tensors.at(name).values, tensor.values) << name;
    }
    EXPECT_EQ(biases, model.config["model_type"] == "qwen2" ? 6 : 14);
  }
}

TEST_F(MergeTest, SeveralAdaptersAddUpByWeight) {
  const TinyModel model = testing::Tl3();
  const TinyAdapter first = MakeAdapter(model, 4, 8, {"q_proj"}, 1);
  const TinyAdapter second = MakeAdapter(model, 2, 6, {"q_proj"}, 2);
  testing::WriteModel(Base(), model);
  testing::WriteAdapter(directory_ / "first", first);
  testing::WriteAdapter(directory_ / "second", second);
  ASSERT_THAT(Match({{directory_ / "first", 0.5}, {directory_ / "second", -1.5}}), IsOk());
  const auto merged = Merge();
  ASSERT_THAT(merged, IsOk());
  EXPECT_EQ(merged->report.adapter_tensors, 8);
  std::vector<double> sum = Product(first.tensors.at(kKeyQ0 + ".lora_B.weight"),
                                    first.tensors.at(kKeyQ0 + ".lora_A.weight"));
  const std::vector<double> other = Product(second.tensors.at(kKeyQ0 + ".lora_B.weight"),
                                            second.tensors.at(kKeyQ0 + ".lora_A.weight"));
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = 0.5 * 2 * sum[i] - 1.5 * 3 * other[i];
  const std::string name = std::string(kQ0) + ".weight";
  EXPECT_LT(MaxError(merged->tensors.at(name), model.tensors.at(name), 1.0, sum), 1e-6);
}

TEST_F(MergeTest, AdaptersThatDoNotGoTogether) {
  const TinyModel model = testing::Tq2();
  testing::WriteModel(Base(), model);
  TinyAdapter plain = MakeAdapter(model, 4, 8, {"q_proj"}, 1);
  TinyAdapter dora = plain;
  dora.config["use_dora"] = true;
  for (const char* layer : {"0", "1"}) {
    dora.tensors["base_model.model.model.layers." + std::string(layer) +
                 ".self_attn.q_proj.lora_magnitude_vector"] = {
        {32}, std::vector<float>(32, 1.0f), "F32"};
  }
  testing::WriteAdapter(directory_ / "plain", plain);
  testing::WriteAdapter(directory_ / "dora", dora);
  EXPECT_THAT(Match({{directory_ / "plain", 1.0}, {directory_ / "dora", 1.0}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("DoRA alone")));

  plain.config["modules_to_save"] = {"lm_head"};
  for (const float value : {1.0f, 2.0f}) {
    plain.tensors["base_model.model.lm_head.weight"] = {
        {64, 32}, std::vector<float>(64 * 32, value), "F32"};
    testing::WriteAdapter(directory_ / (value == 1.0f ? "one" : "two"), plain);
  }
  EXPECT_THAT(Match({{directory_ / "one", 1.0}, {directory_ / "one", 1.0}}), IsOk());
  EXPECT_THAT(Match({{directory_ / "one", 1.0}, {directory_ / "two", 1.0}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("lm_head.weight")));
}

TEST_F(MergeTest, WeightOfASavedModuleBlends) {
  const TinyModel model = testing::Tq2();
  TinyAdapter adapter = MakeAdapter(model, 4, 8, {"q_proj"});
  adapter.config["modules_to_save"] = {"lm_head"};
  adapter.tensors["base_model.model.lm_head.weight"] = {
      {64, 32}, std::vector<float>(64 * 32, 1.0f), "F32"};
  testing::WriteModel(Base(), model);
  testing::WriteAdapter(directory_ / "adapter", adapter);
  ASSERT_THAT(Match({{directory_ / "adapter", 0.25}}), IsOk());
  const auto merged = Merge();
  ASSERT_THAT(merged, IsOk());
  const float base = model.tensors.at("lm_head.weight").values[7];
  EXPECT_FLOAT_EQ(merged->tensors.at("lm_head.weight").values[7], base + 0.25f * (1 - base));
}

TEST_F(MergeTest, NanInTheAdapterFails) {
  const TinyModel model = testing::Tl3();
  TinyAdapter adapter = MakeAdapter(model, 4, 8, {"q_proj"});
  adapter.tensors[kKeyQ0 + ".lora_B.weight"].values[0] = std::nanf("");
  const auto merged = MergeTiny(model, adapter);
  ASSERT_THAT(merged, IsOk());
  EXPECT_EQ(merged->report.nonfinite, 32);
  EXPECT_THAT(merged->report.nonfinite_tensors, ElementsAre(std::string(kQ0) + ".weight"));
  EXPECT_THAT(merged->report.failures, ElementsAre(HasSubstr("NaN")));
}

TEST_F(MergeTest, InfinityInTheBaseIsSeenThoughTheTensorIsCopied) {
  TinyModel model = testing::Tl3();
  model.tensors["model.norm.weight"].dtype = "F16";
  model.tensors["model.norm.weight"].values[3] = 1e6f;  // past the largest half
  const auto merged = MergeTiny(model, MakeAdapter(model, 4, 8, {"q_proj"}));
  ASSERT_THAT(merged, IsOk());
  EXPECT_EQ(merged->report.nonfinite, 1);
  EXPECT_THAT(merged->report.nonfinite_tensors, ElementsAre("model.norm.weight"));
}

TEST_F(MergeTest, TypesStayAsStoredOrBecomeTheOneAskedFor) {
  TinyModel model = testing::Tl3();
  for (auto& [name, tensor] : model.tensors) tensor.dtype = "BF16";
  model.tensors["model.norm.weight"].dtype = "F32";
  model.config["torch_dtype"] = "bfloat16";
  const TinyAdapter adapter = MakeAdapter(model, 4, 8, {"q_proj"});
  const auto kept = MergeTiny(model, adapter);
  ASSERT_THAT(kept, IsOk());
  EXPECT_EQ(kept->tensors.at("model.norm.weight").dtype, "F32");
  EXPECT_EQ(kept->tensors.at(std::string(kQ0) + ".weight").dtype, "BF16");
  EXPECT_EQ(kept->config["torch_dtype"], "bfloat16");
  MergeOptions options;
  options.dtype = DType::kFloat16;
  const auto half = MergeTiny(model, adapter, options);
  ASSERT_THAT(half, IsOk());
  for (const auto& [name, tensor] : half->tensors) EXPECT_EQ(tensor.dtype, "F16") << name;
  for (const TensorOutcome& outcome : half->report.tensors) EXPECT_EQ(outcome.dtype, "F16");
  EXPECT_EQ(half->config["torch_dtype"], "float16");
  options.dtype = DType::kInt8;
  EXPECT_THAT(MergeTiny(model, adapter, options),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("int8")));
}

TEST_F(MergeTest, SplitsOneFileThatGrowsTooLarge) {
  const TinyModel model = testing::Tl3();
  MergeOptions options;
  options.max_shard_bytes = 40000;
  const TinyAdapter adapter = MakeAdapter(model, 4, 8, {"q_proj"});
  const auto whole = MergeTiny(model, adapter);
  ASSERT_THAT(whole, IsOk());
  EXPECT_TRUE(std::filesystem::exists(Out() / "model.safetensors"));
  const auto split = MergeTiny(model, adapter, options);
  ASSERT_THAT(split, IsOk());
  EXPECT_THAT(split->report.failures, IsEmpty());
  const auto index = nlohmann::json::parse(testing::Slurp(Out() / "model.safetensors.index.json"));
  EXPECT_EQ(index["weight_map"].size(), model.tensors.size());
  int64_t bytes = 0;
  for (const auto& [name, tensor] : model.tensors) bytes += 4 * NumElements(tensor.shape);
  EXPECT_EQ(index["metadata"]["total_size"], bytes);
  EXPECT_GT(std::distance(std::filesystem::directory_iterator(Out()), {}), 4);
  for (const auto& [name, tensor] : whole->tensors) {
    EXPECT_EQ(split->tensors.at(name).values, tensor.values) << name;
  }
}

TEST_F(MergeTest, ShardsStayAsTheyWere) {
  const TinyModel model = testing::Tl3();
  std::filesystem::create_directories(Base());
  testing::Spill(Base() / "config.json", model.config.dump());
  testing::TinyTensors parts[2];
  nlohmann::json map;
  for (const auto& [name, tensor] : model.tensors) {
    const bool second = name.find("layers.1") != std::string::npos;
    parts[second ? 1 : 0][name] = tensor;
    map[name] = second ? "b.safetensors" : "a.safetensors";
  }
  testing::WriteSafetensors(Base() / "a.safetensors", parts[0]);
  testing::WriteSafetensors(Base() / "b.safetensors", parts[1]);
  testing::Spill(Base() / "model.safetensors.index.json",
                 nlohmann::json{{"weight_map", map}}.dump());
  testing::WriteAdapter(directory_ / "adapter", MakeAdapter(model, 4, 8, {"q_proj"}));
  ASSERT_THAT(Match({{directory_ / "adapter", 1.0}}), IsOk());
  ASSERT_THAT(Merge(), IsOk());
  const auto index = nlohmann::json::parse(testing::Slurp(Out() / "model.safetensors.index.json"));
  EXPECT_EQ(index["weight_map"], map);
}

}  // namespace
}  // namespace hexport::adapter
