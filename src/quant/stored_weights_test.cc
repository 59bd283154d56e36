#include "quant/stored_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "quant/qdq.h"
#include "quant/tiny_model.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::StatusIs;
using ::testing::HasSubstr;

std::filesystem::path TempFile() {
  return std::filesystem::path(::testing::TempDir()) /
         ("hexport_stored_" + std::to_string(getpid()) + ".safetensors");
}

class StoredWeightsTest : public ::testing::TestWithParam<WeightOptions> {};

TEST_P(StoredWeightsTest, AreThoseThatTheGraphWasMadeFrom) {
  const TinyModel model("llama", GetParam());
  decoder::DecoderOptions options;
  options.ar = 4;
  options.cl = 16;
  const decoder::DecoderGraph decoder = model.Graph(options);
  const auto qdq = BuildQdq(decoder, model.ranges, *model.store);
  ASSERT_TRUE(qdq.ok()) << qdq.status().ToString();
  const std::filesystem::path path = TempFile();
  const Status written = WriteStoredWeights(qdq->graph, path);
  ASSERT_TRUE(written.ok()) << written.ToString();
  const auto store = WeightStore::Open(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  ASSERT_FALSE(decoder.linears.empty());
  for (const decoder::LinearWeight& linear : decoder.linears) {
    const auto expected = model.store->Read(linear.name), got = (*store)->Read(linear.name);
    ASSERT_TRUE(expected.ok() && got.ok()) << linear.name << got.status().ToString();
    EXPECT_EQ(got->format, expected->format);
    EXPECT_EQ(got->block_size, expected->block_size);
    EXPECT_EQ(got->codes, expected->codes);
    EXPECT_EQ(got->channel_scales, expected->channel_scales);
    EXPECT_EQ(got->block_scales, expected->block_scales);
  }
  const auto expected = model.store->EmbeddingEncoding(decoder.embedding);
  const auto got = (*store)->EmbeddingEncoding(decoder.embedding);
  ASSERT_TRUE(expected.ok() && got.ok()) << got.status().ToString();
  EXPECT_EQ(got->scale, expected->scale);
  EXPECT_EQ(got->zero_point, expected->zero_point);
  const std::string table = decoder.embedding + ".uint16";
  const auto entry = model.store->Entry(table), again = (*store)->Entry(table);
  ASSERT_TRUE(entry.ok() && again.ok());
  EXPECT_TRUE(
      std::ranges::equal(model.store->file().Bytes(**entry), (*store)->file().Bytes(**again)));
}

INSTANTIATE_TEST_SUITE_P(Formats, StoredWeightsTest,
                         ::testing::Values(WeightOptions{WeightFormat::kInt8, 32},
                                           WeightOptions{WeightFormat::kInt4, 32},
                                           WeightOptions{WeightFormat::kLpbq, 16}));

TEST(StoredWeights, OfAFloatGraphAreRefused) {
  const TinyModel model("llama");
  EXPECT_THAT(WriteStoredWeights(model.Layer(0).graph, TempFile()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("without weight codes")));
}

}  // namespace
}  // namespace hexport::quant
