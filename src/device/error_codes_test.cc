#include "device/error_codes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hexport::device {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ErrorCodesTest, EveryCodeSeenInTheFieldHasAdvice) {
  for (const int64_t code :
       {1002, 1007, 8002, 1009, 30002, 5000, 5004, 5005, 14001, 1008, 0x138d}) {
    const auto advice = ExplainErrorCode(code, "");
    ASSERT_TRUE(advice.has_value()) << code;
    EXPECT_EQ(advice->code, code);
    EXPECT_FALSE(advice->meaning.empty());
    EXPECT_FALSE(advice->action.empty());
  }
}

TEST(ErrorCodesTest, UnknownCodeHasNone) {
  EXPECT_FALSE(ExplainErrorCode(0, "").has_value());
  EXPECT_FALSE(ExplainErrorCode(1001, "").has_value());
  EXPECT_FALSE(ExplainErrorCode(-1002, "").has_value());
}

TEST(ErrorCodesTest, VtcmInTheLogChangesTheMeaningOf5005) {
  EXPECT_THAT(ExplainErrorCode(0x138d, "VTCM size 8 MB unsupported")->meaning, HasSubstr("VTCM"));
  EXPECT_THAT(ExplainErrorCode(0x138d, "")->meaning, HasSubstr("version"));
}

TEST(ErrorCodesTest, FindsADecimalCodeInALog) {
  const auto advice = ExplainLog("[ERROR] Could not create context from binary, Error code: 5000");
  ASSERT_TRUE(advice.has_value());
  EXPECT_EQ(advice->code, 5000);
}

TEST(ErrorCodesTest, FindsAHexadecimalCodeInALog) {
  const auto advice = ExplainLog("deserialize failed with 0x138D, vtcm size of 16 is unsupported");
  ASSERT_TRUE(advice.has_value());
  EXPECT_THAT(advice->meaning, HasSubstr("VTCM"));
}

TEST(ErrorCodesTest, SkipsUnknownCodesBeforeAKnownOne) {
  const auto advice = ExplainLog("status 7\nmemRegister err = 8002");
  ASSERT_TRUE(advice.has_value());
  EXPECT_EQ(advice->code, 8002);
}

TEST(ErrorCodesTest, OtherNumbersAreNoCodes) {
  EXPECT_FALSE(ExplainLog("allocated 1002 bytes in 5000 us").has_value());
  EXPECT_FALSE(ExplainLog("error in line\n1002 bytes read").has_value());
  EXPECT_FALSE(ExplainLog("error v1002 1002mb 99999999999999999999").has_value());
  EXPECT_FALSE(ExplainLog("").has_value());
}

TEST(ErrorCodesTest, TextHoldsCodeMeaningAndAction) {
  EXPECT_THAT(FormatAdvice(*ExplainErrorCode(1009, "")),
              AllOf(HasSubstr("error 1009: "), HasSubstr("another SoC"), HasSubstr("--soc")));
}

}  // namespace
}  // namespace hexport::device
