#include "checkpoint/packed_linear.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"

namespace hexport::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kData = fs::path(HEXPORT_TEST_DATA) / "packed";

template <typename T>
PackedPart Part(const std::string& dtype, Shape shape, const std::vector<T>& values) {
  return {dtype, std::move(shape), std::as_bytes(std::span(values)), nullptr};
}

// 8 inputs, 8 outputs, groups of 4: code of input k is k for every output, zero point 0; scale 1 in
// group 0 and 16 in group 1, so that the group of each input shows in its weight.
class SmallLinear {
 public:
  PackedConfig config{PackedLayout::kGptq, 4, 4, true, false};
  std::vector<uint32_t> qweight = std::vector<uint32_t>(8, 0x76543210u), qzeros = {0, 0};
  std::vector<int32_t> g_idx = {1, 0, 0, 1, 1, 0, 1, 0};
  std::vector<float> scales = std::vector<float>(16, 1.0f);
  PackedParts parts;

  SmallLinear() {
    std::fill(scales.begin() + 8, scales.end(), 16.0f);
    Refresh();
  }
  void Refresh() {
    parts.qweight = Part("I32", {1, 8}, qweight);
    parts.qzeros = Part("I32", {2, 1}, qzeros);
    parts.scales = Part("F32", {2, 8}, scales);
    parts.g_idx = Part("I32", {8}, g_idx);
  }
  Result<PackedLinear> Create() const { return PackedLinear::Create(config, "a.b", {8, 8}, parts); }
};

TEST(PackedLinearTest, Q06ColumnsUseTheScaleOfTheirGIdx) {
  const SmallLinear small;
  const auto linear = small.Create();
  ASSERT_THAT(linear, IsOk());
  std::vector<float> rows(16);
  linear->ReadRows(3, rows);
  const std::vector<float> expected = {0, 1, 2, 48, 64, 5, 96, 7};
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], expected[i % 8]) << i;
  EXPECT_THAT(linear->Unpack().group_of, ElementsAre(1, 0, 0, 1, 1, 0, 1, 0));
}

TEST(PackedLinearTest, Q06ContiguousGroupsAreNotAssumed) {
  SmallLinear small;
  small.parts.g_idx.reset();
  EXPECT_THAT(small.Create(), StatusIs(StatusCode::kNotFound,
                                       AllOf(HasSubstr("a.b.g_idx"), HasSubstr("desc_act"))));
  small.config.desc_act = false;
  const auto linear = small.Create();
  ASSERT_THAT(linear, IsOk());
  EXPECT_THAT(linear->Unpack().group_of, ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
}

TEST(PackedLinearTest, RefusesAGroupThatIsNotThere) {
  for (const int32_t group : {2, -1}) {
    SmallLinear small;
    small.g_idx[5] = group;
    small.Refresh();
    EXPECT_THAT(small.Create(), StatusIs(StatusCode::kDataLoss,
                                         AllOf(HasSubstr("a.b.g_idx[5]"), HasSubstr("below 2"),
                                               HasSubstr("got " + std::to_string(group)))));
  }
}

TEST(PackedLinearTest, StoredZeroPointsAreMinusOneInTheFirstFormatAlone) {
  SmallLinear small;
  small.qzeros = {0x87777777u, 0xf0777777u};
  small.Refresh();
  const auto second = small.Create();
  small.config.zeros_minus_one = true;
  const auto first = small.Create();
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT(first->Unpack().zero_points,
              ElementsAre(8, 8, 8, 8, 8, 8, 8, 9, 8, 8, 8, 8, 8, 8, 1, 0));
  EXPECT_THAT(second->Unpack().zero_points,
              ElementsAre(7, 7, 7, 7, 7, 7, 7, 8, 7, 7, 7, 7, 7, 7, 0, 15));
}

TEST(PackedLinearTest, AwqKeepsTheOutputsOfAWordOutOfOrder) {
  // Output n has code n: 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits up.
  const std::vector<uint32_t> qweight(8, 0x75316420u), qzeros(2, 0);
  const std::vector<float> scales(16, 1.0f);
  const PackedConfig config{PackedLayout::kAwq, 4, 4, false, false};
  const auto linear = PackedLinear::Create(
      config, "a.b", {8, 8},
      {Part("I32", {8, 1}, qweight), Part("I32", {2, 1}, qzeros), Part("F32", {2, 8}, scales), {}});
  ASSERT_THAT(linear, IsOk());
  std::vector<float> rows(64);
  linear->ReadRows(0, rows);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], static_cast<float>(i / 8)) << i;
}

TEST(PackedLinearTest, Q07GroupThatDoesNotDivideIsRefused) {
  SmallLinear small;
  small.config.group_size = 64;
  EXPECT_THAT(PackedLinear::Create(small.config, "a.b", {8, 96}, small.parts),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("a.b: group_size"), HasSubstr("96"), HasSubstr("got 64"))));
}

TEST(PackedLinearTest, Q07WordsThatDoNotFitAreRefused) {
  struct Wrong {
    std::optional<PackedPart> PackedParts::* part;
    const char* tensor;
    Shape shape;
    const char* expected;
  };
  const std::vector<Wrong> wrongs = {{&PackedParts::qweight, "a.b.qweight", {5, 8}, "[1, 8]"},
                                     {&PackedParts::qweight, "a.b.qweight", {8}, "[1, 8]"},
                                     {&PackedParts::qzeros, "a.b.qzeros", {2, 2}, "[2, 1]"},
                                     {&PackedParts::scales, "a.b.scales", {1, 8}, "[2, 8]"},
                                     {&PackedParts::g_idx, "a.b.g_idx", {16}, "[8]"}};
  for (const Wrong& wrong : wrongs) {
    SmallLinear small;
    (small.parts.*wrong.part)->shape = wrong.shape;
    EXPECT_THAT(small.Create(), StatusIs(StatusCode::kDataLoss,
                                         AllOf(HasSubstr(wrong.tensor),
                                               HasSubstr(std::string("expected ") + wrong.expected),
                                               HasSubstr("got " + ShapeString(wrong.shape)))));
  }
}

TEST(PackedLinearTest, NamesMissingTensorsAndOtherTypes) {
  SmallLinear small;
  small.parts.qzeros.reset();
  EXPECT_THAT(small.Create(), StatusIs(StatusCode::kNotFound, HasSubstr("a.b.qzeros")));
  small.Refresh();
  small.parts.scales.reset();
  EXPECT_THAT(small.Create(), StatusIs(StatusCode::kNotFound, HasSubstr("a.b.scales")));
  small.Refresh();
  small.parts.scales->dtype = "I32";
  EXPECT_THAT(small.Create(), StatusIs(StatusCode::kUnimplemented, HasSubstr("a.b.scales")));
  small.Refresh();
  small.parts.qweight->dtype = "I64";
  EXPECT_THAT(small.Create(), StatusIs(StatusCode::kUnimplemented, HasSubstr("a.b.qweight")));
}

// The value that the packed weight gives, as the header of PackedWeight says.
float ValueOf(const PackedWeight& weight, size_t k, size_t n) {
  const auto columns = static_cast<size_t>(weight.out_features);
  const size_t at = static_cast<size_t>(weight.group_of[k]) * columns + n;
  const int code = weight.codes[k * columns + n] - weight.zero_points[at];
  return static_cast<float>(code) * weight.scales[at] +
         (weight.offsets.empty() ? 0.0f : weight.offsets[at]);
}

void ExpectPackedGivesTheValues(const Checkpoint& checkpoint, const std::string& name,
                                const std::vector<float>& values) {
  const auto packed = checkpoint.ReadPacked(name);
  ASSERT_THAT(packed, IsOk());
  ASSERT_TRUE(packed->has_value()) << name;
  const auto features = static_cast<size_t>((*packed)->in_features);
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(ValueOf(**packed, i % features, i / features), values[i]) << name << " " << i;
}

class PackedFolderTest : public ::testing::TestWithParam<const char*> {};

// tests/generate/packed_checkpoints.py computes in float64; a code's difference times a half fits
// float32, so the values are equal and not only close.
TEST_P(PackedFolderTest, EqualsTheFloat64Reference) {
  const auto checkpoint = Checkpoint::Open(kData / GetParam());
  ASSERT_THAT(checkpoint, IsOk());
  const auto golden = SafetensorsFile::Open(kData / GetParam() / "expected.safetensors");
  ASSERT_THAT(golden, IsOk());
  ASSERT_EQ((*golden)->entries().size(), 7u);
  for (const SafetensorsEntry& entry : (*golden)->entries()) {
    std::vector<float> expected(static_cast<size_t>(NumElements(entry.shape)));
    std::memcpy(expected.data(), (*golden)->Bytes(entry).data(), expected.size() * sizeof(float));
    const TensorInfo* info = (*checkpoint)->Find(entry.name);
    ASSERT_NE(info, nullptr) << entry.name;
    EXPECT_EQ(info->shape, entry.shape);
    std::vector<float> got(expected.size());
    ASSERT_THAT((*checkpoint)->Read(entry.name, got), IsOk());
    EXPECT_EQ(got, expected) << entry.name;
    std::vector<float> rows(static_cast<size_t>(3 * entry.shape[1]));
    ASSERT_THAT((*checkpoint)->ReadRows(entry.name, 5, rows), IsOk());
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), expected.begin() + 5 * entry.shape[1]));
    ExpectPackedGivesTheValues(**checkpoint, entry.name, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, PackedFolderTest,
                         ::testing::Values("gptq_v1", "gptq_v2", "gptq_8bit", "awq", "gptq_lpbq",
                                           "gptq_int4", "gptq_int8"));

TEST(PackedFolderTest, FloatTensorsHaveNoCodes) {
  const auto checkpoint = Checkpoint::Open(kData / "awq");
  ASSERT_THAT(checkpoint, IsOk());
  const auto packed = (*checkpoint)->ReadPacked("lm_head.weight");
  ASSERT_THAT(packed, IsOk());
  EXPECT_FALSE(packed->has_value());
  EXPECT_THAT((*checkpoint)->ReadPacked("gone"),
              StatusIs(StatusCode::kNotFound, HasSubstr("gone")));
}

}  // namespace
}  // namespace hexport::checkpoint
