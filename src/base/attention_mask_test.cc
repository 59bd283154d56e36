#include "base/attention_mask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hexport {
namespace {

using ::testing::ElementsAre;

TEST(AttentionMaskTest, PastIsLeftAlignedAndPaddingSeesNothing) {
  // 3 rows, 2 past columns of which 1 is valid, 2 new tokens.
  EXPECT_THAT(AttentionMask(3, 5, 1, 2, -9.0f), ElementsAre(0, -9, 0, -9, -9,  //
                                                            0, -9, 0, 0, -9,   //
                                                            -9, -9, -9, -9, -9));
}

TEST(AttentionMaskTest, ValuesBeyondAreCut) {
  EXPECT_EQ(AttentionMask(2, 3, 5, 7, -1.0f), AttentionMask(2, 3, 1, 2, -1.0f));
}

TEST(CausalMaskTest, EachTokenSeesItselfAndThoseBefore) {
  EXPECT_THAT(CausalMask(3, -1.0f), ElementsAre(0, -1, -1, 0, 0, -1, 0, 0, 0));
}

// transformers: a key is seen when key > query - window.
TEST(SlidingWindowMaskTest, ATokenSeesWindowTokensWithItself) {
  EXPECT_THAT(CausalMask(4, -1.0f, 2), ElementsAre(0, -1, -1, -1,  //
                                                   0, 0, -1, -1,   //
                                                   -1, 0, 0, -1,   //
                                                   -1, -1, 0, 0));
}

TEST(SlidingWindowMaskTest, TheWindowReachesIntoThePast) {
  // 3 valid past tokens in 4 columns, 2 new ones, window 3: positions 3 and 4 see [1, 3] and [2,
  // 4].
  EXPECT_THAT(AttentionMask(2, 6, 3, 2, -1.0f, 3), ElementsAre(-1, 0, 0, -1, 0, -1,  //
                                                               -1, -1, 0, -1, 0, 0));
}

TEST(SlidingWindowMaskTest, AWindowAsLongAsTheContextMasksNothing) {
  EXPECT_EQ(AttentionMask(2, 6, 4, 2, -1.0f, 6), AttentionMask(2, 6, 4, 2, -1.0f));
  EXPECT_NE(AttentionMask(2, 6, 4, 2, -1.0f, 5), AttentionMask(2, 6, 4, 2, -1.0f));
}

TEST(SlidingWindowMaskTest, AWindowOfOneSeesItselfAlone) {
  EXPECT_THAT(AttentionMask(2, 4, 2, 2, -1.0f, 1), ElementsAre(-1, -1, 0, -1, -1, -1, -1, 0));
}

}  // namespace
}  // namespace hexport
