#include "bundle/manifest.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "base/status_matchers.h"

namespace hexport::bundle {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

Manifest Example() {
  Manifest manifest;
  manifest.hexport_version = "0.1.0";
  manifest.ort_version = "1.32.0";
  manifest.qnn_version = "2.51";
  manifest.build_key = "key";
  ModelFacts& model = manifest.model;
  model.architecture = "LlamaForCausalLM";
  model.name = "tiny \"quoted\" \xc3\xa4";
  model.hidden_size = 64;
  model.intermediate_size = 128;
  model.num_hidden_layers = 2;
  model.num_attention_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = 16;
  model.vocab_size = 61;
  model.max_position_embeddings = 2048;
  model.rms_norm_eps = 1e-5;
  model.rope_theta = 10000;
  model.rope_scaling = "llama3";
  model.rope_factor = 32;
  model.rope_original_max_position_embeddings = 8192;
  model.rope_frequencies = {1.0, 0.25};
  model.bos_token_id = 1;
  model.eos_token_ids = {2, 7};
  model.eos_token = "</s>";
  manifest.soc = "sm8650";
  manifest.soc_model = 57;
  manifest.htp_arch = 75;
  manifest.weights = "lpbq";
  manifest.block_size = 32;
  manifest.context_length = 128;
  manifest.cpu_model = "cpu/model.onnx";
  manifest.context_binaries = {"phone_part_1_of_1.bin"};
  manifest.tokenizer = "tokenizer.json";
  GraphEntry graph;
  graph.name = "prompt_ar32_cl128_1_of_1";
  graph.ar = 32;
  graph.cl = 128;
  graph.qdq_model = "qdq/prompt_ar32_cl128_1_of_1.onnx";
  graph.inputs = {{"input_ids", "int32", {1, 32}, 0, 0},
                  {"attention_mask", "uint16", {1, 1, 32, 128}, 0.015259021896696422, 65535}};
  graph.outputs = {{"logits", "uint16", {1, 32, 61}, 1.0 / 3, 32768}};
  manifest.graphs = {graph};
  manifest.files = {{"tokenizer.json", 12, std::string(64, 'a')}};
  return manifest;
}

// ParseManifest of the example after `change`.
Result<Manifest> Changed(const std::function<void(json&)>& change) {
  json root = json::parse(ManifestToJson(Example()));
  change(root);
  return ParseManifest(root.dump(), "manifest.json");
}

TEST(ManifestTest, RoundTripKeepsEveryField) {
  const std::string text = ManifestToJson(Example());
  const Result<Manifest> parsed = ParseManifest(text, "manifest.json");
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(ManifestToJson(*parsed), text);
  EXPECT_EQ(parsed->model.name, Example().model.name);
  EXPECT_EQ(parsed->model.eos_token_ids, (std::vector<int64_t>{2, 7}));
  EXPECT_EQ(parsed->graphs[0].inputs[1].scale, 0.015259021896696422);
  EXPECT_EQ(parsed->graphs[0].outputs[0].scale, 1.0 / 3);
  EXPECT_EQ(parsed->files[0].bytes, 12);
}

TEST(ManifestTest, NamesTheFieldOfAWrongType) {
  EXPECT_THAT(Changed([](json& root) { root["graphs"][0]["ar"] = "x"; }),
              StatusIs(StatusCode::kInvalidArgument,
                       "manifest.json: graphs[0].ar: expected a positive integer, got \"x\""));
}

TEST(ManifestTest, NamesAMissingField) {
  EXPECT_THAT(Changed([](json& root) { root["model"].erase("head_dim"); }),
              StatusIs(StatusCode::kInvalidArgument, "manifest.json: model.head_dim: missing"));
}

TEST(ManifestTest, RefusesAnUnknownField) {
  EXPECT_THAT(Changed([](json& root) { root["graphs"][0]["inputs"][1]["offset"] = 1; }),
              StatusIs(StatusCode::kInvalidArgument,
                       "manifest.json: graphs[0].inputs[1].offset: unknown field"));
}

TEST(ManifestTest, BrokenJsonIsDataLoss) {
  const std::string text = ManifestToJson(Example());
  EXPECT_THAT(ParseManifest(text.substr(0, text.size() / 2), "manifest.json"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("manifest.json: expected JSON")));
  EXPECT_THAT(ParseManifest("", "m"), StatusIs(StatusCode::kDataLoss, HasSubstr("m: ")));
  EXPECT_THAT(ParseManifest("[1, 1e999]", "m"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("1e999")));
}

TEST(ManifestTest, AJsonListIsRefused) {
  EXPECT_THAT(ParseManifest("[1, 2]", "m"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("got a list of 2")));
}

TEST(ManifestTest, NewerSchemaNamesBothVersions) {
  EXPECT_THAT(
      Changed([](json& root) { root["schema_version"] = 3; }),
      StatusIs(StatusCode::kUnimplemented, AllOf(HasSubstr("schema_version 3"), HasSubstr("(2)"))));
}

// What schema 2 added is worked out from what schema 1 had.
TEST(ManifestTest, Schema1IsStillRead) {
  const auto old = Changed([](json& root) {
    root["schema_version"] = 1;
    root.erase("notes");
    root.erase("tokenizer_fingerprint");
    for (const char* field : {"rope_frequencies", "rope_attention_factor", "local_rope_frequencies",
                              "local_rope_attention_factor", "sliding_window"}) {
      root["model"].erase(field);
    }
  });
  ASSERT_THAT(old, IsOk());
  ASSERT_EQ(old->model.rope_frequencies.size(), 8u);
  EXPECT_EQ(old->model.rope_frequencies[0], 1.0);
  // llama3 with factor 32: the longest wave is slowed down.
  EXPECT_NEAR(old->model.rope_frequencies[7], std::pow(10000.0, -7.0 / 8) / 32, 1e-12);
  EXPECT_EQ(old->model.sliding_window, 0);
}

TEST(ManifestTest, KeepsRopeWindowsAndNotes) {
  const auto parsed = Changed([](json& root) {
    root["model"]["rope_scaling"] = "longrope";
    root["model"]["rope_frequencies"] = {1.0, 0.1};
    root["model"]["rope_attention_factor"] = 1.25;
    root["model"]["local_rope_frequencies"] = {0.5};
    root["model"]["sliding_window"] = 512;
    root["notes"] = {"a note"};
  });
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(parsed->model.rope_frequencies, (std::vector<double>{1.0, 0.1}));
  EXPECT_EQ(parsed->model.rope_attention_factor, 1.25);
  EXPECT_EQ(parsed->model.local_rope_frequencies, std::vector<double>{0.5});
  EXPECT_EQ(parsed->model.sliding_window, 512);
  EXPECT_EQ(parsed->notes, std::vector<std::string>{"a note"});
}

TEST(ManifestTest, TheFingerprintIsAHashOrNothing) {
  EXPECT_THAT(Changed([](json& root) { root.erase("tokenizer_fingerprint"); }),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("tokenizer_fingerprint: missing")));
  EXPECT_THAT(Changed([](json& root) { root["tokenizer_fingerprint"] = "abc"; }),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("64 lower-case hex digits")));
}

TEST(ManifestTest, RefusesPathsOutOfTheBundle) {
  for (const char* path : {"/etc/passwd", "../x", "a/../../x", "a\\..\\x", "C:x", "./x", "a//b",
                           "a/", "", "..", "a\nb"}) {
    EXPECT_THAT(Changed([&](json& root) { root["files"][0]["path"] = path; }),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("files[0].path")))
        << path;
  }
  EXPECT_THAT(Changed([](json& root) { root["graphs"][0]["qdq_model"] = "../x"; }),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("graphs[0].qdq_model")));
  EXPECT_THAT(Changed([](json& root) { root["context_binaries"][0] = "/x"; }),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("context_binaries[0]")));
}

TEST(ManifestTest, TakesNamesWithDots) {
  EXPECT_THAT(Changed([](json& root) { root["files"][0]["path"] = "a..b/..c/.d"; }), IsOk());
}

TEST(ManifestTest, RefusesInsaneSizes) {
  const std::vector<std::pair<std::string, json>> cases = {{"/context_length", 1},
                                                           {"/context_length", int64_t{1} << 40},
                                                           {"/model/num_hidden_layers", 0},
                                                           {"/model/head_dim", 15},
                                                           {"/model/vocab_size", -1},
                                                           {"/model/vocab_size", 1.5},
                                                           {"/model/vocab_size", UINT64_MAX},
                                                           {"/model/num_key_value_heads", 3},
                                                           {"/graphs/0/ar", 128},
                                                           {"/graphs/0/inputs/0/shape/0", 0},
                                                           {"/graphs/0/inputs/1/scale", -1},
                                                           {"/graphs/0/inputs/1/zero_point", 65536},
                                                           {"/mask_floor", 0},
                                                           {"/files/0/bytes", -1},
                                                           {"/files/0/sha256", "abc"},
                                                           {"/model/rope_scaling", "xpos"},
                                                           {"/model/rope_frequencies/0", -1},
                                                           {"/model/sliding_window", -1},
                                                           {"/graphs/0/inputs/0/dtype", "int3"}};
  for (const auto& [pointer, value] : cases) {
    EXPECT_THAT(Changed([&](json& root) { root[json::json_pointer(pointer)] = value; }),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("manifest.json: ")))
        << pointer << " " << value;
  }
}

TEST(ManifestTest, RefusesAFileListedTwice) {
  EXPECT_THAT(
      Changed([](json& root) { root["files"].push_back(root["files"][0]); }),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("\"tokenizer.json\" is listed twice")));
}

class BundleFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("hexport_bundle_" +
               std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "qdq");
    Write("tokenizer.json", "tokens");
    Write("qdq/a.onnx", "graph");
  }
  void TearDown() override { fs::remove_all(folder_); }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  void WriteManifest() {
    Manifest manifest = Example();
    const Result<std::vector<FileEntry>> files = HashFiles(folder_);
    ASSERT_THAT(files, IsOk());
    manifest.files = *files;
    Write("manifest.json", ManifestToJson(manifest));
  }
  fs::path folder_;
};

TEST_F(BundleFolderTest, HashFilesListsAllButTheManifestSorted) {
  Write("manifest.json", "{}");
  Write("qdq/manifest.json", "inner");  // only the root's is left out
  const Result<std::vector<FileEntry>> files = HashFiles(folder_);
  ASSERT_THAT(files, IsOk());
  ASSERT_EQ(files->size(), 3u);
  EXPECT_EQ((*files)[0].path, "qdq/a.onnx");
  EXPECT_EQ((*files)[0].bytes, 5);
  EXPECT_EQ((*files)[0].sha256, Sha256Hex("graph"));
  EXPECT_EQ((*files)[1].path, "qdq/manifest.json");
  EXPECT_EQ((*files)[2].path, "tokenizer.json");
}

TEST_F(BundleFolderTest, HashFilesOfAMissingFolderIsNotFound) {
  EXPECT_THAT(HashFiles(folder_ / "none"), StatusIs(StatusCode::kNotFound, HasSubstr("none")));
}

TEST_F(BundleFolderTest, OpensAWholeBundle) {
  WriteManifest();
  EXPECT_THAT(OpenBundle(folder_, true), IsOk());
}

TEST_F(BundleFolderTest, MissingManifestIsNotFound) {
  EXPECT_THAT(OpenBundle(folder_, false),
              StatusIs(StatusCode::kNotFound, HasSubstr("manifest.json")));
}

TEST_F(BundleFolderTest, MissingFileIsNotFound) {
  WriteManifest();
  fs::remove(folder_ / "qdq/a.onnx");
  EXPECT_THAT(OpenBundle(folder_, false), StatusIs(StatusCode::kNotFound, HasSubstr("qdq/a.onnx")));
}

TEST_F(BundleFolderTest, WrongSizeIsDataLoss) {
  WriteManifest();
  Write("qdq/a.onnx", "graph2");
  EXPECT_THAT(
      OpenBundle(folder_, false),
      StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("expected 5 bytes"), HasSubstr("got 6"))));
}

TEST_F(BundleFolderTest, ChangedBytesShowOnlyWithHash) {
  WriteManifest();
  Write("qdq/a.onnx", "graqh");
  EXPECT_THAT(OpenBundle(folder_, false), IsOk());
  EXPECT_THAT(OpenBundle(folder_, true), StatusIs(StatusCode::kDataLoss, HasSubstr("SHA-256")));
}

}  // namespace
}  // namespace hexport::bundle
