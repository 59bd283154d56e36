#include "base/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "base/status_matchers.h"
#include "base/test_directory.h"

namespace hexport {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::Slurp;
using ::hexport::testing::Spill;
using ::hexport::testing::StatusIs;
using ::hexport::testing::TestDirectory;
using ::testing::HasSubstr;

// Files of this process may not grow above `bytes`: a full disk, without filling one.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    old_handler_ = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int) = SIG_DFL;
};

std::string TemporaryName(const fs::path& path) {
  return path.string() + ".tmp-" + std::to_string(getpid());
}

TEST(ReadTextFileTest, ReadsWholeFile) {
  const TestDirectory folder;
  const std::string contents(200'000, 'x');
  Spill(folder / "a", contents);
  const Result<std::string> read = ReadTextFile(folder / "a");
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(*read, contents);
}

TEST(ReadTextFileTest, NamesMissingFile) {
  EXPECT_THAT(ReadTextFile("/no/such/file"),
              StatusIs(StatusCode::kNotFound, HasSubstr("/no/such/file")));
}

TEST(ReadTextFileTest, RefusesDirectory) {
  const TestDirectory folder;
  EXPECT_THAT(ReadTextFile(folder.path()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("directory")));
}

TEST(ReadTextFileTest, HoldsTheLimit) {
  const TestDirectory folder;
  Spill(folder / "a", "12345");
  EXPECT_THAT(ReadTextFile(folder / "a", 5), IsOk());
  EXPECT_THAT(ReadTextFile(folder / "a", 4),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("4 bytes")));
}

TEST(ReadTextFileTest, ReportsMissingPermission) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const TestDirectory folder;
  Spill(folder / "a", "secret");
  chmod((folder / "a").c_str(), 0);
  EXPECT_THAT(ReadTextFile(folder / "a"), StatusIs(StatusCode::kPermissionDenied, HasSubstr("a")));
}

TEST(FileWriterTest, CommitReplacesTheOldFile) {
  const TestDirectory folder;
  Spill(folder / "a", "old");
  auto writer = FileWriter::Create(folder / "a");
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT((*writer)->Write("new"), IsOk());
  EXPECT_EQ(Slurp(folder / "a"), "old");
  ASSERT_THAT((*writer)->Commit(), IsOk());
  EXPECT_EQ(Slurp(folder / "a"), "new");
  EXPECT_EQ(folder.CountEntries(), 1u);
}

TEST(FileWriterTest, DroppedWithoutCommitLeavesNothing) {
  const TestDirectory folder;
  {
    auto writer = FileWriter::Create(folder / "a");
    ASSERT_THAT(writer, IsOk());
    ASSERT_THAT((*writer)->Write("half"), IsOk());
    EXPECT_EQ(folder.CountEntries(), 1u);
  }
  EXPECT_EQ(folder.CountEntries(), 0u);
}

TEST(FileWriterTest, PadsWithZeros) {
  const TestDirectory folder;
  auto writer = FileWriter::Create(folder / "a");
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT((*writer)->Write("abc"), IsOk());
  ASSERT_THAT((*writer)->PadTo(8), IsOk());
  EXPECT_EQ((*writer)->offset(), 8u);
  ASSERT_THAT((*writer)->PadTo(8), IsOk());
  ASSERT_THAT((*writer)->PadTo(10'000), IsOk());
  ASSERT_THAT((*writer)->Commit(), IsOk());
  EXPECT_EQ(Slurp(folder / "a"), "abc" + std::string(9997, '\0'));
}

TEST(FileWriterTest, NeedsItsFolder) {
  EXPECT_THAT(FileWriter::Create("/no/such/folder/a"),
              StatusIs(StatusCode::kNotFound, HasSubstr("/no/such/folder/a")));
}

TEST(FileWriterTest, FullDiskRemovesTheTemporaryFile) {
  const TestDirectory folder;
  // The temporary name leads to a device that is always full.
  fs::create_symlink("/dev/full", TemporaryName(folder / "a"));
  auto writer = FileWriter::Create(folder / "a");
  ASSERT_THAT(writer, IsOk());
  const std::string block(1 << 20, 'x');
  EXPECT_THAT((*writer)->Write(block),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("disk space")));
  EXPECT_EQ(folder.CountEntries(), 0u);
  EXPECT_THAT((*writer)->Write("more"),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("closed")));
}

TEST(FileWriterTest, FullDiskAtCommitKeepsTheOldFile) {
  const TestDirectory folder;
  Spill(folder / "a", "old");
  fs::create_symlink("/dev/full", TemporaryName(folder / "a"));
  EXPECT_THAT(WriteFileAtomically(folder / "a", "small, so buffered"),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("a")));
  EXPECT_EQ(Slurp(folder / "a"), "old");
  EXPECT_EQ(folder.CountEntries(), 1u);
}

TEST(FileWriterTest, FileSizeLimitIsResourceExhausted) {
  const TestDirectory folder;
  const FileSizeLimit limit(4096);
  EXPECT_THAT(WriteFileAtomically(folder / "a", std::string(100'000, 'x')),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("large")));
  EXPECT_EQ(folder.CountEntries(), 0u);
}

TEST(StagedDirectoryTest, AppearsAtCommit) {
  const TestDirectory folder;
  auto staged = StagedDirectory::Create(folder / "x" / "out/", false);
  ASSERT_THAT(staged, IsOk());
  Spill((*staged)->path() / "file", "contents");
  EXPECT_FALSE(fs::exists(folder / "x" / "out"));
  ASSERT_THAT((*staged)->Commit(), IsOk());
  EXPECT_EQ(Slurp(folder / "x" / "out" / "file"), "contents");
}

TEST(StagedDirectoryTest, DroppedWithoutCommitIsRemoved) {
  const TestDirectory folder;
  {
    auto staged = StagedDirectory::Create(folder / "out", false);
    ASSERT_THAT(staged, IsOk());
    Spill((*staged)->path() / "file", "contents");
  }
  EXPECT_EQ(folder.CountEntries(), 0u);
}

TEST(StagedDirectoryTest, RefusesAnExistingFolder) {
  const TestDirectory folder;
  fs::create_directory(folder / "out");
  EXPECT_THAT(StagedDirectory::Create(folder / "out", false),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("out")));
}

TEST(StagedDirectoryTest, ReplacesAllOfTheOldFolder) {
  const TestDirectory folder;
  fs::create_directory(folder / "out");
  Spill(folder / "out" / "stale", "old");
  auto staged = StagedDirectory::Create(folder / "out", true);
  ASSERT_THAT(staged, IsOk());
  Spill((*staged)->path() / "fresh", "new");
  EXPECT_EQ(Slurp(folder / "out" / "stale"), "old");
  ASSERT_THAT((*staged)->Commit(), IsOk());
  EXPECT_EQ(Slurp(folder / "out" / "fresh"), "new");
  EXPECT_FALSE(fs::exists(folder / "out" / "stale"));
  EXPECT_EQ(folder.CountEntries(), 1u);
}

TEST(StagedDirectoryTest, DoesNotReplaceAFile) {
  const TestDirectory folder;
  Spill(folder / "out", "a file");
  EXPECT_THAT(StagedDirectory::Create(folder / "out", true),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("a file")));
}

TEST(StagedDirectoryTest, DoesNotOverwriteAFolderThatAppearedMeanwhile) {
  const TestDirectory folder;
  auto staged = StagedDirectory::Create(folder / "out", false);
  ASSERT_THAT(staged, IsOk());
  fs::create_directory(folder / "out");
  EXPECT_THAT((*staged)->Commit(), StatusIs(StatusCode::kFailedPrecondition, HasSubstr("out")));
}

TEST(LinkOrCopyTest, FollowsSymbolicLinks) {
  const TestDirectory folder;
  Spill(folder / "blob", "contents");
  fs::create_symlink("blob", folder / "link");
  ASSERT_THAT(LinkOrCopy(folder / "link", folder / "to"), IsOk());
  EXPECT_FALSE(fs::is_symlink(folder / "to"));
  EXPECT_EQ(Slurp(folder / "to"), "contents");
}

TEST(LinkOrCopyTest, CopiesAcrossFileSystems) {
  const TestDirectory folder;
  ASSERT_THAT(LinkOrCopy("/proc/self/status", folder / "to"), IsOk());
}

TEST(LinkOrCopyTest, NamesTheMissingFile) {
  const TestDirectory folder;
  EXPECT_THAT(LinkOrCopy(folder / "absent", folder / "to"),
              StatusIs(StatusCode::kNotFound, HasSubstr("absent")));
}

TEST(LinkOrCopyTest, DoesNotOverwrite) {
  const TestDirectory folder;
  Spill(folder / "from", "new");
  Spill(folder / "to", "old");
  EXPECT_THAT(LinkOrCopy(folder / "from", folder / "to"),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("to")));
  EXPECT_EQ(Slurp(folder / "to"), "old");
}

}  // namespace
}  // namespace hexport
