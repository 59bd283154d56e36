// Broken checkpoints on disk: every one must be refused with a status that names the file, never a
// crash (run under the asan preset too).
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/test_directory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"

namespace hexport {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::Slurp;
using ::hexport::testing::Spill;
using ::hexport::testing::StatusIs;
using ::hexport::testing::TestDirectory;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kTiny = fs::path(HEXPORT_TEST_DATA) / "tiny";
const fs::path kData = fs::path(HEXPORT_TEST_DATA) / "checkpoint";
constexpr const char* kShard1 = "model-00001-of-00002.safetensors";
constexpr const char* kShard2 = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// A private copy of a folder of test data.
class FolderCopy {
 public:
  explicit FolderCopy(const fs::path& source) { fs::copy(source, path()); }
  const fs::path& path() const { return folder_.path(); }
  fs::path operator/(const char* name) const { return folder_ / name; }

 private:
  TestDirectory folder_;
};

// Offsets 0 .. size: every one near the start, then spread.
std::vector<size_t> CutPoints(size_t size) {
  std::vector<size_t> points;
  for (size_t at = 0; at < size; at += at < 64 ? 1 : (size < 4096 ? 13 : 499)) points.push_back(at);
  points.push_back(size - 1);
  return points;
}

// Opens and, when that succeeds, reads everything: any Status will do, a crash will not.
Status OpenAndReadAll(const fs::path& path) {
  const auto checkpoint = Checkpoint::Open(path);
  if (!checkpoint.ok()) return checkpoint.status();
  for (const TensorInfo& info : (*checkpoint)->tensors()) {
    std::vector<float> values(static_cast<size_t>(NumElements(info.shape)));
    HEXPORT_RETURN_IF_ERROR((*checkpoint)->Read(info.name, values));
  }
  return (*checkpoint)->Text().status();
}

class TruncatedGgufTest : public ::testing::TestWithParam<const char*> {};

TEST_P(TruncatedGgufTest, IsDataLossAtEveryLength) {
  const std::string whole = Slurp(kData / GetParam());
  ASSERT_FALSE(whole.empty());
  const TestDirectory folder;
  const fs::path path = folder / "cut.gguf";
  for (const size_t size : CutPoints(whole.size() - 31)) {  // up to 31 bytes pad the last tensor
    Spill(path, whole.substr(0, size));
    EXPECT_THAT(Checkpoint::Open(path), StatusIs(StatusCode::kDataLoss, HasSubstr("cut.gguf@")))
        << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TruncatedGgufTest,
                         ::testing::Values("llama.gguf", "llama_bias.gguf", "qwen2.gguf",
                                           "qwen3.gguf"));

TEST(CorruptGgufTest, FlippedHeaderBitsNeverCrash) {
  const std::string whole = Slurp(kData / "llama_bias.gguf");
  const TestDirectory folder;
  const fs::path path = folder / "flip.gguf";
  std::mt19937 random(1);
  // The header and the tensor table end before the first 4 KiB.
  for (int i = 0; i < 1500; ++i) {
    std::string broken = whole;
    char& byte = broken[random() % 4096];
    byte = static_cast<char>(byte ^ (1 << (random() % 8)));
    Spill(path, broken);
    (void)OpenAndReadAll(path).ok();
  }
}

TEST(TruncatedSafetensorsTest, SingleFileIsDataLossAtEveryLength) {
  const FolderCopy model(kTiny / "qwen3");
  const std::string whole = Slurp(model / "model.safetensors");
  for (const size_t size : CutPoints(whole.size())) {
    Spill(model / "model.safetensors", whole.substr(0, size));
    EXPECT_THAT(Checkpoint::Open(model.path()),
                StatusIs(StatusCode::kDataLoss, HasSubstr("model.safetensors@")))
        << size;
  }
}

TEST(TruncatedSafetensorsTest, NamesTheShardAndByteCounts) {
  const FolderCopy model(kData / "qwen2_sharded");
  const std::string whole = Slurp(model / kShard2);
  Spill(model / kShard2, whole.substr(0, whole.size() - 100));
  EXPECT_THAT(
      Checkpoint::Open(model.path()),
      StatusIs(StatusCode::kDataLoss,
               AllOf(HasSubstr(kShard2), HasSubstr("expected " + std::to_string(whole.size())),
                     HasSubstr("got " + std::to_string(whole.size() - 100)))));
}

TEST(CorruptSafetensorsTest, FlippedHeaderBitsNeverCrash) {
  const FolderCopy model(kTiny / "qwen2");
  const std::string whole = Slurp(model / "model.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, whole.data(), 8);
  std::mt19937 random(2);
  for (int i = 0; i < 1000; ++i) {
    std::string broken = whole;
    char& byte = broken[random() % (8 + header_bytes)];
    byte = static_cast<char>(byte ^ (1 << (random() % 8)));
    Spill(model / "model.safetensors", broken);
    (void)OpenAndReadAll(model.path()).ok();
  }
}

TEST(CorruptJsonTest, TruncatedFilesAreRefusedAtEveryLength) {
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer_config.json", kIndex}) {
    const FolderCopy model(kData / "qwen2_sharded");
    const std::string whole = Slurp(model / name);
    for (const size_t size : CutPoints(whole.size() - 2)) {  // a last newline may go
      Spill(model / name, whole.substr(0, size));
      if (size == 0 && std::string_view(name) == "generation_config.json")
        continue;  // as if absent
      EXPECT_THAT(Checkpoint::Open(model.path()), StatusIs(StatusCode::kDataLoss, HasSubstr(name)))
          << name << " " << size;
    }
  }
}

TEST(CorruptJsonTest, TruncatedTokenizerIsRefusedByText) {
  const FolderCopy model(kData / "qwen2_sharded");
  const std::string whole = Slurp(model / "tokenizer.json");
  Spill(model / "tokenizer.json", whole.substr(0, 50));
  EXPECT_THAT(OpenAndReadAll(model.path()),
              StatusIs(StatusCode::kDataLoss, HasSubstr("tokenizer.json")));
}

TEST(MissingPartTest, NamesTheMissingShard) {
  const FolderCopy model(kData / "qwen2_sharded");
  fs::remove(model / kShard1);
  EXPECT_THAT(Checkpoint::Open(model.path()), StatusIs(StatusCode::kNotFound, HasSubstr(kShard1)));
}

TEST(MissingPartTest, NamesAFolderWithoutWeights) {
  const FolderCopy model(kTiny / "llama");
  fs::remove(model / "model.safetensors");
  EXPECT_THAT(Checkpoint::Open(model.path()),
              StatusIs(StatusCode::kNotFound, HasSubstr("model.safetensors")));
}

TEST(MissingPartTest, NamesATensorThatTheIndexPromises) {
  const FolderCopy model(kData / "qwen2_sharded");
  std::string index = Slurp(model / kIndex);
  const size_t at = index.find("\"model.norm.weight\"");
  ASSERT_NE(at, std::string::npos);
  index.replace(at, 19, "\"model.norm.wEight\"");
  Spill(model / kIndex, index);
  EXPECT_THAT(
      Checkpoint::Open(model.path()),
      StatusIs(StatusCode::kNotFound, AllOf(HasSubstr("model.norm.wEight"), HasSubstr(kShard2))));
}

TEST(MissingPartTest, DoesNotLeaveTheFolder) {
  const FolderCopy model(kData / "qwen2_sharded");
  Spill(model / kIndex, R"({"weight_map": {"model.norm.weight": "../../etc/passwd"}})");
  EXPECT_THAT(Checkpoint::Open(model.path()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("same folder")));
}

TEST(MissingPartTest, StrayFilesAreIgnored) {
  const FolderCopy model(kData / "qwen2_sharded");
  Spill(model / "pytorch_model.bin", "garbage");
  Spill(model / "stray.safetensors", "garbage");
  Spill(model / "optimizer.pt", "garbage");
  EXPECT_THAT(OpenAndReadAll(model.path()), IsOk());
}

// Every tensor of the model in turn is left out of the file.
TEST(MissingPartTest, NamesEveryMissingTensor) {
  const FolderCopy model(kTiny / "qwen3");
  const auto source = SafetensorsFile::Open(kTiny / "qwen3" / "model.safetensors");
  ASSERT_THAT(source, IsOk());
  ASSERT_EQ((*source)->entries().size(), 24u);
  for (const SafetensorsEntry& missing : (*source)->entries()) {
    std::vector<SafetensorsEntry> kept;
    for (const SafetensorsEntry& entry : (*source)->entries()) {
      if (entry.name != missing.name) kept.push_back(entry);
    }
    auto writer = SafetensorsWriter::Create(model / "model.safetensors", kept, {});
    ASSERT_THAT(writer, IsOk());
    for (const SafetensorsEntry& entry : kept) {
      ASSERT_THAT((*writer)->Append((*source)->Bytes(entry)), IsOk());
    }
    ASSERT_THAT((*writer)->Commit(), IsOk());
    EXPECT_THAT(Checkpoint::Open(model.path()),
                StatusIs(StatusCode::kNotFound, HasSubstr(missing.name)));
  }
}

TEST(LyingConfigTest, NamesTheTensorOfAnotherShape) {
  const FolderCopy model(kTiny / "llama");
  std::string config = Slurp(model / "config.json");
  const size_t at = config.find("\"intermediate_size\": 64");
  ASSERT_NE(at, std::string::npos);
  config.replace(at, 23, "\"intermediate_size\": 96");
  Spill(model / "config.json", config);
  EXPECT_THAT(Checkpoint::Open(model.path()),
              StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("mlp.gate_proj.weight"),
                                                    HasSubstr("[96, 32]"), HasSubstr("[64, 32]"))));
}

TEST(LyingConfigTest, NamesAnUnsupportedStorageType) {
  const FolderCopy model(kTiny / "llama");
  std::string whole = Slurp(model / "model.safetensors");
  const size_t at = whole.find("\"F32\"");
  ASSERT_NE(at, std::string::npos);
  whole.replace(at, 5, "\"I32\"");
  Spill(model / "model.safetensors", whole);
  EXPECT_THAT(Checkpoint::Open(model.path()),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("I32")));
}

TEST(LyingConfigTest, NamesAnUnknownArchitecture) {
  const FolderCopy model(kTiny / "llama");
  std::string config = Slurp(model / "config.json");
  config.replace(config.find("\"llama\""), 7, "\"mamba\"");
  Spill(model / "config.json", config);
  EXPECT_THAT(Checkpoint::Open(model.path()),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("mamba")));
}

}  // namespace
}  // namespace hexport
