#include "ort/log_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hexport::ort {
namespace {

using ::testing::ElementsAre;

TEST(LogRingTest, KeepsTheLastLines) {
  LogRing ring(2);
  for (const char* line : {"a", "b", "c"}) ring.Add(line);
  EXPECT_THAT(ring.LinesSince(0), ElementsAre("b", "c"));
}

TEST(LogRingTest, GivesOnlyLinesAfterTheMark) {
  LogRing ring(8);
  ring.Add("before");
  const uint64_t mark = ring.Mark();
  EXPECT_THAT(ring.LinesSince(mark), ElementsAre());
  ring.Add("after");
  EXPECT_THAT(ring.LinesSince(mark), ElementsAre("after"));
}

TEST(LogRingTest, MarkOutlivesItsLines) {
  LogRing ring(2);
  const uint64_t mark = ring.Mark();
  for (const char* line : {"a", "b", "c"}) ring.Add(line);
  EXPECT_THAT(ring.LinesSince(mark), ElementsAre("b", "c"));
}

}  // namespace
}  // namespace hexport::ort
