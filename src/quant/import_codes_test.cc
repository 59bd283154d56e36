#include "quant/import_codes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/status_matchers.h"
#include "decoder/decoder.h"
#include "quant/quantize.h"

namespace hexport::quant {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::unique_ptr<Checkpoint> Open(const std::string& name) {
  auto opened = Checkpoint::Open(fs::path(HEXPORT_TEST_DATA) / name);
  EXPECT_THAT(opened, IsOk());
  return opened.ok() ? *std::move(opened) : nullptr;
}

decoder::DecoderGraph GraphOf(const Checkpoint& checkpoint) {
  auto graph = decoder::BuildDecoder(checkpoint, {});
  EXPECT_THAT(graph, IsOk());
  return graph.ok() ? *std::move(graph) : decoder::DecoderGraph();
}

// 4 bits, 64 inputs in groups of 16, 2 outputs; every code 0..15 in turn, zero point 8.
PackedWeight Packed() {
  PackedWeight packed;
  packed.in_features = 64;
  packed.out_features = 2;
  for (int i = 0; i < 128; ++i) packed.codes.push_back(static_cast<uint8_t>(i / 2 % 16));
  packed.scales = {1.0f, 2.0f, 3.0f, 2.0f, 16.0f, 2.0f, 5.0f, 2.0f};
  packed.zero_points.assign(8, 8);
  for (int k = 0; k < 64; ++k) packed.group_of.push_back(k / 16);
  return packed;
}

float RealOf(const PackedWeight& packed, size_t k, size_t n) {
  const size_t at = static_cast<size_t>(packed.group_of[k]) * 2 + n;
  const float offset = packed.offsets.empty() ? 0.0f : packed.offsets[at];
  return (static_cast<float>(packed.codes[k * 2 + n]) - packed.zero_points[at]) *
             packed.scales[at] +
         offset;
}

void ExpectSame(const QuantizedWeight& taken, const PackedWeight& packed, float scale) {
  const std::vector<float> got = Dequantize(taken);
  ASSERT_THAT(got, SizeIs(128));
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_FLOAT_EQ(got[i], scale * RealOf(packed, i / 2, i % 2)) << i;
}

TEST(TakeCodesTest, GroupsBecomeBlocksWithTheirIntegers) {
  const PackedWeight packed = Packed();
  const auto taken = TakeCodes(packed, 0, 2, 0.5);
  ASSERT_THAT(taken, IsOk());
  EXPECT_EQ(taken->weight.format, WeightFormat::kLpbq);
  EXPECT_EQ(taken->weight.block_size, 16);
  EXPECT_LT(taken->scale_error, kExactScaleError);
  EXPECT_THAT(taken->weight.block_scales, ElementsAre(1, 16, 3, 16, 16, 16, 5, 16));
  ExpectSame(taken->weight, packed, 0.5f);
}

TEST(TakeCodesTest, ScalesBetweenIntegersAreRoundedWithinTheBound) {
  PackedWeight packed = Packed();
  packed.scales[0] = 1.02f;
  auto taken = TakeCodes(packed, 0, 2, 1.0);
  ASSERT_THAT(taken, IsOk());
  EXPECT_GT(taken->scale_error, kExactScaleError / 10);
  EXPECT_EQ(taken->weight.codes[0], -8);
  packed.scales = {1.0f, 1.0f, 1e-3f, 1e-3f, 1.5e-3f, 1.5e-3f, 1e-3f, 1e-3f};
  packed.codes.assign(128, 8);  // the large group is all zeros, so only the small ones count
  for (size_t k = 16; k < 64; ++k) packed.codes[k * 2] = 15;
  taken = TakeCodes(packed, 0, 2, 1.0);
  EXPECT_THAT(taken, StatusIs(StatusCode::kUnimplemented, HasSubstr("integers 1 to 16")));
}

TEST(TakeCodesTest, OneScaleAChannelStaysOne) {
  PackedWeight packed = Packed();
  for (size_t i = 0; i < 8; ++i) packed.scales[i] = i % 2 == 0 ? 0.25f : 0.125f;
  const auto taken = TakeCodes(packed, 0, 2, 1.0);
  ASSERT_THAT(taken, IsOk());
  EXPECT_EQ(taken->weight.format, WeightFormat::kInt4);
  EXPECT_THAT(taken->weight.channel_scales, ElementsAre(0.25f, 0.125f));
  ExpectSame(taken->weight, packed, 1.0f);
}

TEST(TakeCodesTest, NegativeScalesTurnTheSigns) {
  PackedWeight packed = Packed();
  packed.scales[2] = -3.0f;
  EXPECT_THAT(TakeCodes(packed, 0, 2, 1.0),  // its code 0 is -8 steps, which +8 would be
              StatusIs(StatusCode::kUnimplemented, HasSubstr("-8 to 7")));
  for (size_t k = 16; k < 32; ++k) packed.codes[k * 2] = static_cast<uint8_t>(1 + k % 15);
  const auto taken = TakeCodes(packed, 0, 2, 1.0);
  ASSERT_THAT(taken, IsOk());
  ExpectSame(taken->weight, packed, 1.0f);
}

TEST(TakeCodesTest, OffsetsOfWholeStepsAreZeroPoints) {
  PackedWeight packed = Packed();
  packed.zero_points.assign(8, 0);
  for (const float scale : packed.scales) packed.offsets.push_back(-8.0f * scale);
  auto taken = TakeCodes(packed, 0, 2, 1.0);
  ASSERT_THAT(taken, IsOk());
  ExpectSame(taken->weight, packed, 1.0f);
  packed.offsets[3] = -7.5f * packed.scales[3];
  taken = TakeCodes(packed, 0, 2, 1.0);
  EXPECT_THAT(taken, StatusIs(StatusCode::kUnimplemented, HasSubstr("offsets")));
}

TEST(TakeCodesTest, WhatNoFormatHoldsIsRefusedWithTheReason) {
  PackedWeight packed = Packed();
  packed.zero_points[5] = 3;
  EXPECT_THAT(TakeCodes(packed, 0, 2, 1.0),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("zero points")));
  packed = Packed();
  std::swap(packed.group_of[0], packed.group_of[20]);
  EXPECT_THAT(TakeCodes(packed, 0, 2, 1.0),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("groups")));
  packed = Packed();
  packed.bits = 8;
  packed.zero_points.assign(8, 128);
  EXPECT_THAT(TakeCodes(packed, 0, 2, 1.0),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("8 bit")));
  packed = Packed();
  packed.scales[1] = NAN;
  EXPECT_THAT(TakeCodes(packed, 0, 2, 1.0), StatusIs(StatusCode::kDataLoss, HasSubstr("scales")));
}

TEST(TakeCodesTest, ColumnsOfAFusedTensorAreTakenAlone) {
  const PackedWeight packed = Packed();
  const auto taken = TakeCodes(packed, 1, 1, 1.0);
  ASSERT_THAT(taken, IsOk());
  EXPECT_EQ(taken->weight.format, WeightFormat::kInt4);
  EXPECT_THAT(taken->weight.channel_scales, ElementsAre(2.0f));
  EXPECT_EQ(taken->weight.codes[9], packed.codes[19] - 8);
}

TEST(TakeCodesTest, DeadGroupsGiveZeros) {
  PackedWeight packed = Packed();
  packed.scales[0] = 0.0f;
  const auto taken = TakeCodes(packed, 0, 2, 1.0);
  ASSERT_THAT(taken, IsOk());
  ExpectSame(taken->weight, packed, 1.0f);
}

struct Held {
  const char* folder;
  WeightFormat format;
};

class ImportTest : public ::testing::TestWithParam<Held> {};

TEST_P(ImportTest, EveryLinearHasTheCodesAndScalesOfTheFile) {
  const auto checkpoint = Open(std::string("packed/") + GetParam().folder);
  ASSERT_NE(checkpoint, nullptr);
  const decoder::DecoderGraph graph = GraphOf(*checkpoint);
  QuantConfig config;
  config.method = Method::kImport;
  const auto plan = PlanImport(*checkpoint, graph, config);
  ASSERT_THAT(plan, IsOk());
  EXPECT_THAT(plan->warnings, SizeIs(0));
  EXPECT_EQ(plan->counts.held, static_cast<int64_t>(graph.linears.size()) - 1);  // not lm_head
  EXPECT_EQ(plan->config.weights.format, GetParam().format);
  const fs::path path = fs::path(::testing::TempDir()) /
                        ("hexport_import_" + std::to_string(getpid()) + ".safetensors");
  WeightQuantization options;
  options.config = plan->config;
  const auto losses = QuantizeModelWeights(*checkpoint, graph, options, {}, path, NullProgress());
  ASSERT_THAT(losses, IsOk());
  const auto store = WeightStore::Open(path);
  fs::remove(path);
  ASSERT_THAT(store, IsOk());
  for (const decoder::LinearWeight& linear : graph.linears) {
    if (linear.lm_head) continue;
    const auto weight = (*store)->Read(linear.name);
    ASSERT_THAT(weight, IsOk());
    EXPECT_EQ(weight->format, GetParam().format);
    const auto packed = checkpoint->ReadPacked(linear.tensor);
    ASSERT_THAT(packed, IsOk());
    const int zero_point = (*packed)->bits == 4 ? 8 : 128;
    std::vector<float> values(weight->codes.size());
    ASSERT_THAT(decoder::ReadLinear(*checkpoint, linear, values), IsOk());
    const std::vector<float> got = Dequantize(*weight);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(weight->codes[i], (*packed)->codes[i] - zero_point) << linear.name << " " << i;
      ASSERT_NEAR(got[i], values[i], 1e-6f * std::abs(values[i])) << linear.name << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, ImportTest,
                         ::testing::Values(Held{"gptq_lpbq", WeightFormat::kLpbq},
                                           Held{"gptq_int4", WeightFormat::kInt4},
                                           Held{"gptq_int8", WeightFormat::kInt8}),
                         [](const auto& info) { return std::string(info.param.folder); });

TEST(PlanImportTest, WhatCannotBeHeldIsQuantizedAnewWithTheReason) {
  for (const auto& [folder, reason] :
       {std::pair{"packed/gptq_v1", "zero points"}, std::pair{"packed/awq", "zero points"},
        std::pair{"packed/gptq_8bit", "zero points"}}) {
    const auto checkpoint = Open(folder);
    ASSERT_NE(checkpoint, nullptr);
    const decoder::DecoderGraph graph = GraphOf(*checkpoint);
    QuantConfig config;
    config.method = Method::kImport;
    config.weights = {WeightFormat::kLpbq, 16};
    const auto plan = PlanImport(*checkpoint, graph, config);
    ASSERT_THAT(plan, IsOk());
    EXPECT_EQ(plan->counts.held, 0);
    EXPECT_EQ(plan->counts.requantized, static_cast<int64_t>(graph.linears.size()) - 1);
    EXPECT_THAT(plan->warnings, Each(AllOf(HasSubstr("quantized anew"), HasSubstr("layers.0."))));
    EXPECT_THAT(plan->warnings.front(), HasSubstr(reason));
    const LinearPlan planned = PlanLinear(plan->config, graph.linears.front());
    EXPECT_EQ(planned.method, Method::kGptq);
    EXPECT_EQ(planned.weights.format, WeightFormat::kLpbq);
    EXPECT_EQ(planned.weights.block_size, 16);
  }
}

TEST(PlanImportTest, ExcludedLinearsOfFourBitsAreQuantizedAnew) {
  const auto checkpoint = Open("packed/gptq_int4");
  ASSERT_NE(checkpoint, nullptr);
  const decoder::DecoderGraph graph = GraphOf(*checkpoint);
  QuantConfig config;
  config.method = Method::kImport;
  config.exclude = {"layers.0.mlp.*"};
  const auto plan = PlanImport(*checkpoint, graph, config);
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(plan->counts.requantized, 3);
  EXPECT_THAT(plan->warnings, ElementsAre(HasSubstr("excludes")));
}

TEST(PlanImportTest, AFloatCheckpointHasNothingToImport) {
  const auto checkpoint = Open("tiny/llama");
  ASSERT_NE(checkpoint, nullptr);
  QuantConfig config;
  config.method = Method::kImport;
  EXPECT_THAT(PlanImport(*checkpoint, GraphOf(*checkpoint), config),
              StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("q_proj"), HasSubstr("F32"))));
}

TEST(PlanImportTest, FoldsWouldChangeTheCodes) {
  const auto checkpoint = Open("packed/gptq_int4");
  ASSERT_NE(checkpoint, nullptr);
  QuantConfig config;
  config.method = Method::kImport;
  config.fold_channels = true;
  EXPECT_THAT(PlanImport(*checkpoint, GraphOf(*checkpoint), config),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("fold_channels")));
}

}  // namespace
}  // namespace hexport::quant
