#include "checkpoint/gguf_file.h"

#include <gtest/gtest.h>

#include "base/status_matchers.h"
#include "checkpoint/gguf_builder.h"

namespace hexport::checkpoint {
namespace {

using ::hexport::checkpoint::testing::Bytes;
using ::hexport::checkpoint::testing::GgufBuilder;
using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kF32 = 0;
constexpr uint32_t kQ8_0 = 8;

// Views in the result point into a string that is gone: for errors only.
Status ParseError(const GgufBuilder& builder) {
  const std::string file = builder.Build();
  return ParseGguf(Bytes(file), "file").status();
}

TEST(GgufFileTest, ReadsEveryScalarType) {
  GgufBuilder builder;
  builder.Value("u8", GgufType::kUint8, uint8_t{200})
      .Value("i8", GgufType::kInt8, int8_t{-100})
      .Value("u16", GgufType::kUint16, uint16_t{60000})
      .Value("i16", GgufType::kInt16, int16_t{-30000})
      .Uint32("u32", 4'000'000'000)
      .Value("i32", GgufType::kInt32, int32_t{-2'000'000'000})
      .Value("u64", GgufType::kUint64, uint64_t{1} << 40)
      .Value("i64", GgufType::kInt64, int64_t{-1} << 40)
      .Float32("f32", 1e-5f)
      .Value("f64", GgufType::kFloat64, 0.1)
      .Bool("bool", true)
      .String("string", "text");
  const std::string file = builder.Build();
  const auto contents = ParseGguf(Bytes(file), "file");
  ASSERT_THAT(contents, IsOk());
  const GgufMetadata metadata(*contents, "file");
  EXPECT_EQ(*metadata.Int("u8"), 200);
  EXPECT_EQ(*metadata.Int("i8"), -100);
  EXPECT_EQ(*metadata.Int("u16"), 60000);
  EXPECT_EQ(*metadata.Int("i16"), -30000);
  EXPECT_EQ(*metadata.Int("u32"), 4'000'000'000);
  EXPECT_EQ(*metadata.Int("i32"), -2'000'000'000);
  EXPECT_EQ(*metadata.Int("u64"), int64_t{1} << 40);
  EXPECT_EQ(*metadata.Int("i64"), int64_t{-1} << 40);
  EXPECT_EQ(*metadata.Number("f32"), 1e-5);
  EXPECT_EQ(*metadata.Number("f64"), 0.1);
  EXPECT_EQ(*metadata.Bool("bool", false), true);
  EXPECT_EQ(*metadata.String("string"), "text");
}

TEST(GgufFileTest, ReadsArraysAndSkipsNestedOnes) {
  GgufBuilder builder;
  builder.Strings("strings", {"a", "", "ccc"})
      .Numbers<int32_t>("integers", GgufType::kInt32, {1, -2})
      .Numbers<float>("numbers", GgufType::kFloat32, {0.5f})
      .Array("nested", GgufType::kArray, 1)
      .Raw(uint32_t{0})
      .Raw(uint64_t{2})
      .Raw(uint16_t{7})
      .Uint32("after", 9);
  const std::string file = builder.Build();
  const auto contents = ParseGguf(Bytes(file), "file");
  ASSERT_THAT(contents, IsOk());
  const GgufMetadata metadata(*contents, "file");
  EXPECT_THAT((*metadata.Array("strings", GgufType::kString))->strings,
              ElementsAre("a", "", "ccc"));
  EXPECT_THAT((*metadata.Array("integers", GgufType::kInt32))->integers, ElementsAre(1, -2));
  EXPECT_THAT((*metadata.Array("numbers", GgufType::kFloat32))->numbers, ElementsAre(0.5));
  EXPECT_EQ(*metadata.Int("after"), 9);
}

TEST(GgufFileTest, ReadsVersions2And3Only) {
  for (const uint32_t version : {2u, 3u}) {
    GgufBuilder builder;
    builder.version = version;
    EXPECT_THAT(ParseError(builder), IsOk());
  }
  for (const uint32_t version : {1u, 4u}) {
    GgufBuilder builder;
    builder.version = version;
    EXPECT_THAT(ParseError(builder), StatusIs(StatusCode::kUnimplemented, HasSubstr("version")));
  }
  GgufBuilder swapped;
  swapped.version = 0x03000000;
  EXPECT_THAT(ParseError(swapped), StatusIs(StatusCode::kUnimplemented, HasSubstr("big-endian")));
}

TEST(GgufFileTest, PlacesTensorsAndReversesDimensions) {
  GgufBuilder builder;
  builder.Tensor("a", {2, 3}, kF32, std::string(24, 'a'))
      .Tensor("b", {32}, kQ8_0, std::string(34, 'b'));
  const std::string file = builder.Build();
  const auto contents = ParseGguf(Bytes(file), "file");
  ASSERT_THAT(contents, IsOk());
  ASSERT_EQ(contents->tensors.size(), 2u);
  const GgufTensor& a = contents->tensors[0];
  const GgufTensor& b = contents->tensors[1];
  EXPECT_EQ(a.shape, (Shape{3, 2}));
  EXPECT_EQ(file.substr(a.offset, a.bytes), std::string(24, 'a'));
  EXPECT_EQ(file.substr(b.offset, b.bytes), std::string(34, 'b'));
  EXPECT_EQ(b.format->name, "Q8_0");
}

TEST(GgufFileTest, HoldsAnotherAlignment) {
  GgufBuilder builder;
  builder.Uint32("general.alignment", 64).TensorAt("a", {1}, kF32, 32);
  EXPECT_THAT(ParseError(builder), StatusIs(StatusCode::kDataLoss, HasSubstr("multiple of 64")));
  GgufBuilder odd;
  odd.Uint32("general.alignment", 24);
  EXPECT_THAT(ParseError(odd), StatusIs(StatusCode::kDataLoss, HasSubstr("power of two")));
}

TEST(GgufFileTest, RefusesAnotherMagic) {
  GgufBuilder builder;
  builder.magic = 0x4c4d4747;
  EXPECT_THAT(ParseError(builder), StatusIs(StatusCode::kDataLoss, HasSubstr("file@0: magic")));
}

TEST(GgufFileTest, LyingCountsAllocateNothing) {
  GgufBuilder tensors;
  tensors.extra_tensors = int64_t{1} << 60;
  EXPECT_THAT(ParseError(tensors), StatusIs(StatusCode::kDataLoss, HasSubstr("tensor count")));
  GgufBuilder values;
  values.extra_values = -1;
  EXPECT_THAT(ParseError(values), StatusIs(StatusCode::kDataLoss, HasSubstr("metadata count")));
  GgufBuilder array;
  array.Array("tokens", GgufType::kString, uint64_t{1} << 61);
  EXPECT_THAT(ParseError(array), StatusIs(StatusCode::kDataLoss, HasSubstr("tokens")));
  GgufBuilder string;
  string.Uint32("x", 1).Raw(~uint64_t{0});
  string.extra_values = 1;
  EXPECT_THAT(ParseError(string), StatusIs(StatusCode::kDataLoss, HasSubstr("metadata key")));
}

TEST(GgufFileTest, RefusesBrokenMetadata) {
  GgufBuilder type;
  type.Value("x", static_cast<GgufType>(13), uint64_t{0});
  EXPECT_THAT(ParseError(type), StatusIs(StatusCode::kDataLoss, HasSubstr("got 13")));
  GgufBuilder flag;
  flag.Value("x", GgufType::kBool, uint8_t{2});
  EXPECT_THAT(ParseError(flag), StatusIs(StatusCode::kDataLoss, HasSubstr("0 or 1, got 2")));
  GgufBuilder twice;
  twice.Uint32("x", 1).Uint32("x", 2);
  EXPECT_THAT(ParseError(twice), StatusIs(StatusCode::kDataLoss, HasSubstr("once")));
}

TEST(GgufFileTest, LimitsNesting) {
  GgufBuilder builder;
  builder.Array("x", GgufType::kArray, 1);
  for (int i = 0; i < 100; ++i)
    builder.Raw(static_cast<uint32_t>(GgufType::kArray)).Raw(uint64_t{1});
  EXPECT_THAT(ParseError(builder), StatusIs(StatusCode::kDataLoss, HasSubstr("nested")));
}

TEST(GgufFileTest, RefusesLyingTensors) {
  const auto error = [](const std::vector<uint64_t>& dimensions, uint32_t type, uint64_t offset) {
    GgufBuilder builder;
    builder.Tensor("first", {8}, kF32, std::string(64, 'x'))
        .TensorAt("t", dimensions, type, offset);
    return ParseError(builder);
  };
  const auto is_loss = [](const char* text) {
    return StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("t: "), HasSubstr(text)));
  };
  EXPECT_THAT(error({8}, kF32, 32), IsOk());
  EXPECT_THAT(error({9}, kF32, 32), is_loss("truncated"));
  EXPECT_THAT(error({1}, kF32, uint64_t{1} << 63), is_loss("truncated"));
  EXPECT_THAT(error({1}, kF32, 33), is_loss("multiple of 32"));
  EXPECT_THAT(error({1}, kF32, 0), is_loss("overlap"));
  EXPECT_THAT(error({1, 1, 1, 1, 1}, kF32, 32), is_loss("at most 4"));
  EXPECT_THAT(error({uint64_t{1} << 40, uint64_t{1} << 40}, kF32, 32), is_loss("2^63"));
  EXPECT_THAT(error({uint64_t{1} << 62}, kF32, 32), is_loss("2^63 bytes"));
  EXPECT_THAT(error({~uint64_t{0}}, kF32, 32), is_loss("2^63"));
  EXPECT_THAT(error({16, 2}, kQ8_0, 32), is_loss("blocks of 32"));
  EXPECT_THAT(error({1}, 4711, 32), StatusIs(StatusCode::kUnimplemented, HasSubstr("4711")));
}

TEST(GgufFileTest, RefusesTheSameNameTwice) {
  GgufBuilder builder;
  builder.Tensor("a", {1}, kF32, "1234").Tensor("a", {1}, kF32, "1234");
  EXPECT_THAT(ParseError(builder), StatusIs(StatusCode::kDataLoss, HasSubstr("once")));
}

TEST(GgufMetadataTest, NamesWrongAndMissingValues) {
  GgufBuilder builder;
  builder.String("text", "x").Numbers<int32_t>("list", GgufType::kInt32, {1});
  const std::string file = builder.Build();
  const auto contents = ParseGguf(Bytes(file), "file");
  ASSERT_THAT(contents, IsOk());
  const GgufMetadata metadata(*contents, "file");
  EXPECT_THAT(metadata.Int("text"), StatusIs(StatusCode::kInvalidArgument, HasSubstr("a string")));
  EXPECT_THAT(metadata.Int("none"), StatusIs(StatusCode::kInvalidArgument, HasSubstr("nothing")));
  EXPECT_THAT(metadata.Int("list"), StatusIs(StatusCode::kUnimplemented, HasSubstr("an array")));
  EXPECT_THAT(metadata.Bool("text", true),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("bool")));
  EXPECT_THAT(metadata.Array("list", GgufType::kString),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("list")));
  EXPECT_EQ(*metadata.Int("none", 5), 5);
}

}  // namespace
}  // namespace hexport::checkpoint
