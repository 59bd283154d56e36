#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/status_matchers.h"
#include "base/test_directory.h"
#include "checkpoint/gguf_builder.h"

namespace hexport {
namespace {

using ::hexport::checkpoint::testing::Bytes;
using ::hexport::testing::IsOk;
using ::hexport::testing::Slurp;
using ::hexport::testing::StatusIs;
using ::hexport::testing::TestDirectory;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string File(const std::string& header, size_t data_bytes) {
  std::string file(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(file.data(), &size, 8);
  return file + header + std::string(data_bytes, 'd');
}

Result<std::vector<SafetensorsEntry>> Parse(const std::string& file) {
  return ParseSafetensorsHeader(Bytes(file), "file");
}

TEST(SafetensorsHeaderTest, SortsTensorsByOffset) {
  const auto entries = Parse(File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},)"
                                  R"("b":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]},)"
                                  R"("__metadata__":{"format":"pt"}}  )",
                                  12));
  ASSERT_THAT(entries, IsOk());
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].name, "b");
  EXPECT_EQ((*entries)[0].shape, (Shape{1, 2}));
  EXPECT_EQ((*entries)[1].name, "a");
  EXPECT_EQ((*entries)[1].end - (*entries)[1].begin, 8u);
}

TEST(SafetensorsHeaderTest, EmptyTensorsAreFine) {
  EXPECT_THAT(Parse(File(R"({"a":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]}})", 0)),
              IsOk());
}

struct BadHeader {
  const char* header;
  size_t data_bytes;
  const char* message;
};

class SafetensorsBadHeaderTest : public ::testing::TestWithParam<BadHeader> {};

TEST_P(SafetensorsBadHeaderTest, IsDataLossWithAnOffset) {
  EXPECT_THAT(
      Parse(File(GetParam().header, GetParam().data_bytes)),
      StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("file@"), HasSubstr(GetParam().message))));
}

INSTANTIATE_TEST_SUITE_P(
    Lies, SafetensorsBadHeaderTest,
    ::testing::Values(
        BadHeader{"{", 0, "valid JSON"}, BadHeader{"[]", 0, "object"},
        BadHeader{R"({"a":1})", 0, "an object"},
        BadHeader{R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "dtype"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "shape"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4, "shape"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "data_offsets"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "data_offsets"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
                  "expected 8 bytes"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})",
                  4, "expected -1"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "begin here"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                  R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                  6, "begin here"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3, "truncated"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5,
                  "after the last"}));

TEST(SafetensorsHeaderTest, UnknownDTypeIsUnsupported) {
  EXPECT_THAT(Parse(File(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1)),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("F4")));
}

TEST(SafetensorsHeaderTest, HeaderLengthIsCheckedBeforeUse) {
  EXPECT_THAT(Parse("1234567"), StatusIs(StatusCode::kDataLoss, HasSubstr("got 7")));
  EXPECT_THAT(Parse(std::string(8, '\xff') + "{}"),
              StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("at most 2"), HasSubstr("file@0"))));
}

TEST(SafetensorsHeaderTest, DeepNestingDoesNotOverflowTheStack) {
  EXPECT_THAT(Parse(File(std::string(1'000'000, '['), 0)),
              StatusIs(StatusCode::kDataLoss, HasSubstr("JSON")));
  EXPECT_THAT(
      Parse(File("{\"a\":" + std::string(200'000, '[') + std::string(200'000, ']') + "}", 0)),
      StatusIs(StatusCode::kDataLoss, HasSubstr("100 deep")));
}

TEST(SafetensorsWriterTest, WrittenFileReadsBack) {
  const TestDirectory folder;
  const std::string first(12, 'f');
  const std::string second(4, 's');
  auto writer = SafetensorsWriter::Create(
      folder / "a.safetensors",
      {{"z", "F32", {3}, 0, 0}, {"a", "BF16", {2, 1}, 0, 0}, {"none", "U8", {0}, 0, 0}},
      {{"format", "pt"}});
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT((*writer)->Append(Bytes(first)), IsOk());
  ASSERT_THAT((*writer)->Append(Bytes(second)), IsOk());
  ASSERT_THAT((*writer)->Append({}), IsOk());
  ASSERT_THAT((*writer)->Commit(), IsOk());

  const auto file = SafetensorsFile::Open(folder / "a.safetensors");
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ((*file)->Find("b"), nullptr);
  const SafetensorsEntry* entry = (*file)->Find("a");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->shape, (Shape{2, 1}));
  const auto bytes = (*file)->Bytes(*entry);
  EXPECT_EQ(std::memcmp(bytes.data(), second.data(), second.size()), 0);
  EXPECT_EQ((*file)->entries()[0].begin % 8, 0u);
}

TEST(SafetensorsWriterTest, HoldsTheDeclaration) {
  const TestDirectory folder;
  auto writer = SafetensorsWriter::Create(folder / "a", {{"z", "F32", {3}, 0, 0}}, {});
  ASSERT_THAT(writer, IsOk());
  EXPECT_THAT((*writer)->Append(Bytes("short")),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("z")));
  EXPECT_THAT((*writer)->Commit(), StatusIs(StatusCode::kFailedPrecondition, HasSubstr("z")));
  ASSERT_THAT((*writer)->Append(Bytes("twelve bytes")), IsOk());
  EXPECT_THAT((*writer)->Append({}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("no more")));
}

TEST(SafetensorsWriterTest, RefusesImpossibleDeclarations) {
  const TestDirectory folder;
  for (const SafetensorsEntry& bad :
       {SafetensorsEntry{"a", "F99", {1}, 0, 0}, SafetensorsEntry{"a", "F32", {-1}, 0, 0},
        SafetensorsEntry{"__metadata__", "F32", {1}, 0, 0}}) {
    EXPECT_THAT(SafetensorsWriter::Create(folder / "a", {bad}, {}),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("tensor")));
  }
  EXPECT_EQ(folder.CountEntries(), 0u);
}

}  // namespace
}  // namespace hexport
