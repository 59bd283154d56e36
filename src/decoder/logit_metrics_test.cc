#include "decoder/logit_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace hexport::decoder {
namespace {

// Reference and engine logits of three positions over five tokens, and the tokens that follow.
const std::vector<std::vector<float>> kReference = {{1.5f, -0.25f, 0.75f, 2.0f, -1.0f},
                                                    {0.5f, 0.5f, -2.0f, 1.25f, 3.0f},
                                                    {-4.0f, 2.5f, 2.5f, 0.0f, 1.0f}};
const std::vector<std::vector<float>> kEngine = {{1.25f, 0.0f, 1.0f, 1.75f, -0.5f},
                                                 {0.25f, 3.5f, -1.5f, 1.0f, 2.75f},
                                                 {-3.0f, 2.25f, 2.75f, 0.5f, 0.25f}};
const std::vector<int32_t> kNext = {3, 1, 2};

// The figures below are numpy's, in float64, from log-softmax of whole rows.
TextMetrics Measured(size_t piece, bool compared) {
  TextMetrics metrics;
  for (size_t row = 0; row < kNext.size(); ++row) {
    Position position(kNext[row]);
    for (size_t first = 0; first < 5; first += piece) {
      const size_t count = std::min(piece, 5 - first);
      const std::span<const float> engine(kEngine[row]), reference(kReference[row]);
      position.Add(static_cast<int64_t>(first), engine.subspan(first, count),
                   compared ? reference.subspan(first, count) : std::span<const float>());
    }
    metrics.Add(position, compared);
  }
  return metrics;
}

TEST(TextMetrics, AgreesWithNumpy) {
  const TextMetrics metrics = Measured(5, true);
  EXPECT_EQ(metrics.tokens(), 3);
  EXPECT_NEAR(metrics.Perplexity(), 1.8927252674687116, 1e-12);
  EXPECT_NEAR(metrics.ReferencePerplexity(), 4.2616304168688455, 1e-12);
  EXPECT_NEAR(metrics.Divergence(), 0.2677165655134394, 1e-12);
  EXPECT_DOUBLE_EQ(metrics.Top1(), 1.0 / 3.0);
  EXPECT_NEAR(metrics.Cosine(), 0.9057089291428378, 1e-12);
}

TEST(TextMetrics, DoesNotDependOnThePieces) {
  for (const size_t piece : {1U, 2U, 3U, 4U}) {
    const TextMetrics metrics = Measured(piece, true);
    EXPECT_NEAR(metrics.Perplexity(), 1.8927252674687116, 1e-12) << piece;
    EXPECT_NEAR(metrics.ReferencePerplexity(), 4.2616304168688455, 1e-12) << piece;
    EXPECT_NEAR(metrics.Divergence(), 0.2677165655134394, 1e-12) << piece;
    EXPECT_DOUBLE_EQ(metrics.Top1(), 1.0 / 3.0) << piece;
  }
}

TEST(TextMetrics, NeedsNoReferenceForPerplexity) {
  const TextMetrics metrics = Measured(2, false);
  EXPECT_NEAR(metrics.Perplexity(), 1.8927252674687116, 1e-12);
  EXPECT_EQ(metrics.ReferencePerplexity(), 0);
  EXPECT_EQ(metrics.Top1(), 0);
}

TEST(TextMetrics, OfNothingIsZero) {
  const TextMetrics metrics;
  EXPECT_EQ(metrics.Perplexity(), 0);
  EXPECT_EQ(metrics.Divergence(), 0);
}

TEST(Position, OfEqualLogitsHasNoDivergence) {
  Position position(0);
  position.Add(0, kReference[0], kReference[0]);
  EXPECT_NEAR(position.Divergence(), 0, 1e-15);
  EXPECT_TRUE(position.SameBest());
  EXPECT_NEAR(position.Cosine(), 1, 1e-15);
}

// Shifting all logits changes no probability; large logits must not overflow.
TEST(Position, StandsLargeLogits) {
  std::vector<float> shifted = kReference[0];
  for (float& logit : shifted) logit += 30000.0f;
  Position position(2);
  position.Add(0, shifted, kReference[0]);
  EXPECT_NEAR(position.Divergence(), 0, 1e-10);
  EXPECT_NEAR(position.Loss(), position.ReferenceLoss(), 1e-10);
}

TEST(Position, TellsNotANumberAndInfinity) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    Position engine(0), reference(0);
    engine.Add(0, std::vector<float>{1, bad}, {});
    EXPECT_FALSE(engine.finite());
    reference.Add(0, std::vector<float>{1, 2}, std::vector<float>{bad, 2});
    EXPECT_FALSE(reference.finite());
  }
}

TEST(OnlineSoftmax, TakesTheLowestOfEqualBestTokens) {
  OnlineSoftmax softmax;
  softmax.Add(4, std::vector<float>{0, 7});
  softmax.Add(0, std::vector<float>{7, 7});
  EXPECT_EQ(softmax.best(), 0);
  EXPECT_NEAR(softmax.LogSumExp(), 7 + std::log(3 + std::exp(-7)), 1e-12);
}

}  // namespace
}  // namespace hexport::decoder
