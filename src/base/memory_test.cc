#include "base/memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

namespace hexport {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

TEST(MemoryTest, PeakGrowsWithTouchedMemory) {
  if (!ResetPeakRss()) GTEST_SKIP() << "the kernel does not let the peak be reset";
  const int64_t before = PeakRssBytes();
  ASSERT_GT(before, 0);
  const auto block = std::make_unique_for_overwrite<char[]>(64 * kMebibyte);
  std::memset(block.get(), 1, 64 * kMebibyte);
  EXPECT_GE(PeakRssBytes(), before + 32 * kMebibyte);
}

TEST(MemoryTest, ResetForgetsAnEarlierPeak) {
  {
    const auto block = std::make_unique_for_overwrite<char[]>(128 * kMebibyte);
    std::memset(block.get(), 1, 128 * kMebibyte);
  }
  const int64_t peak = PeakRssBytes();
  if (!ResetPeakRss()) GTEST_SKIP() << "the kernel does not let the peak be reset";
#if !defined(__SANITIZE_ADDRESS__)  // it keeps freed memory resident
  EXPECT_LT(PeakRssBytes(), peak - 64 * kMebibyte);
#else
  EXPECT_LE(PeakRssBytes(), peak);
#endif
}

}  // namespace
}  // namespace hexport
