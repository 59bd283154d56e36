#include "ort/find_library.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/status_matchers.h"

namespace hexport::ort {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FindLibraryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) /
            (std::string("find_library_") +
             ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  void Touch(const std::string& path) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << "x";
  }
  fs::path root_;
};

TEST(CandidateRootsTest, ConfiguredThenRelativeToTheExecutable) {
  EXPECT_THAT(
      CandidateRoots(nullptr, "/configured", "/app/build/dev", {"../../deps/ort", "../lib"}),
      ElementsAre("/configured", "/app/deps/ort", "/app/build/lib"));
}

TEST(CandidateRootsTest, VariableIsTheOnlyPlace) {
  EXPECT_THAT(CandidateRoots("/mine", "/configured", "/app/bin", {"../lib"}), ElementsAre("/mine"));
}

TEST(CandidateRootsTest, EmptyVariableCountsAsUnset) {
  EXPECT_THAT(CandidateRoots("", "", "/app/bin", {"../lib"}), ElementsAre("/app/lib"));
}

TEST_F(FindLibraryTest, FindsEachLayout) {
  for (const char* path :
       {"a/lib/libonnxruntime.so.1.32.0", "b/libonnxruntime.so.1", "c/capi/libonnxruntime.so"}) {
    Touch(path);
    const Result<fs::path> found = FindOrtLibraryIn({root_ / std::string(path).substr(0, 1)});
    ASSERT_THAT(found, IsOk());
    EXPECT_EQ(*found, root_ / path);
  }
}

TEST_F(FindLibraryTest, PrefersTheShortName) {
  Touch("lib/libonnxruntime.so.1.32.0");
  Touch("lib/libonnxruntime.so.1");
  EXPECT_EQ(*FindOrtLibraryIn({root_}), root_ / "lib/libonnxruntime.so.1");
}

TEST_F(FindLibraryTest, EarlierRootWins) {
  Touch("first/libonnxruntime.so");
  Touch("second/libonnxruntime.so");
  EXPECT_EQ(*FindOrtLibraryIn({root_ / "none", root_ / "first", root_ / "second"}),
            root_ / "first/libonnxruntime.so");
}

TEST_F(FindLibraryTest, MissingOrtNamesPlacesAndRemedy) {
  EXPECT_THAT(FindOrtLibraryIn({root_ / "here", root_ / "there"}),
              StatusIs(StatusCode::kUnavailable, AllOf(HasSubstr((root_ / "here").string()),
                                                       HasSubstr((root_ / "there").string()),
                                                       HasSubstr("HEXPORT_ORT_ROOT"))));
}

TEST_F(FindLibraryTest, FindsQnnFolderBelowRoot) {
  for (const char* name : {"libonnxruntime_providers_qnn.so", "libQnnHtp.so", "libGenie.so"}) {
    Touch(std::string("site/onnxruntime_qnn/") + name);
  }
  EXPECT_EQ(*FindQnnFolderIn({root_ / "site"}), root_ / "site/onnxruntime_qnn");
}

TEST_F(FindLibraryTest, IncompleteQnnFolderNamesTheMissingFile) {
  Touch("qnn/libonnxruntime_providers_qnn.so");
  Touch("qnn/libQnnHtp.so");
  EXPECT_THAT(FindQnnFolderIn({root_ / "qnn"}),
              StatusIs(StatusCode::kUnavailable,
                       AllOf(HasSubstr("qnn lacks libGenie.so"), HasSubstr("HEXPORT_QNN_ROOT"))));
}

}  // namespace
}  // namespace hexport::ort
