// Sessions on Qualcomm's real compiler and HTP emulator. Label: emulator.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/status_matchers.h"
#include "ort/op_trace.h"
#include "ort/session.h"

namespace hexport::ort {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const fs::path kData = fs::path(HEXPORT_TEST_DATA) / "ort";

std::string ReadBytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class QnnSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!FindQnnFolder().ok()) GTEST_SKIP() << FindQnnFolder().status().ToString();
    folder_ = fs::path(::testing::TempDir()) / ("hexport_qnn_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  SessionOptions Npu() const {
    SessionOptions options;
    options.provider = SessionOptions::Provider::kQnn;
    options.config_entries["session.disable_cpu_ep_fallback"] = "1";
    options.qnn_options = {{"soc_model", "57"},
                           {"htp_arch", "75"},
                           {"vtcm_mb", "8"},
                           {"offload_graph_io_quantization", "0"}};
    return options;
  }
  SessionOptions Compile() const {
    SessionOptions options = Npu();
    options.config_entries["ep.context_enable"] = "1";
    options.config_entries["ep.context_embed_mode"] = "0";
    options.config_entries["ep.context_file_path"] = (folder_ / "context.onnx").string();
    options.qnn_options["enable_framework_op_trace"] = "1";
    options.qnn_options["framework_op_trace_dir"] = folder_.string();
    return options;
  }
  fs::path folder_;
};

TEST_F(QnnSessionTest, ContextBinaryOnTheEmulatorAgreesWithTheCpu) {
  {
    const auto compiled = Session::Create(kData / "qdq_matmul.onnx", Compile());
    ASSERT_THAT(compiled, IsOk());
  }
  ASSERT_TRUE(fs::exists(folder_ / "context_qnn.bin"));
  const auto npu = Session::Create(folder_ / "context.onnx", Npu());
  ASSERT_THAT(npu, IsOk());
  const std::string x = ReadBytes(kData / "qdq_matmul_x.bin");
  const auto outputs =
      (*npu)->Run({{"x", TensorView{DType::kUInt16, {1, 4, 32}, x.data()}}}, {"y"});
  ASSERT_THAT(outputs, IsOk());
  SessionOptions exact;
  exact.exact_qdq = true;
  const auto cpu = Session::Create(kData / "qdq_matmul.onnx", exact);
  ASSERT_THAT(cpu, IsOk());
  const auto expected =
      (*cpu)->Run({{"x", TensorView{DType::kUInt16, {1, 4, 32}, x.data()}}}, {"y"});
  ASSERT_THAT(expected, IsOk());
  const auto got = (*outputs)[0].as<uint16_t>();
  const auto want = (*expected)[0].as<uint16_t>();
  ASSERT_EQ(got.size(), want.size());
  int worst = 0;
  for (size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::abs(got[i] - want[i]));
  RecordProperty("worst_code_difference", worst);
  EXPECT_LE(worst, 2);  // rounding of the HTP kernels against float; 1 was seen with QAIRT 2.51
}

TEST_F(QnnSessionTest, TraceTellsWhatTheMatMulBecame) {
  ASSERT_THAT(Session::Create(kData / "qdq_matmul.onnx", Compile()), IsOk());
  const Result<OpTrace> trace = ReadOpTrace(folder_ / "qnn_op_trace.json");
  ASSERT_THAT(trace, IsOk());
  const auto op = std::find_if(trace->ops.begin(), trace->ops.end(), [](const TracedOp& candidate) {
    return candidate.qnn_op == "FullyConnected";
  });
  ASSERT_NE(op, trace->ops.end());
  EXPECT_THAT(op->nodes, ::testing::Contains("product"));
  EXPECT_TRUE(trace->unsupported.empty());
}

TEST_F(QnnSessionTest, UnsupportedNodeIsNamedWithItsReason) {
  EXPECT_THAT(
      Session::Create(kData / "qdq_unsupported.onnx", Compile()),
      StatusIs(StatusCode::kUnimplemented,
               AllOf(HasSubstr("qdq_unsupported.onnx: "), HasSubstr("find_places (NonZero): "),
                     HasSubstr("static"), Not(HasSubstr("product")))));
}

TEST_F(QnnSessionTest, UnsupportedNodeIsNamedWithoutATrace) {
  EXPECT_THAT(Session::Create(kData / "qdq_unsupported.onnx", Npu()),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("find_places (NonZero)")));
}

TEST_F(QnnSessionTest, MissingBackendIsReported) {
  SessionOptions options = Npu();
  options.qnn_options["backend_path"] = (folder_ / "libNone.so").string();
  EXPECT_THAT(Session::Create(kData / "qdq_matmul.onnx", options),
              StatusIs(StatusCode::kInternal, HasSubstr("libNone.so")));
}

TEST_F(QnnSessionTest, VersionIsABuildId) {
  const Result<std::string> version = QnnVersion();
  ASSERT_THAT(version, IsOk());
  EXPECT_THAT(*version, ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+\\.[0-9]+"));
}

TEST_F(QnnSessionTest, LoaderPathHoldsTheWheelAndItsCppRuntime) {
  const std::string path = VendorLibraryPath();
  EXPECT_THAT(path, AllOf(HasSubstr(FindQnnFolder()->string()), HasSubstr("onnxruntime_qnn.libs")));
}

}  // namespace
}  // namespace hexport::ort
