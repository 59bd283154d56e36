// Tokenizers rebuilt from GGUF metadata against Hugging Face's tokenizers:
// tests/generate/tokenizer_golden.py.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/status_matchers.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/gguf_model.h"
#include "text/tokenizer.h"

namespace hexport {
namespace {

using ::hexport::testing::IsOk;
using nlohmann::json;

struct Row {
  std::string text, decoded;
  std::vector<int32_t> ids;
};

std::vector<Row> ReadRows(const std::string& path) {
  std::ifstream file(path);
  std::vector<Row> rows;
  for (std::string line; std::getline(file, line);) {
    const json parsed = json::parse(line, nullptr, false);
    if (parsed.is_discarded()) {
      ADD_FAILURE() << path << ": line " << rows.size() + 1 << " is not JSON";
      return rows;
    }
    Row row;
    row.text = parsed["text"].get<std::string>();
    row.decoded = parsed.value("decoded", row.text);
    row.ids = parsed["ids"].get<std::vector<int32_t>>();
    rows.push_back(std::move(row));
  }
  return rows;
}

// The pieces of a stream, put together.
Result<std::string> Streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamingDetokenizer stream(tokenizer, false);
  std::string text;
  for (int32_t id : ids) {
    HEXPORT_ASSIGN_OR_RETURN(const std::string piece, stream.Push(id));
    text += piece;
  }
  HEXPORT_ASSIGN_OR_RETURN(const std::string rest, stream.Finish());
  return text + rest;
}

// Encode, Decode and the stream agree with every row. Stops after a few differences.
void CheckRows(const Tokenizer& tokenizer, const std::vector<Row>& rows) {
  int differences = 0;
  for (size_t i = 0; i < rows.size() && differences < 5; ++i) {
    SCOPED_TRACE("row " + std::to_string(i) + ": " + json(rows[i].text).dump());
    auto ids = tokenizer.Encode(rows[i].text, false);
    auto decoded = tokenizer.Decode(rows[i].ids, false);
    auto streamed = Streamed(tokenizer, rows[i].ids);
    ASSERT_THAT(ids, IsOk());
    ASSERT_THAT(decoded, IsOk());
    ASSERT_THAT(streamed, IsOk());
    EXPECT_EQ(*ids, rows[i].ids);
    EXPECT_EQ(*decoded, rows[i].decoded);
    EXPECT_EQ(*streamed, rows[i].decoded);
    if (*ids != rows[i].ids || *decoded != rows[i].decoded || *streamed != rows[i].decoded)
      ++differences;
  }
}

TEST(TokenizerGolden, SmolLm2FromItsGguf) {
  const std::filesystem::path model = HEXPORT_MODELS_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(model)) GTEST_SKIP() << model << " is not there: run tools/setup.sh";
  auto checkpoint = Checkpoint::Open(model);
  ASSERT_THAT(checkpoint, IsOk());
  auto text = (*checkpoint)->Text();
  ASSERT_THAT(text, IsOk());
  auto tokenizer = Tokenizer::FromJson(text->tokenizer_json);
  ASSERT_THAT(tokenizer, IsOk());
  const std::vector<Row> rows = ReadRows(HEXPORT_TEST_DATA "/text/smollm2_golden.jsonl");
  ASSERT_EQ(rows.size(), 5000U);
  CheckRows(**tokenizer, rows);
}

// A tiny vocabulary whose merges cross every border, so a wrong split shows; the metadata of a file
// without tensors.
class PreTokenizerGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(PreTokenizerGolden, SplitsAsHuggingFaceDoes) {
  const std::string stem = HEXPORT_TEST_DATA "/text/tiny_" + GetParam();
  auto file = ReadTextFile(stem + ".gguf");
  ASSERT_THAT(file, IsOk());
  auto contents = checkpoint::ParseGguf(std::as_bytes(std::span(*file)), stem);
  ASSERT_THAT(contents, IsOk());
  auto text = checkpoint::GgufText(*contents, stem);
  ASSERT_THAT(text, IsOk());
  EXPECT_EQ(text->bos_token, "<|begin|>");
  EXPECT_EQ(text->eos_token, "<|end|>");
  auto tokenizer = Tokenizer::FromJson(text->tokenizer_json);
  ASSERT_THAT(tokenizer, IsOk());
  const std::vector<Row> rows = ReadRows(stem + "_golden.jsonl");
  ASSERT_EQ(rows.size(), 500U);
  CheckRows(**tokenizer, rows);
}

INSTANTIATE_TEST_SUITE_P(Tiny, PreTokenizerGolden,
                         ::testing::Values("llama-bpe", "qwen2", "gpt-2", "smollm"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace hexport
