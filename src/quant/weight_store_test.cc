#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "quant/fake_checkpoint.h"
#include "quant/quant_config.h"
#include "quant/weight_store_writer.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::HasSubstr;

constexpr int64_t kIn = 64, kOut = 24;

class WeightStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    unsigned seed = 1;
    for (const char* name : {"layers.0.a", "layers.0.b", "layers.1.a", "lm_head"}) {
      checkpoint_.Add(name, {kOut, kIn}, RandomValues(kIn * kOut, seed++, 0.2f));
      const bool head = std::string(name) == "lm_head";
      graph_.linears.push_back(
          {std::string(name) + ".weight", name, kIn, kOut, 1.0, head, head ? -1 : 0, 0});
    }
  }

  Status Write(LinearOptions options_of) {
    HEXPORT_ASSIGN_OR_RETURN(const auto writer,
                             WeightStoreWriter::Create(checkpoint_, graph_, std::move(options_of),
                                                       path_, NullProgress()));
    for (const decoder::LinearWeight& linear : graph_.linears)
      HEXPORT_RETURN_IF_ERROR(writer->AppendRtn(linear));
    return writer->Commit();
  }

  void TearDown() override { std::filesystem::remove(path_); }

  FakeCheckpoint checkpoint_;
  decoder::DecoderGraph graph_;
  const std::filesystem::path path_ =
      std::filesystem::path(::testing::TempDir()) / "hexport_weight_store_test.safetensors";
};

TEST_F(WeightStoreTest, EachLinearHasTheFormatOfItsPlan) {
  QuantConfig config;
  config.weights = {WeightFormat::kLpbq, 32};
  config.linears = {{"layers.1.*", WeightFormat::kInt4, {}, {}},
                    {"*.b", {}, 16, {}},
                    {"lm_head", WeightFormat::kLpbq, 16, {}}};
  ASSERT_THAT(Write([&config](const decoder::LinearWeight& linear) {
                return PlanLinear(config, linear).weights;
              }),
              IsOk());
  const auto store = WeightStore::Open(path_);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  for (const decoder::LinearWeight& linear : graph_.linears) {
    const WeightOptions expected = PlanLinear(config, linear).weights;
    const Result<QuantizedWeight> got = (*store)->Read(linear.name);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    std::vector<float> weights(static_cast<size_t>(kIn * kOut));
    ASSERT_THAT(decoder::ReadLinear(checkpoint_, linear, weights), IsOk());
    const Result<QuantizedWeight> alone = QuantizeRtn(weights, kIn, kOut, expected);
    ASSERT_TRUE(alone.ok());
    EXPECT_EQ(got->format, expected.format) << linear.name;
    EXPECT_EQ(got->block_size, alone->block_size) << linear.name;
    EXPECT_EQ(got->codes, alone->codes) << linear.name;
    EXPECT_EQ(got->block_scales, alone->block_scales) << linear.name;
  }
}

TEST_F(WeightStoreTest, UniformOptionsKeepTheOutputProjectionAtInt8) {
  ASSERT_THAT(Write(UniformOptions({WeightFormat::kLpbq, 32})), IsOk());
  const auto store = WeightStore::Open(path_);
  ASSERT_TRUE(store.ok());
  EXPECT_EQ((*store)->Describe("lm_head.weight")->format, WeightFormat::kInt8);
  EXPECT_EQ((*store)->Describe("layers.0.a.weight")->format, WeightFormat::kLpbq);
}

TEST_F(WeightStoreTest, WrongBlockIsNamedWithItsLinear) {
  EXPECT_THAT(Write(UniformOptions({WeightFormat::kLpbq, 24})),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("layers.0.a.weight: LPBQ block_size: expected 16, 32 or 64")));
}

}  // namespace
}  // namespace hexport::quant
