#include "ort/qnn_version.h"

#include <gtest/gtest.h>

#include <string>

namespace hexport::ort {
namespace {

TEST(QnnVersionTest, FindsTheBuildIdAmongBytes) {
  EXPECT_EQ(FindBuildId(std::string("v1.2\0v2.x v2.51.0.260929181845.\n", 32)),
            "2.51.0.260929181845");
}

TEST(QnnVersionTest, FindsItAtTheVeryEnd) {
  EXPECT_EQ(FindBuildId("xxv2.36.1.123456789"), "2.36.1.123456789");
}

TEST(QnnVersionTest, ShortNumbersAreNoBuildId) {
  EXPECT_EQ(FindBuildId("v2.51.0.2609"), "");
  EXPECT_EQ(FindBuildId("v2.51.0"), "");
  EXPECT_EQ(FindBuildId("v"), "");
  EXPECT_EQ(FindBuildId(""), "");
}

TEST(QnnVersionTest, ReadsTheWheelsPackageInfo) {
  EXPECT_EQ(VersionOfPackageInfo("__version__ = '2.7.0'\nqnn_version = '2.51.0'\n"), "2.51.0");
  EXPECT_EQ(VersionOfPackageInfo("qnn_version = \"2.51.0\""), "2.51.0");
}

TEST(QnnVersionTest, PackageInfoWithoutAVersionIsEmpty) {
  EXPECT_EQ(VersionOfPackageInfo(""), "");
  EXPECT_EQ(VersionOfPackageInfo("qnn_version = \nname = 'x'"), "");
  EXPECT_EQ(VersionOfPackageInfo("qnn_version = '2.51"), "");
}

}  // namespace
}  // namespace hexport::ort
