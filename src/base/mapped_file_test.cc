#include "base/mapped_file.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "base/status_matchers.h"
#include "base/test_directory.h"

namespace hexport {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::Spill;
using ::hexport::testing::StatusIs;
using ::hexport::testing::TestDirectory;
using ::testing::HasSubstr;

std::string Text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFileTest, MapsTheContents) {
  const TestDirectory folder;
  Spill(folder / "a", "hello");
  const auto file = MappedFile::Open(folder / "a");
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ(Text(**file), "hello");
  EXPECT_EQ((*file)->path(), folder / "a");
}

TEST(MappedFileTest, EmptyFileIsAnEmptySpan) {
  const TestDirectory folder;
  Spill(folder / "a", "");
  const auto file = MappedFile::Open(folder / "a");
  ASSERT_THAT(file, IsOk());
  EXPECT_TRUE((*file)->bytes().empty());
}

TEST(MappedFileTest, ReleasedPagesCanBeReadAgain) {
  const TestDirectory folder;
  std::string contents(100'000, '\0');
  std::iota(contents.begin(), contents.end(), '\0');
  Spill(folder / "a", contents);
  const auto file = MappedFile::Open(folder / "a");
  ASSERT_THAT(file, IsOk());
  ASSERT_EQ(Text(**file), contents);
  (*file)->Release(5000, 50'000);
  (*file)->Release(99'000, size_t(-1));
  (*file)->Release(1'000'000, 1);
  EXPECT_EQ(Text(**file), contents);
}

TEST(MappedFileTest, NamesMissingFile) {
  EXPECT_THAT(MappedFile::Open("/no/such/file"),
              StatusIs(StatusCode::kNotFound, HasSubstr("/no/such/file")));
}

TEST(MappedFileTest, RefusesDirectory) {
  const TestDirectory folder;
  EXPECT_THAT(MappedFile::Open(folder.path()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("directory")));
}

}  // namespace
}  // namespace hexport
