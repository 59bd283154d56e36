#include "graph/onnx_io.h"

#include <gtest/gtest.h>
#include <onnx-ml.pb.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>

#include "base/status_matchers.h"

namespace hexport::graph {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class OnnxIoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("onnx_io_" + std::to_string(getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
};

std::vector<float> Ramp(size_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// [n, 1024] x [1024, 2] + bias, with attributes of every kind on a custom node.
Graph Sample() {
  Graph graph;
  graph.name = "sample";
  graph.inputs = {{"x", DType::kFloat32, {kDynamicDim, 1024}, {"n", ""}}};
  graph.outputs = {{"y", DType::kFloat32, {kDynamicDim, 2}, {"n", ""}}};
  graph.initializers = {MakeConstant<float>("w", DType::kFloat32, {1024, 2}, Ramp(2048, 0.5f)),
                        MakeConstant<float>("bias", DType::kFloat32, {2}, {1.0f, 2.0f}),
                        MakeConstant<uint8_t>("codes", DType::kInt4, {3}, {0xf1, 0x08})};
  graph.nodes = {{"MatMul", "", "xw", {"x", "w"}, {"xw"}, {}},
                 {"Custom",
                  "com.microsoft",
                  "y",
                  {"xw", "", "bias", "codes"},
                  {"y"},
                  {{"axis", int64_t{-1}},
                   {"epsilon", 0.25f},
                   {"mode", std::string("fast")},
                   {"perm", std::vector<int64_t>{1, 0}},
                   {"scales", std::vector<float>{0.5f, 2.0f}}}}};
  return graph;
}

std::vector<std::byte> BytesOf(const Initializer& initializer) {
  std::vector<std::byte> bytes(static_cast<size_t>(NumBytes(initializer.dtype, initializer.shape)));
  EXPECT_THAT(initializer.source(bytes), IsOk());
  return bytes;
}

void ExpectSameGraph(const Graph& got, const Graph& expected) {
  EXPECT_EQ(got.name, expected.name);
  EXPECT_EQ(got.opset, expected.opset);
  ASSERT_EQ(got.inputs.size(), expected.inputs.size());
  EXPECT_EQ(got.inputs[0].shape, expected.inputs[0].shape);
  EXPECT_EQ(got.inputs[0].symbols, expected.inputs[0].symbols);
  ASSERT_EQ(got.nodes.size(), expected.nodes.size());
  for (size_t i = 0; i < got.nodes.size(); ++i) {
    EXPECT_EQ(got.nodes[i].op_type, expected.nodes[i].op_type);
    EXPECT_EQ(got.nodes[i].domain, expected.nodes[i].domain);
    EXPECT_EQ(got.nodes[i].name, expected.nodes[i].name);
    EXPECT_EQ(got.nodes[i].inputs, expected.nodes[i].inputs);
    EXPECT_EQ(got.nodes[i].outputs, expected.nodes[i].outputs);
    EXPECT_EQ(got.nodes[i].attributes, expected.nodes[i].attributes);
  }
  ASSERT_EQ(got.initializers.size(), expected.initializers.size());
  for (const Initializer& initializer : expected.initializers) {
    const Initializer* same = got.FindInitializer(initializer.name);
    ASSERT_NE(same, nullptr) << initializer.name;
    EXPECT_EQ(same->dtype, initializer.dtype);
    EXPECT_EQ(same->shape, initializer.shape);
    EXPECT_EQ(BytesOf(*same), BytesOf(initializer)) << initializer.name;
  }
}

onnx::ModelProto Parse(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  onnx::ModelProto model;
  EXPECT_TRUE(model.ParseFromIstream(&in));
  return model;
}

void Write(const onnx::ModelProto& model, const fs::path& path) {
  std::ofstream out(path, std::ios::binary);
  ASSERT_TRUE(model.SerializeToOstream(&out));
}

std::map<std::string, std::string> External(const onnx::ModelProto& model,
                                            const std::string& name) {
  std::map<std::string, std::string> entries;
  for (const auto& tensor : model.graph().initializer()) {
    if (tensor.name() != name) continue;
    for (const auto& entry : tensor.external_data()) entries[entry.key()] = entry.value();
  }
  return entries;
}

OnnxWriteOptions AllExternal() {
  OnnxWriteOptions options;
  options.external_data_threshold_bytes = 0;
  return options;
}

TEST_F(OnnxIoTest, RoundTripWithWeightsInside) {
  ASSERT_THAT(WriteOnnx(Sample(), folder_ / "m.onnx", {}), IsOk());
  EXPECT_FALSE(fs::exists(folder_ / "m.data"));
  const auto read = ReadOnnx(folder_ / "m.onnx");
  ASSERT_THAT(read, IsOk());
  ExpectSameGraph(*read, Sample());
}

TEST_F(OnnxIoTest, RoundTripWithExternalData) {
  ASSERT_THAT(WriteOnnx(Sample(), folder_ / "m.onnx", AllExternal()), IsOk());
  const auto read = ReadOnnx(folder_ / "m.onnx");
  ASSERT_THAT(read, IsOk());
  ExpectSameGraph(*read, Sample());
  const auto entries = External(Parse(folder_ / "m.onnx"), "w");
  EXPECT_EQ(entries.at("location"), "m.data");
  EXPECT_EQ(std::stoull(entries.at("offset")) % 4096, 0u);
  EXPECT_EQ(entries.at("length"), "8192");
  EXPECT_TRUE(External(Parse(folder_ / "m.onnx"), "bias").empty());  // small: stays inside
}

TEST_F(OnnxIoTest, BothFilesCanBeMoved) {
  ASSERT_THAT(WriteOnnx(Sample(), folder_ / "m.onnx", AllExternal()), IsOk());
  fs::create_directories(folder_ / "elsewhere");
  fs::rename(folder_ / "m.onnx", folder_ / "elsewhere" / "renamed.onnx");
  fs::rename(folder_ / "m.data", folder_ / "elsewhere" / "m.data");
  const auto read = ReadOnnx(folder_ / "elsewhere" / "renamed.onnx");
  ASSERT_THAT(read, IsOk());
  ExpectSameGraph(*read, Sample());
}

TEST_F(OnnxIoTest, DeclaresVersionAndOpsets) {
  ASSERT_THAT(WriteOnnx(Sample(), folder_ / "m.onnx", {}), IsOk());
  const onnx::ModelProto model = Parse(folder_ / "m.onnx");
  EXPECT_EQ(model.ir_version(), 10);
  EXPECT_EQ(model.producer_name(), "hexport");
  ASSERT_EQ(model.opset_import_size(), 2);
  EXPECT_EQ(model.opset_import(0).domain(), "");
  EXPECT_EQ(model.opset_import(0).version(), 23);
  EXPECT_EQ(model.opset_import(1).domain(), "com.microsoft");
  EXPECT_EQ(model.opset_import(1).version(), 1);
}

TEST_F(OnnxIoTest, AsksEachSourceOnceAndAlone) {
  Graph graph = Sample();
  int asked = 0;
  graph.initializers[0].source = [&](std::span<std::byte> out) {
    ++asked;
    EXPECT_EQ(out.size(), 8192u);
    std::memset(out.data(), 0, out.size());
    return OkStatus();
  };
  ASSERT_THAT(WriteOnnx(graph, folder_ / "m.onnx", AllExternal()), IsOk());
  EXPECT_EQ(asked, 1);
}

TEST_F(OnnxIoTest, FailingSourceLeavesNoFiles) {
  Graph graph = Sample();
  graph.initializers[0].source = [](std::span<std::byte>) {
    return DataLoss("shard 2 is truncated");
  };
  EXPECT_THAT(
      WriteOnnx(graph, folder_ / "m.onnx", AllExternal()),
      StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("initializer w"), HasSubstr("shard 2"))));
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(OnnxIoTest, RefusesADanglingInput) {
  Graph graph = Sample();
  graph.nodes[0].inputs[1] = "nothing";
  EXPECT_THAT(WriteOnnx(graph, folder_ / "m.onnx", {}),
              StatusIs(StatusCode::kInternal, HasSubstr("\"nothing\"")));
  EXPECT_THAT(SerializeOnnx(graph), StatusIs(StatusCode::kInternal, HasSubstr("\"nothing\"")));
}

TEST_F(OnnxIoTest, RefusesDataNameWithAFolder) {
  OnnxWriteOptions options = AllExternal();
  options.external_data_name = "../m.data";
  EXPECT_THAT(WriteOnnx(Sample(), folder_ / "m.onnx", options),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("../m.data")));
}

TEST_F(OnnxIoTest, SerializesWithWeightsInside) {
  const auto bytes = SerializeOnnx(Sample());
  ASSERT_THAT(bytes, IsOk());
  std::ofstream(folder_ / "m.onnx", std::ios::binary) << *bytes;
  const auto read = ReadOnnx(folder_ / "m.onnx");
  ASSERT_THAT(read, IsOk());
  ExpectSameGraph(*read, Sample());
}

TEST_F(OnnxIoTest, SerializeRefusesMoreThanProtobufTakes) {
  Graph graph = Sample();
  graph.initializers.push_back({"huge", DType::kInt8, {int64_t{1} << 31}, {}});
  EXPECT_THAT(SerializeOnnx(graph), StatusIs(StatusCode::kResourceExhausted, HasSubstr("2 GB")));
}

TEST_F(OnnxIoTest, SharedWeightsAreStoredOnce) {
  auto shared = SharedWeights::Create(folder_ / "weights.data");
  ASSERT_THAT(shared, IsOk());
  Graph second = Sample();
  second.initializers[0].source = [](std::span<std::byte>) {
    return Internal("asked a second time");
  };
  ASSERT_THAT((*shared)->WriteModel(Sample(), folder_ / "a.onnx", {}), IsOk());
  ASSERT_THAT((*shared)->WriteModel(second, folder_ / "b.onnx", {}), IsOk());
  ASSERT_THAT((*shared)->Commit(), IsOk());
  EXPECT_EQ(fs::file_size(folder_ / "weights.data"), 8192u);
  for (const char* name : {"a.onnx", "b.onnx"}) {
    const auto read = ReadOnnx(folder_ / name);
    ASSERT_THAT(read, IsOk());
    ExpectSameGraph(*read, Sample());
  }
}

TEST_F(OnnxIoTest, SharedWeightsKeepAnotherShapeApart) {
  auto shared = SharedWeights::Create(folder_ / "weights.data");
  ASSERT_THAT(shared, IsOk());
  Graph other = Sample();
  other.initializers[0] = MakeConstant<float>("w", DType::kFloat32, {2048, 1}, Ramp(2048, 7.0f));
  ASSERT_THAT((*shared)->WriteModel(Sample(), folder_ / "a.onnx", {}), IsOk());
  ASSERT_THAT((*shared)->WriteModel(other, folder_ / "b.onnx", {}), IsOk());
  ASSERT_THAT((*shared)->Commit(), IsOk());
  const auto first = ReadOnnx(folder_ / "a.onnx"), second = ReadOnnx(folder_ / "b.onnx");
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  ExpectSameGraph(*first, Sample());
  ExpectSameGraph(*second, other);
}

TEST_F(OnnxIoTest, SharedWeightsRefuseAnotherFolder) {
  auto shared = SharedWeights::Create(folder_ / "weights.data");
  ASSERT_THAT(shared, IsOk());
  EXPECT_THAT((*shared)->WriteModel(Sample(), folder_ / "sub" / "a.onnx", {}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("weights.data")));
}

TEST_F(OnnxIoTest, ReadRefusesMissingData) {
  ASSERT_THAT(WriteOnnx(Sample(), folder_ / "m.onnx", AllExternal()), IsOk());
  fs::remove(folder_ / "m.data");
  EXPECT_THAT(ReadOnnx(folder_ / "m.onnx"), StatusIs(StatusCode::kNotFound, HasSubstr("m.data")));
}

TEST_F(OnnxIoTest, ReadRefusesTruncatedData) {
  ASSERT_THAT(WriteOnnx(Sample(), folder_ / "m.onnx", AllExternal()), IsOk());
  fs::resize_file(folder_ / "m.data", 8191);
  EXPECT_THAT(ReadOnnx(folder_ / "m.onnx"),
              StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("\"w\""), HasSubstr("8191"))));
}

// Sets one key of w's external data.
void Tamper(const fs::path& path, const std::string& key, const std::string& value) {
  onnx::ModelProto model = Parse(path);
  for (auto& entry : *model.mutable_graph()->mutable_initializer(0)->mutable_external_data()) {
    if (entry.key() == key) entry.set_value(value);
  }
  Write(model, path);
}

TEST_F(OnnxIoTest, ReadRefusesLyingRanges) {
  const std::pair<const char*, const char*> lies[] = {{"offset", "18446744073709551615"},
                                                      {"offset", "4096"},
                                                      {"offset", "-4096"},
                                                      {"length", "8193"},
                                                      {"length", "much"},
                                                      {"location", "../m.data"},
                                                      {"location", "sub/../../m.data"},
                                                      {"location", "/etc/hostname"},
                                                      {"location", ""}};
  for (const auto& [key, value] : lies) {
    ASSERT_THAT(WriteOnnx(Sample(), folder_ / "m.onnx", AllExternal()), IsOk());
    Tamper(folder_ / "m.onnx", key, value);
    EXPECT_THAT(ReadOnnx(folder_ / "m.onnx"), StatusIs(StatusCode::kDataLoss, HasSubstr("\"w\"")))
        << key << value;
  }
}

TEST_F(OnnxIoTest, ReadRefusesWhatIsNotOnnx) {
  std::ofstream(folder_ / "m.onnx", std::ios::binary) << "GGUF and not protobuf at all";
  EXPECT_THAT(ReadOnnx(folder_ / "m.onnx"), StatusIs(StatusCode::kDataLoss, HasSubstr("m.onnx")));
  EXPECT_THAT(ReadOnnx(folder_ / "none.onnx"),
              StatusIs(StatusCode::kNotFound, HasSubstr("none.onnx")));
}

TEST_F(OnnxIoTest, ReadRefusesATensorOfTheWrongSize) {
  ASSERT_THAT(WriteOnnx(Sample(), folder_ / "m.onnx", {}), IsOk());
  onnx::ModelProto model = Parse(folder_ / "m.onnx");
  model.mutable_graph()->mutable_initializer(1)->set_dims(0, 3);
  Write(model, folder_ / "m.onnx");
  EXPECT_THAT(ReadOnnx(folder_ / "m.onnx"),
              StatusIs(StatusCode::kDataLoss,
                       AllOf(HasSubstr("\"bias\""), HasSubstr("expected 12 bytes"))));
}

TEST_F(OnnxIoTest, ReadRefusesSubgraphs) {
  ASSERT_THAT(WriteOnnx(Sample(), folder_ / "m.onnx", {}), IsOk());
  onnx::ModelProto model = Parse(folder_ / "m.onnx");
  auto* attribute = model.mutable_graph()->mutable_node(0)->add_attribute();
  attribute->set_name("then_branch");
  attribute->set_type(onnx::AttributeProto::GRAPH);
  attribute->mutable_g()->set_name("then");
  Write(model, folder_ / "m.onnx");
  EXPECT_THAT(ReadOnnx(folder_ / "m.onnx"),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("then_branch")));
}

TEST_F(OnnxIoTest, ReadsTypedFieldsAndConstantNodes) {
  ASSERT_THAT(WriteOnnx(Sample(), folder_ / "m.onnx", {}), IsOk());
  onnx::ModelProto model = Parse(folder_ / "m.onnx");
  auto* bias = model.mutable_graph()->mutable_initializer(1);
  bias->clear_raw_data();
  bias->add_float_data(1.0f);
  bias->add_float_data(2.0f);
  // codes becomes a Constant node before the others.
  onnx::TensorProto codes = model.graph().initializer(2);
  model.mutable_graph()->mutable_initializer()->RemoveLast();
  auto* node = model.mutable_graph()->add_node();
  node->set_op_type("Constant");
  node->add_output("codes");
  node->add_attribute()->set_name("value");
  node->mutable_attribute(0)->set_type(onnx::AttributeProto::TENSOR);
  *node->mutable_attribute(0)->mutable_t() = codes;
  model.mutable_graph()->mutable_node()->SwapElements(0, 2);
  model.mutable_graph()->mutable_node()->SwapElements(1, 2);
  Write(model, folder_ / "m.onnx");
  const auto read = ReadOnnx(folder_ / "m.onnx");
  ASSERT_THAT(read, IsOk());
  ExpectSameGraph(*read, Sample());
}

}  // namespace
}  // namespace hexport::graph
