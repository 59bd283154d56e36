// L16: a GGUF as the base, dequantized only when that was asked for.
#include "adapter/gguf_base.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "adapter/merge_fixture.h"
#include "checkpoint/checkpoint.h"

namespace hexport::adapter {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;
using testing::TinyAdapter;
using testing::TinyModel;

// The files of src/checkpoint's tests: the same tiny models as GGUF and as Hugging Face folders.
const std::filesystem::path kGguf = std::filesystem::path(HEXPORT_TEST_DATA) / "checkpoint";

class GgufBaseTest : public MergeTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(GgufBaseTest, L16DequantizesOnlyWhenAsked) {
  base_path_ = kGguf / (std::string(GetParam()) + ".gguf");
  const auto checkpoint = Checkpoint::Open(base_path_);
  ASSERT_THAT(checkpoint, IsOk());
  // A matching adapter, and its merge computed from what Checkpoint reads.
  TinyModel model;
  for (const TensorInfo& info : (*checkpoint)->tensors()) {
    testing::TinyTensor tensor{
        info.shape, std::vector<float>(static_cast<size_t>(NumElements(info.shape))), "F32"};
    ASSERT_THAT((*checkpoint)->Read(info.name, tensor.values), IsOk());
    model.tensors[info.name] = std::move(tensor);
  }
  const TinyAdapter adapter = testing::MakeAdapter(model, 2, 4, {"q_proj"});
  testing::WriteAdapter(directory_ / "adapter", adapter);
  bool quantized = false;
  for (const TensorInfo& info : (*checkpoint)->tensors()) {
    quantized = quantized || info.stored_dtype.starts_with("Q");
  }
  if (quantized) {
    EXPECT_THAT(Match({{directory_ / "adapter", 1.0}}),
                StatusIs(StatusCode::kUnimplemented, HasSubstr("quantized GGUF")));
  }
  BaseOptions base_options;
  base_options.dequantize = true;
  ASSERT_THAT(Match({{directory_ / "adapter", 1.0}}, {}, base_options), IsOk());
  EXPECT_EQ(base_->dequantized(), quantized);

  MergeOptions options;
  options.dtype = DType::kFloat32;
  const auto exact = Merge(options);
  ASSERT_THAT(exact, IsOk());
  EXPECT_THAT(exact->report.failures, IsEmpty());
  EXPECT_EQ(exact->report.base_sha256.size(), 64u);
  EXPECT_EQ(!exact->report.warnings.empty(), quantized);
  if (quantized) {
    EXPECT_THAT(exact->report.warnings, Contains(HasSubstr("were dequantized")));
  }
  for (const auto& [name, tensor] : model.tensors) {
    const std::string key = "base_model.model." + name.substr(0, name.rfind('.'));
    const auto a = adapter.tensors.find(key + ".lora_A.weight");
    if (a == adapter.tensors.end() || name.ends_with(".bias")) {
      EXPECT_EQ(exact->tensors.at(name).values, tensor.values) << name;
    } else {
      const auto product = testing::Product(adapter.tensors.at(key + ".lora_B.weight"), a->second);
      EXPECT_LT(MaxError(exact->tensors.at(name), tensor, 2.0, product), 1e-6) << name;
    }
  }

  // The folder written is a checkpoint with the same config; float16 when no type is named.
  const auto half = Merge();
  ASSERT_THAT(half, IsOk());
  for (const auto& [name, tensor] : half->tensors) EXPECT_EQ(tensor.dtype, "F16") << name;
  EXPECT_EQ(half->config["torch_dtype"], "float16");
  const auto written = Checkpoint::Open(Out());
  ASSERT_THAT(written, IsOk());
  const ModelConfig& before = (*checkpoint)->config();
  const ModelConfig& after = (*written)->config();
  EXPECT_EQ(after.architecture, before.architecture);
  EXPECT_EQ(after.head_dim, before.head_dim);
  EXPECT_EQ(after.rope.rope_theta, before.rope.rope_theta);
  EXPECT_EQ(after.rope.scaling.type, before.rope.scaling.type);
  EXPECT_EQ(after.rope.scaling.factor, before.rope.scaling.factor);
  EXPECT_EQ(after.rms_norm_eps, before.rms_norm_eps);
  EXPECT_EQ(after.tie_word_embeddings, before.tie_word_embeddings);
  EXPECT_EQ(after.attention_bias, before.attention_bias);
  EXPECT_EQ(after.mlp_bias, before.mlp_bias);
  EXPECT_EQ(after.eos_token_ids, before.eos_token_ids);
}

INSTANTIATE_TEST_SUITE_P(Models, GgufBaseTest,
                         ::testing::Values("llama", "llama_bias", "qwen2", "qwen3"));

TEST(HfConfigJsonTest, RefusesArchitecturesItDoesNotWrite) {
  ModelConfig config;
  config.architecture = "mamba";
  EXPECT_THAT(HfConfigJson(config, "here"),
              StatusIs(StatusCode::kUnimplemented, AllOf(HasSubstr("here"), HasSubstr("mamba"))));
}

}  // namespace
}  // namespace hexport::adapter
