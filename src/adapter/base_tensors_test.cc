#include "adapter/base_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "adapter/base_hash.h"
#include "adapter/test_models.h"
#include "checkpoint/checkpoint.h"

namespace hexport::adapter {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;
using testing::TinyModel;
using testing::TinyTensors;

constexpr const char* kShards[] = {"model-00001-of-00003.safetensors",
                                   "model-00002-of-00003.safetensors",
                                   "model-00003-of-00003.safetensors"};
constexpr const char* kIndex = "model.safetensors.index.json";

class BaseTensorsTest : public ::testing::Test {
 protected:
  // TL3 in three shards, with an index.
  void WriteShards() {
    std::array<TinyTensors, 3> parts;
    nlohmann::json map;
    size_t i = 0;
    for (const auto& [name, tensor] : model_.tensors) {
      const size_t shard = i++ * 3 / model_.tensors.size();
      parts[shard][name] = tensor;
      map[name] = kShards[shard];
    }
    for (size_t shard = 0; shard < 3; ++shard) {
      testing::WriteSafetensors(directory_ / kShards[shard], parts[shard]);
    }
    testing::Spill(directory_ / "config.json", model_.config.dump());
    testing::Spill(directory_ / kIndex, nlohmann::json{{"weight_map", map}}.dump());
  }
  Result<std::unique_ptr<BaseTensors>> Open() { return BaseTensors::Open(directory_.path(), {}); }

  testing::TestDirectory directory_;
  TinyModel model_ = testing::Tl3();
};

TEST_F(BaseTensorsTest, ReadsRowsOfEveryType) {
  TinyModel model = model_;
  model.tensors["model.norm.weight"].dtype = "F16";
  model.tensors["lm_head.weight"].dtype = "BF16";
  testing::WriteModel(directory_.path(), model);
  const auto base = Open();
  ASSERT_THAT(base, IsOk());
  EXPECT_EQ((*base)->tensors().size(), model.tensors.size());
  const TinyTensors stored = testing::ReadFolder(directory_.path());
  for (const auto& [name, tensor] : stored) {
    const int64_t columns = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
    std::vector<float> rows(static_cast<size_t>(3 * columns));
    ASSERT_THAT((*base)->ReadRows(name, 2, rows), IsOk());
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), tensor.values.begin() + 2 * columns)) << name;
  }
  std::vector<float> wrong(33);
  EXPECT_THAT((*base)->ReadRows("lm_head.weight", 0, wrong),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("whole rows")));
  wrong.resize(64);
  EXPECT_THAT((*base)->ReadRows("lm_head.weight", 63, wrong),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("63")));
  EXPECT_THAT((*base)->ReadRows("none", 0, wrong),
              StatusIs(StatusCode::kNotFound, HasSubstr("none")));
}

TEST_F(BaseTensorsTest, HashIsThatOfTheTensorsNotOfTheFiles) {
  testing::WriteModel(directory_ / "single", model_);
  const auto single = BaseTensors::Open(directory_ / "single", {});
  ASSERT_THAT(single, IsOk());
  WriteShards();
  const auto shards = Open();
  ASSERT_THAT(shards, IsOk());
  const auto hash = HashBase(**single);
  ASSERT_THAT(hash, IsOk());
  EXPECT_EQ(*HashBase(**shards), *hash);
  model_.tensors["lm_head.weight"].values[5] += 1;
  WriteShards();
  EXPECT_NE(*HashBase(**Open()), *hash);
}

// L18 (a): the file is named.
TEST_F(BaseTensorsTest, L18MissingShardIsNamed) {
  WriteShards();
  fs::remove(directory_ / kShards[1]);
  EXPECT_THAT(Open(), StatusIs(StatusCode::kNotFound, HasSubstr(kShards[1])));
  EXPECT_THAT(Checkpoint::Open(directory_.path()),
              StatusIs(StatusCode::kNotFound, HasSubstr(kShards[1])));
  // Without an index the names of the others tell.
  fs::remove(directory_ / kIndex);
  EXPECT_THAT(Open(), StatusIs(StatusCode::kNotFound, HasSubstr(kShards[1])));
}

// L18 (b): all shards, and no tensor twice.
TEST_F(BaseTensorsTest, L18NoIndexLoadsAllAndRefusesDuplicates) {
  WriteShards();
  fs::remove(directory_ / kIndex);
  const auto base = Open();
  ASSERT_THAT(base, IsOk());
  EXPECT_EQ((*base)->tensors().size(), model_.tensors.size());
  EXPECT_THAT((*base)->warnings(), Contains(HasSubstr("there is no " + std::string(kIndex))));
  EXPECT_THAT(Checkpoint::Open(directory_.path()), IsOk());

  fs::copy_file(directory_ / kShards[0], directory_ / "model-extra.safetensors");
  for (const Status& status : {Open().status(), Checkpoint::Open(directory_.path()).status()}) {
    EXPECT_THAT(status, StatusIs(StatusCode::kDataLoss,
                                 AllOf(HasSubstr(kShards[0]), HasSubstr("model-extra.safetensors"),
                                       HasSubstr("lm_head.weight"))));
  }
}

// L18 (c): a quantized model.safetensors beside the shards does not count.
TEST_F(BaseTensorsTest, L18StrayFileIsIgnoredAndSaid) {
  WriteShards();
  testing::WriteSafetensors(directory_ / "model.safetensors",
                            {{"lm_head.weight", {{1}, {7}, "F32"}}});
  const auto base = Open();
  ASSERT_THAT(base, IsOk());
  EXPECT_EQ((*base)->Find("lm_head.weight")->shape, Shape({64, 32}));
  EXPECT_THAT((*base)->warnings(),
              ElementsAre(AllOf(HasSubstr("/model.safetensors"), HasSubstr("ignored"))));
  const auto checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_THAT(checkpoint, IsOk());
  EXPECT_EQ((*checkpoint)->Find("lm_head.weight")->shape, Shape({64, 32}));
}

// L18 (d): cut by 100 bytes.
TEST_F(BaseTensorsTest, L18TruncatedShardIsNamedWithByteCounts) {
  WriteShards();
  const std::string whole = testing::Slurp(directory_ / kShards[2]);
  testing::Spill(directory_ / kShards[2], whole.substr(0, whole.size() - 100));
  for (const Status& status : {Open().status(), Checkpoint::Open(directory_.path()).status()}) {
    EXPECT_THAT(status,
                StatusIs(StatusCode::kDataLoss,
                         AllOf(HasSubstr(kShards[2]), HasSubstr(std::to_string(whole.size())),
                               HasSubstr(std::to_string(whole.size() - 100)))));
  }
}

TEST_F(BaseTensorsTest, RefusesATensorThatIsNotWhereTheIndexSays) {
  WriteShards();
  nlohmann::json index = nlohmann::json::parse(testing::Slurp(directory_ / kIndex));
  index["weight_map"]["lm_head.weight"] = kShards[2];
  testing::Spill(directory_ / kIndex, index.dump());
  EXPECT_THAT(Open(), StatusIs(StatusCode::kNotFound,
                               AllOf(HasSubstr("lm_head.weight"), HasSubstr(kShards[2]))));
}

// L19: bytes after the last tensor are refused on every path, as the reference loader does.
TEST_F(BaseTensorsTest, L19TrailingBytesAreRefused) {
  testing::WriteModel(directory_.path(), model_);
  testing::Spill(directory_ / "model.safetensors",
                 testing::Slurp(directory_ / "model.safetensors") + "4444");
  for (const Status& status : {Open().status(), Checkpoint::Open(directory_.path()).status(),
                               SafetensorsFile::Open(directory_ / "model.safetensors").status()}) {
    EXPECT_THAT(status, StatusIs(StatusCode::kDataLoss, HasSubstr("bytes after the last tensor")));
  }
}

// L19: metadata alone is a valid file.
TEST_F(BaseTensorsTest, L19NoTensorsIsValid) {
  testing::WriteSafetensors(directory_ / "empty.safetensors", {});
  const auto file = SafetensorsFile::Open(directory_ / "empty.safetensors");
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT((*file)->entries(), IsEmpty());
}

struct QuantizedCase {
  const char* format;
  std::vector<SafetensorsEntry> entries;
};

class QuantizedBaseTest : public ::testing::TestWithParam<QuantizedCase> {};

// L16: named and refused, never read as floats.
TEST_P(QuantizedBaseTest, L16IsNamedAndRefused) {
  testing::TestDirectory directory;
  testing::Spill(directory / "config.json", R"({"model_type": "llama"})");
  auto writer = SafetensorsWriter::Create(directory / "model.safetensors", GetParam().entries, {});
  ASSERT_THAT(writer, IsOk());
  for (const SafetensorsEntry& entry : GetParam().entries) {
    const int64_t size = entry.dtype == "I32" || entry.dtype == "F32" ? 4
                         : entry.dtype == "F16"                       ? 2
                                                                      : 1;
    const std::vector<std::byte> bytes(static_cast<size_t>(NumElements(entry.shape) * size));
    ASSERT_THAT((*writer)->Append(bytes), IsOk());
  }
  ASSERT_THAT((*writer)->Commit(), IsOk());
  EXPECT_THAT(BaseTensors::Open(directory.path(), {}),
              StatusIs(StatusCode::kUnimplemented, HasSubstr(GetParam().format)));
}

INSTANTIATE_TEST_SUITE_P(
    Formats, QuantizedBaseTest,
    ::testing::Values(
        QuantizedCase{"bitsandbytes 4-bit",
                      {{"q_proj.weight", "U8", {512, 1}, 0, 0},
                       {"q_proj.weight.absmax", "F32", {16}, 0, 0},
                       {"q_proj.weight.quant_map", "F32", {16}, 0, 0},
                       {"q_proj.weight.quant_state.bitsandbytes__nf4", "U8", {90}, 0, 0}}},
        QuantizedCase{"bitsandbytes 8-bit",
                      {{"q_proj.weight", "I8", {8, 8}, 0, 0}, {"q_proj.SCB", "F32", {8}, 0, 0}}},
        QuantizedCase{"GPTQ",
                      {{"q_proj.qweight", "I32", {1, 8}, 0, 0},
                       {"q_proj.qzeros", "I32", {1, 1}, 0, 0},
                       {"q_proj.scales", "F16", {1, 8}, 0, 0},
                       {"q_proj.g_idx", "I32", {8}, 0, 0}}},
        QuantizedCase{"AWQ",
                      {{"q_proj.qweight", "I32", {8, 1}, 0, 0},
                       {"q_proj.qzeros", "I32", {1, 1}, 0, 0},
                       {"q_proj.scales", "F16", {1, 8}, 0, 0}}},
        QuantizedCase{"compressed-tensors",
                      {{"q_proj.weight_packed", "I32", {8, 1}, 0, 0},
                       {"q_proj.weight_scale", "F16", {8, 1}, 0, 0}}},
        QuantizedCase{"FP8 with block scales",
                      {{"q_proj.weight", "F8_E4M3", {8, 8}, 0, 0},
                       {"q_proj.weight_scale_inv", "F32", {1, 1}, 0, 0}}},
        QuantizedCase{"U8 weights", {{"q_proj.weight", "U8", {8, 8}, 0, 0}}}));

TEST_F(BaseTensorsTest, L16QuantizationConfigIsNamed) {
  model_.config["quantization_config"] = {{"quant_method", "awq"}, {"bits", 4}};
  testing::WriteModel(directory_.path(), model_);
  EXPECT_THAT(Open(), StatusIs(StatusCode::kUnimplemented,
                               AllOf(HasSubstr("awq"), HasSubstr("quantization_config"))));
}

TEST_F(BaseTensorsTest, RefusesWhatIsNoBase) {
  EXPECT_THAT(BaseTensors::Open(directory_ / "none", {}),
              StatusIs(StatusCode::kNotFound, HasSubstr("none")));
  testing::WriteAdapter(directory_.path(), testing::MakeAdapter(model_, 4, 8, {"q_proj"}));
  EXPECT_THAT(Open(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("LoRA adapter")));
  testing::Spill(directory_ / "config.json", "{}");
  testing::Spill(directory_ / "pytorch_model.bin", "x");
  EXPECT_THAT(Open(), StatusIs(StatusCode::kNotFound, HasSubstr("pickle")));
}

}  // namespace
}  // namespace hexport::adapter
