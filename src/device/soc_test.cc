#include "device/soc.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/status_matchers.h"

namespace hexport::device {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SocTest, Sm8650HasTheCompilersNumbers) {
  const Result<Soc> soc = FindSoc("sm8650");
  ASSERT_THAT(soc, IsOk());
  EXPECT_EQ(soc->marketing, "Snapdragon 8 Gen 3");
  EXPECT_EQ(soc->soc_model, 57);
  EXPECT_EQ(soc->htp_arch, 75);
  EXPECT_EQ(soc->vtcm_mb, 8);
}

TEST(SocTest, CaseAndDashesDoNotMatter) {
  for (const char* name : {"SM8650", "sm-8650", "Sm_8650", "SM 8650"}) {
    const Result<Soc> soc = FindSoc(name);
    ASSERT_THAT(soc, IsOk()) << name;
    EXPECT_EQ(soc->name, "sm8650");
  }
}

TEST(SocTest, AliasesLeadToTheirChip) {
  EXPECT_EQ(FindSoc("SC8380XP")->name, "xelite");
  EXPECT_EQ(FindSoc("X-Elite")->soc_model, 60);
  EXPECT_EQ(FindSoc("SA8295P")->soc_model, 39);
}

TEST(SocTest, UnknownNameListsTheKnownOnes) {
  EXPECT_THAT(FindSoc("sm9999"),
              StatusIs(StatusCode::kUnimplemented,
                       AllOf(HasSubstr("\"sm9999\""), HasSubstr("sm8650"), HasSubstr("xelite"))));
  EXPECT_THAT(FindSoc(""), StatusIs(StatusCode::kUnimplemented, HasSubstr("\"\"")));
}

TEST(SocTest, Sm8350HasHalfTheVtcmAndNeitherFeature) {
  const Result<Soc> soc = FindSoc("sm8350");
  ASSERT_THAT(soc, IsOk());
  EXPECT_EQ(soc->vtcm_mb, 4);
  EXPECT_FALSE(soc->supports_lpbq);
  EXPECT_FALSE(soc->supports_weight_sharing);
}

TEST(SocTest, V69HasLpbqButNoWeightSharing) {
  const Result<Soc> soc = FindSoc("sm8475");
  ASSERT_THAT(soc, IsOk());
  EXPECT_EQ(soc->htp_arch, 69);
  EXPECT_TRUE(soc->supports_lpbq);
  EXPECT_FALSE(soc->supports_weight_sharing);
}

TEST(SocTest, V73SharesWeights) { EXPECT_TRUE(FindSoc("sm8550")->supports_weight_sharing); }

TEST(SocTest, EveryNameFindsItselfAndNumbersAreUnique) {
  std::set<int> models;
  for (const Soc& soc : AllSocs()) {
    const Result<Soc> found = FindSoc(soc.name);
    ASSERT_THAT(found, IsOk());
    EXPECT_EQ(found->soc_model, soc.soc_model);
    EXPECT_TRUE(models.insert(soc.soc_model).second) << soc.name;
  }
  EXPECT_EQ(models.size(), 11u);
}

}  // namespace
}  // namespace hexport::device
