// Tokenizers without a tokenizer.json against transformers' conversion of them:
// tests/generate/slow_tokenizers.py.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/status_matchers.h"
#include "base/test_directory.h"
#include "checkpoint/checkpoint.h"
#include "text/tokenizer.h"

namespace hexport {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kFolder = HEXPORT_TEST_DATA "/text/tokenizers";

json ReadGolden(const std::string& name) {
  auto text = ReadTextFile(kFolder / (name + ".json"));
  EXPECT_THAT(text, IsOk());
  return text.ok() ? json::parse(*text, nullptr, false) : json();
}

// The folder that a golden describes.
void WriteFolder(const json& golden, const json& config, const fs::path& folder) {
  for (const auto& [target, source] : golden["files"].items()) {
    fs::copy_file(kFolder / source.get<std::string>(), folder / target);
  }
  ASSERT_THAT(WriteFileAtomically(folder / "tokenizer_config.json", config.dump()), IsOk());
}

class SlowTokenizerGolden : public ::testing::TestWithParam<std::string> {};

// T03 (legacy true and false), T06 (byte fallback) and everything else SentencePiece does.
TEST_P(SlowTokenizerGolden, EncodesAsTransformersConversionDoes) {
  const json golden = ReadGolden(GetParam());
  testing::TestDirectory directory;
  WriteFolder(golden, golden["config"], directory.path());
  auto text = OpenText(directory.path());
  ASSERT_THAT(text, IsOk());
  auto tokenizer = Tokenizer::FromJson(text->tokenizer_json);
  ASSERT_THAT(tokenizer, IsOk());
  int differences = 0;
  ASSERT_GE(golden["rows"].size(), 200U);
  for (const json& row : golden["rows"]) {
    SCOPED_TRACE(row["text"].dump());
    auto ids = (*tokenizer)->Encode(row["text"].get<std::string>(), true);
    ASSERT_THAT(ids, IsOk());
    EXPECT_EQ(*ids, row["ids"].get<std::vector<int32_t>>());
    auto decoded = (*tokenizer)->Decode(row["ids"].get<std::vector<int32_t>>(), true);
    ASSERT_THAT(decoded, IsOk());
    EXPECT_EQ(*decoded, row["decoded"].get<std::string>());
    if (*ids != row["ids"].get<std::vector<int32_t>>() && ++differences > 4) break;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, SlowTokenizerGolden,
                         ::testing::Values("llama_legacy", "llama_new", "gemma", "own_bpe",
                                           "own_unigram", "gpt2", "qwen2"),
                         [](const auto& instance) { return instance.param; });

std::unique_ptr<Tokenizer> Open(const std::string& name, const json& change = {}) {
  const json golden = ReadGolden(name);
  json config = golden["config"];
  if (!change.is_null()) config.update(change);
  testing::TestDirectory directory;
  WriteFolder(golden, config, directory.path());
  auto text = OpenText(directory.path());
  EXPECT_THAT(text, IsOk());
  if (!text.ok()) return nullptr;
  auto tokenizer = Tokenizer::FromJson(text->tokenizer_json);
  EXPECT_THAT(tokenizer, IsOk());
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(SlowTokenizer, T03TheWordAfterAnAddedTokenDependsOnLegacy) {
  const auto legacy = Open("llama_legacy"), current = Open("llama_new");
  ASSERT_TRUE(legacy != nullptr && current != nullptr);
  auto with_prefix = legacy->Encode("<|im_start|>user", false);
  auto without = current->Encode("<|im_start|>user", false);
  ASSERT_THAT(with_prefix, IsOk());
  ASSERT_THAT(without, IsOk());
  EXPECT_EQ(legacy->Encode(" user", false)->size() + 1, with_prefix->size() + 1);
  EXPECT_NE(*with_prefix, *without);
}

TEST(SlowTokenizer, T06AnEmojiIsFourBytesAndComesBack) {
  const auto tokenizer = Open("llama_new");
  ASSERT_NE(tokenizer, nullptr);
  auto ids = tokenizer->Encode("x\xf0\x9f\x98\x80", false);
  ASSERT_THAT(ids, IsOk());
  ASSERT_GE(ids->size(), 5U);
  const size_t first = ids->size() - 4;
  const char* bytes[] = {"<0xF0>", "<0x9F>", "<0x98>", "<0x80>"};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(*tokenizer->IdToToken((*ids)[first + i]), bytes[i]);
  EXPECT_EQ(*tokenizer->Decode(*ids, true), "x\xf0\x9f\x98\x80");
}

TEST(SlowTokenizer, T06AWordWithAndWithoutItsSpaceMarkAreTwoTokens) {
  const auto tokenizer = Open("llama_new");
  ASSERT_NE(tokenizer, nullptr);
  const int32_t plain = tokenizer->TokenToId("the");
  const int32_t marked = tokenizer->TokenToId("\xe2\x96\x81the");
  EXPECT_NE(marked, -1);
  EXPECT_NE(plain, marked);
}

TEST(SlowTokenizer, WithoutATokenizerClassTheModelsTypeDecides) {
  const json golden = ReadGolden("llama_legacy");
  json config = golden["config"];
  config.erase("tokenizer_class");
  testing::TestDirectory directory;
  WriteFolder(golden, config, directory.path());
  ASSERT_THAT(WriteFileAtomically(directory / "config.json", R"({"model_type": "mistral"})"),
              IsOk());
  auto text = OpenText(directory.path());
  ASSERT_THAT(text, IsOk());
  auto tokenizer = Tokenizer::FromJson(text->tokenizer_json);
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_EQ(*(*tokenizer)->Encode(" leading", true),
            *Open("llama_legacy")->Encode(" leading", true));
}

TEST(SlowTokenizer, AClassThatIsNotReadIsRefusedByName) {
  const json golden = ReadGolden("gpt2");
  json config = golden["config"];
  config["tokenizer_class"] = "BertTokenizer";
  testing::TestDirectory directory;
  WriteFolder(golden, config, directory.path());
  EXPECT_THAT(OpenText(directory.path()),
              StatusIs(StatusCode::kUnimplemented,
                       AllOf(HasSubstr("BertTokenizer"), HasSubstr("tokenizer.json"))));
}

TEST(SlowTokenizer, ATiktokenFileIsRefused) {
  testing::TestDirectory directory;
  ASSERT_THAT(WriteFileAtomically(directory / "tokenizer.model", "IQ== 0\nIg== 1\nIw== 2\n"),
              IsOk());
  EXPECT_THAT(OpenText(directory.path()),
              StatusIs(StatusCode::kDataLoss, HasSubstr("expected a SentencePiece model")));
}

// A truncated or changed model is an error, not a crash.
TEST(SlowTokenizer, DamagedModelsAreRefusedOrRead) {
  auto model = ReadTextFile(kFolder / "bpe.model");
  ASSERT_THAT(model, IsOk());
  testing::TestDirectory directory;
  for (size_t cut = 0; cut < model->size(); cut += 97) {
    ASSERT_THAT(WriteFileAtomically(directory / "tokenizer.model", model->substr(0, cut)), IsOk());
    auto text = OpenText(directory.path());
    if (text.ok()) static_cast<void>(Tokenizer::FromJson(text->tokenizer_json));
  }
  for (size_t at = 0; at < model->size(); at += 101) {
    std::string changed = *model;
    changed[at] = static_cast<char>(changed[at] ^ 0x55);
    ASSERT_THAT(WriteFileAtomically(directory / "tokenizer.model", changed), IsOk());
    auto text = OpenText(directory.path());
    if (text.ok()) static_cast<void>(Tokenizer::FromJson(text->tokenizer_json));
  }
}

}  // namespace
}  // namespace hexport
