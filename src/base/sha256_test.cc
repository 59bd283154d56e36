#include "base/sha256.h"

#include <gtest/gtest.h>

#include "base/status_matchers.h"
#include "base/test_directory.h"

namespace hexport {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::Spill;
using ::hexport::testing::StatusIs;
using ::hexport::testing::TestDirectory;
using ::testing::HasSubstr;

// Test vectors of FIPS 180-4's example file.
constexpr char kEmpty[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr char kAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr char kMillionA[] = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

TEST(Sha256Test, MatchesPublishedVectors) {
  EXPECT_EQ(Sha256Hex(""), kEmpty);
  EXPECT_EQ(Sha256Hex("abc"), kAbc);
}

TEST(Sha256Test, PiecesHashAsTheWhole) {
  Sha256 hash;
  for (int i = 0; i < 1000; ++i) hash.Update(std::string(1000, 'a'));
  EXPECT_EQ(hash.HexDigest(), kMillionA);
}

TEST(Sha256Test, SecondDigestIsEmpty) {
  Sha256 hash;
  EXPECT_EQ(hash.HexDigest(), kEmpty);
  EXPECT_EQ(hash.HexDigest(), "");
}

TEST(Sha256Test, HashesAFileLongerThanTheBuffer) {
  const TestDirectory folder;
  const std::string contents(3'500'000, 'q');
  Spill(folder / "a", contents);
  const Result<std::string> digest = Sha256File(folder / "a");
  ASSERT_THAT(digest, IsOk());
  EXPECT_EQ(*digest, Sha256Hex(contents));
}

TEST(Sha256Test, NamesMissingFile) {
  EXPECT_THAT(Sha256File("/no/such/file"),
              StatusIs(StatusCode::kNotFound, HasSubstr("/no/such/file")));
}

TEST(Sha256Test, ReportsADirectory) {
  const TestDirectory folder;
  EXPECT_THAT(Sha256File(folder.path()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("directory")));
}

}  // namespace
}  // namespace hexport
