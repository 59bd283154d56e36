#include "base/progress.h"

#include <gtest/gtest.h>

namespace hexport {
namespace {

TEST(ProgressTest, NullProgressIsSilentAndAlwaysTheSame) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  NullProgress().Update("stage", 1, 2);
  NullProgress().Note("news");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(&NullProgress(), &NullProgress());
}

}  // namespace
}  // namespace hexport
