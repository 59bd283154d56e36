#include "quant/encodings_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/status_matchers.h"
#include "quant/qdq.h"
#include "quant/tiny_model.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::HasSubstr;

const TensorEncoding* Find(const std::vector<TensorEncoding>& list, const std::string& name) {
  const auto found = std::find_if(list.begin(), list.end(),
                                  [&](const TensorEncoding& e) { return e.name == name; });
  return found == list.end() ? nullptr : &*found;
}

TEST(EncodingsExportTest, ActivationsAreThoseOfTheNpusGraph) {
  const TinyModel model("llama");
  const decoder::DecoderGraph graph = model.Graph({});
  QuantConfig config;
  config.activations = {{"layers.0.mlp.gated", 8, false}, {"layers.1.mlp.gated", 8, false}};
  const auto qdq = BuildQdq(graph, model.ranges, *model.store, {config});
  ASSERT_THAT(qdq, IsOk());
  for (const EncodingsSchema schema : {EncodingsSchema::k061, EncodingsSchema::k100}) {
    const auto file = ExportEncodings({graph, model.ranges, *model.store, config}, schema);
    ASSERT_THAT(file, IsOk());
    const auto json = EncodingsFileToJson(*file);
    ASSERT_THAT(json, IsOk());
    const auto read = ParseEncodingsFile(*json, "exported");
    ASSERT_THAT(read, IsOk());
    ASSERT_EQ(read->activations.size(), graph.activations.size());
    for (const TensorEncoding& encoding : read->activations) {
      const Encoding expected = qdq->activations.at(encoding.name);
      const Encoding got = ToEncoding(encoding);
      EXPECT_EQ(got.scale, expected.scale) << encoding.name;
      EXPECT_EQ(got.zero_point, expected.zero_point) << encoding.name;
      EXPECT_EQ(got.bits, expected.bits) << encoding.name;
    }
    EXPECT_EQ(Find(read->activations, "layers.0.mlp.gated")->bits, 8);
    EXPECT_EQ(Find(read->activations, "logits")->bits, 16);
    EXPECT_TRUE(Find(read->activations, "past_key_0_in")->symmetric);
    EXPECT_EQ(Find(read->activations, "past_key_0_in")->offsets[0], -128);
  }
}

TEST(EncodingsExportTest, WeightsAreAsTheirCodesAre) {
  const std::string name = "layers.1.mlp.up_proj.weight";
  const TinyModel model("llama", {WeightFormat::kLpbq, 16});
  const decoder::DecoderGraph graph = model.Graph({});
  const auto file = ExportEncodings({graph, model.ranges, *model.store, {}}, EncodingsSchema::k100);
  ASSERT_THAT(file, IsOk());
  const TensorEncoding* lpbq = Find(file->params, name);
  ASSERT_NE(lpbq, nullptr);
  const auto weight = model.store->Read(name);
  ASSERT_THAT(weight, IsOk());
  EXPECT_EQ(lpbq->type, EncodingType::kLpbq);
  EXPECT_EQ(lpbq->bits, 8);
  EXPECT_EQ(lpbq->compressed_bits, 4);
  EXPECT_EQ(lpbq->scales, weight->channel_scales);
  const auto channels = static_cast<size_t>(weight->out_features);
  const size_t blocks = weight->block_scales.size() / channels;
  for (size_t n = 0; n < channels; ++n) {
    for (size_t b = 0; b < blocks; ++b)
      ASSERT_EQ(lpbq->block_scales[n * blocks + b], weight->block_scales[b * channels + n]);
  }
  EXPECT_EQ(Find(file->params, "lm_head.weight")->type, EncodingType::kPerChannel);
  EXPECT_EQ(Find(file->params, "embed_tokens.weight")->bits, 16);
  const TensorEncoding* norm = Find(file->params, "norm.weight");
  ASSERT_NE(norm, nullptr);
  EXPECT_EQ(norm->bits, 16);
  auto legacy = *file;
  legacy.schema = EncodingsSchema::k061;
  EXPECT_THAT(EncodingsFileToJson(legacy),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("write 1.0.0")));
}

TEST(EncodingsExportTest, Float16ActivationsAreFloat) {
  const TinyModel model("llama");
  const decoder::DecoderGraph graph = model.Graph({});
  QuantConfig config;
  config.float16 = {"layers.0.self_attn.scores"};
  bool known = false;
  for (const decoder::Activation& activation : graph.activations)
    known = known || activation.name == config.float16[0];
  ASSERT_TRUE(known);
  const auto file =
      ExportEncodings({graph, model.ranges, *model.store, config}, EncodingsSchema::k100);
  ASSERT_THAT(file, IsOk());
  const TensorEncoding* scores = Find(file->activations, config.float16[0]);
  ASSERT_NE(scores, nullptr);
  EXPECT_TRUE(scores->is_float);
  EXPECT_EQ(scores->bits, 16);
}

}  // namespace
}  // namespace hexport::quant
