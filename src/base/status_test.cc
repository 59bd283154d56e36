#include "base/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>

#include "base/status_matchers.h"

namespace hexport {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::HasSubstr;

Result<int> Half(int value) {
  if (value % 2 != 0) return InvalidArgument("odd");
  return value / 2;
}

Result<int> Quarter(int value) {
  HEXPORT_ASSIGN_OR_RETURN(const int half, Half(value));
  return Half(half);
}

TEST(StatusTest, ContextComesFirstAndOkStaysOk) {
  EXPECT_EQ(DataLoss("bad").WithContext("file").ToString(), "corrupt data: file: bad");
  EXPECT_THAT(OkStatus().WithContext("file"), IsOk());
}

TEST(StatusTest, ErrnoKeepsItsKind) {
  const auto code = [](int error) { return ErrnoStatus(error, "x").code(); };
  EXPECT_EQ(code(ENOENT), StatusCode::kNotFound);
  EXPECT_EQ(code(EACCES), StatusCode::kPermissionDenied);
  EXPECT_EQ(code(ENOSPC), StatusCode::kResourceExhausted);
  EXPECT_EQ(code(EFBIG), StatusCode::kResourceExhausted);
  EXPECT_EQ(code(EISDIR), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(EIO), StatusCode::kInternal);
}

TEST(ResultTest, MacroPassesValuesAndErrors) {
  ASSERT_THAT(Quarter(8), IsOk());
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_THAT(Quarter(6), StatusIs(StatusCode::kInvalidArgument, HasSubstr("odd")));
}

TEST(ResultTest, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  const std::unique_ptr<int> value = *std::move(result);
  EXPECT_EQ(*value, 7);
}

TEST(ResultTest, OkStatusWithoutValueIsAnInternalError) {
  EXPECT_THAT(Result<int>(OkStatus()),
              StatusIs(StatusCode::kInternal, HasSubstr("without a value")));
}

TEST(ResultDeathTest, ReadingAFailedResultEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)*Half(3), "odd");
}

}  // namespace
}  // namespace hexport
