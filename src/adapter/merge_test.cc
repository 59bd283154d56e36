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

}  // namespace
}  // namespace hexport::adapter
