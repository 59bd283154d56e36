#include "ort/session.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/status_matchers.h"

namespace hexport::ort {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const fs::path kData = fs::path(HEXPORT_TEST_DATA) / "ort";

std::string ReadBytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::unique_ptr<Session> Open(const std::string& name, const SessionOptions& options = {}) {
  Result<std::unique_ptr<Session>> session = Session::Create(kData / (name + ".onnx"), options);
  EXPECT_THAT(session, IsOk());
  return session.ok() ? *std::move(session) : nullptr;
}

template <typename T, size_t N>
TensorView View(DType dtype, Shape shape, const std::array<T, N>& values) {
  return {dtype, std::move(shape), values.data()};
}

constexpr std::array<float, 6> kX = {1, 0, 0, 0, 1, 2};  // [2, 3]

TEST(SessionTest, ListsInputsAndOutputs) {
  const auto session = Open("concat_dynamic");
  ASSERT_EQ(session->inputs().size(), 2u);
  EXPECT_EQ(session->inputs()[0].name, "past");
  EXPECT_EQ(session->inputs()[0].dtype, DType::kInt32);
  EXPECT_THAT(session->inputs()[0].shape, ElementsAre(2, kDynamicDim));
  ASSERT_EQ(session->outputs().size(), 1u);
  EXPECT_EQ(session->outputs()[0].name, "all");
}

TEST(SessionTest, RunsMatMulAndAdd) {
  const auto session = Open("matmul_add");
  const auto outputs = session->Run({{"x", View(DType::kFloat32, {2, 3}, kX)}}, {"y"});
  ASSERT_THAT(outputs, IsOk());
  ASSERT_EQ(outputs->size(), 1u);
  EXPECT_THAT((*outputs)[0].shape, ElementsAre(2, 2));
  EXPECT_THAT((*outputs)[0].as<float>(), ElementsAre(1.5f, 1.5f, 13.5f, 15.5f));
}

TEST(SessionTest, OutputsComeInTheOrderAskedFor) {
  const auto session = Open("matmul_add");
  const auto outputs = session->Run({{"x", View(DType::kFloat32, {2, 3}, kX)}}, {"product", "y"});
  ASSERT_THAT(outputs, IsOk());
  EXPECT_THAT((*outputs)[0].as<float>(), ElementsAre(1, 2, 13, 16));
  EXPECT_THAT((*outputs)[1].as<float>(), ElementsAre(1.5f, 1.5f, 13.5f, 15.5f));
}

TEST(SessionTest, NoNamesMeansAllOutputsInModelOrder) {
  const auto session = Open("matmul_add");
  const auto outputs = session->Run({{"x", View(DType::kFloat32, {2, 3}, kX)}}, {});
  ASSERT_THAT(outputs, IsOk());
  ASSERT_EQ(outputs->size(), 2u);
  EXPECT_THAT((*outputs)[1].as<float>(), ElementsAre(1, 2, 13, 16));
}

TEST(SessionTest, LoadsFromBytes) {
  const auto session = Session::CreateFromBytes(ReadBytes(kData / "matmul_add.onnx"), {});
  ASSERT_THAT(session, IsOk());
  const auto outputs = (*session)->Run({{"x", View(DType::kFloat32, {2, 3}, kX)}}, {"y"});
  ASSERT_THAT(outputs, IsOk());
  EXPECT_THAT((*outputs)[0].as<float>(), ElementsAre(1.5f, 1.5f, 13.5f, 15.5f));
}

TEST(SessionTest, DynamicDimensionsTakeTheirShapeFromTheInputs) {
  const auto session = Open("concat_dynamic");
  constexpr std::array<int32_t, 4> past = {1, 2, 3, 4};
  constexpr std::array<int32_t, 2> fresh = {9, 8};
  const auto outputs = session->Run(
      {{"past", View(DType::kInt32, {2, 2}, past)}, {"new", View(DType::kInt32, {2, 1}, fresh)}},
      {});
  ASSERT_THAT(outputs, IsOk());
  EXPECT_THAT((*outputs)[0].shape, ElementsAre(2, 3));
  EXPECT_THAT((*outputs)[0].as<int32_t>(), ElementsAre(1, 2, 9, 3, 4, 8));
}

TEST(SessionTest, TakesAnInputWithoutElements) {
  const auto session = Open("concat_dynamic");
  constexpr std::array<int32_t, 2> fresh = {9, 8};
  const auto outputs = session->Run({{"past", TensorView{DType::kInt32, {2, 0}, nullptr}},
                                     {"new", View(DType::kInt32, {2, 1}, fresh)}},
                                    {});
  ASSERT_THAT(outputs, IsOk());
  EXPECT_THAT((*outputs)[0].as<int32_t>(), ElementsAre(9, 8));
}

TEST(SessionTest, ReturnsAnOutputWithoutElements) {
  const auto session = Open("concat_dynamic");
  const TensorView none{DType::kInt32, {2, 0}, nullptr};
  const auto outputs = session->Run({{"past", none}, {"new", none}}, {});
  ASSERT_THAT(outputs, IsOk());
  EXPECT_THAT((*outputs)[0].shape, ElementsAre(2, 0));
  EXPECT_TRUE((*outputs)[0].bytes.empty());
}

TEST(SessionTest, WrongDtypeNamesExpectedAndGot) {
  const auto session = Open("matmul_add");
  constexpr std::array<int32_t, 6> integers = {};
  EXPECT_THAT(session->Run({{"x", View(DType::kInt32, {2, 3}, integers)}}, {}),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("input x"),
                             HasSubstr("expected float32 [2, 3], got int32 [2, 3]"))));
}

TEST(SessionTest, WrongShapeNamesExpectedAndGot) {
  const auto session = Open("concat_dynamic");
  const TensorView good{DType::kInt32, {2, 0}, nullptr};
  const TensorView bad{DType::kInt32, {3, 0}, nullptr};
  EXPECT_THAT(session->Run({{"past", bad}, {"new", good}}, {}),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("input past: expected int32 [2, ?], got int32 [3, 0]")));
}

TEST(SessionTest, WrongRankIsRefused) {
  const auto session = Open("matmul_add");
  EXPECT_THAT(session->Run({{"x", View(DType::kFloat32, {6}, kX)}}, {}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("got float32 [6]")));
}

TEST(SessionTest, NegativeDimensionIsRefused) {
  const auto session = Open("concat_dynamic");
  const TensorView bad{DType::kInt32, {2, -4}, kX.data()};
  EXPECT_THAT(session->Run({{"past", bad}, {"new", bad}}, {}),
              StatusIs(StatusCode::kInvalidArgument, ::testing::_));
}

TEST(SessionTest, NullDataIsRefused) {
  const auto session = Open("matmul_add");
  EXPECT_THAT(session->Run({{"x", TensorView{DType::kFloat32, {2, 3}, nullptr}}}, {}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("null pointer")));
}

TEST(SessionTest, MissingInputIsNamed) {
  const auto session = Open("matmul_add");
  EXPECT_THAT(session->Run({}, {}),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("input x: expected float32 [2, 3], got nothing")));
}

TEST(SessionTest, UnknownNamesListTheKnownOnes) {
  const auto session = Open("matmul_add");
  const TensorView x = View(DType::kFloat32, {2, 3}, kX);
  EXPECT_THAT(session->Run({{"x", x}, {"z", x}}, {}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("input z: expected one of x")));
  EXPECT_THAT(
      session->Run({{"x", x}}, {"z"}),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("output z: expected one of y, product")));
}

TEST(SessionTest, MissingModelIsNotFound) {
  EXPECT_THAT(Session::Create(kData / "none.onnx", {}),
              StatusIs(StatusCode::kNotFound, HasSubstr("none.onnx")));
}

TEST(SessionTest, GarbageIsDataLoss) {
  EXPECT_THAT(Session::CreateFromBytes("this is no model", {}),
              StatusIs(StatusCode::kDataLoss, ::testing::_));
  EXPECT_THAT(Session::Create(kData / "qdq_matmul_x.bin", {}),
              StatusIs(StatusCode::kDataLoss, StartsWith((kData / "qdq_matmul_x.bin").string())));
}

TEST(SessionTest, OutputTypeThatIsNoNumberIsUnimplemented) {
  EXPECT_THAT(Session::Create(kData / "string_output.onnx", {}),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("y: expected a number")));
}

TEST(SessionTest, ExactQdqEqualsArithmeticOfTheDefinition) {
  const std::string x = ReadBytes(kData / "qdq_matmul_x.bin");
  const std::string expected = ReadBytes(kData / "qdq_matmul_y.bin");
  ASSERT_EQ(expected.size(), 4 * 16 * sizeof(uint16_t));
  const auto* codes = reinterpret_cast<const uint16_t*>(expected.data());
  for (const bool optimize : {true, false}) {
    SessionOptions options;
    options.exact_qdq = true;
    options.optimize = optimize;
    options.prepack = false;
    const auto outputs = Open("qdq_matmul", options)
                             ->Run({{"x", TensorView{DType::kUInt16, {1, 4, 32}, x.data()}}}, {});
    ASSERT_THAT(outputs, IsOk());
    const auto got = (*outputs)[0].as<uint16_t>();
    ASSERT_EQ(got.size(), 64u);
    // The reference sums in float64. 32 products of magnitude below 5 summed in float32 err by less
    // than 32 * 160 * 2^-24 = 3e-4 real, 0.16 codes: a code may differ by one next to a rounding
    // tie, never by more.
    int different = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], codes[i], 1) << "at " << i;
      different += got[i] != codes[i];
    }
    EXPECT_LE(different, 1);
  }
}

TEST(SessionTest, ExactQdqKeepsBothRoundings) {
  SessionOptions options;
  options.exact_qdq = true;
  constexpr std::array<float, 8> x = {0.6f, 0.8f, 1.3f, -0.6f, 1.7f, 2.2f, -2.2f, 0.2f};
  const auto outputs =
      Open("double_rounding", options)->Run({{"x", View(DType::kFloat32, {8}, x)}}, {});
  ASSERT_THAT(outputs, IsOk());
  // Nearest multiple of 0.5, then of 0.375. One rounding would give 0.75 for 0.6 and 0.8.
  EXPECT_THAT((*outputs)[0].as<float>(),
              ElementsAre(0.375f, 1.125f, 1.5f, -0.375f, 1.5f, 1.875f, -1.875f, 0.0f));
}

TEST(SessionTest, ConfigEntryThatOrtRefusesIsReported) {
  SessionOptions options;
  options.config_entries[""] = "1";
  EXPECT_THAT(Session::Create(kData / "matmul_add.onnx", options),
              StatusIs(StatusCode::kInvalidArgument, StartsWith("session options: ")));
}

TEST(FindOrtTest, VariableThatPointsNowhereIsUnavailable) {
  const char* before = std::getenv("HEXPORT_ORT_ROOT");
  const std::string kept = before == nullptr ? "" : before;
  setenv("HEXPORT_ORT_ROOT", "/nowhere/at/all", 1);
  const Result<fs::path> found = FindOrtLibrary();
  before == nullptr ? unsetenv("HEXPORT_ORT_ROOT") : setenv("HEXPORT_ORT_ROOT", kept.c_str(), 1);
  EXPECT_THAT(found, StatusIs(StatusCode::kUnavailable, HasSubstr("/nowhere/at/all")));
}

TEST(VersionTest, OrtVersionHasThreeParts) {
  const Result<std::string> version = OrtVersion();
  ASSERT_THAT(version, IsOk());
  EXPECT_THAT(*version, ::testing::MatchesRegex("1\\.[0-9]+\\.[0-9]+.*"));
}

}  // namespace
}  // namespace hexport::ort
