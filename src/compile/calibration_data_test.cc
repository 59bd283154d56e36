#include "compile/calibration_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "base/status_matchers.h"

namespace hexport::compile {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A tokenizer of bytes: every character of the text below is one token.
TextAssets ByteText() {
  TextAssets text;
  text.tokenizer_json =
      R"({"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,
    "post_processor":null,"decoder":null,"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"u":3,"\n":4},"merges":[]}})";
  text.chat_template = "{% for m in messages %}u{{ m.content }}{% endfor %}";
  return text;
}

class CalibrationDataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("hexport_calibration_") +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path Write(const std::string& name, const std::string& contents) {
    EXPECT_THAT(WriteFileAtomically(folder_ / name, contents), IsOk());
    return folder_ / name;
  }
  std::filesystem::path folder_;
};

TEST_F(CalibrationDataTest, RendersMessagesAndTakesPlainText) {
  const auto path =
      Write("d.jsonl",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"ab\"}]}\n\n{\"text\":\"cc\"}\n"
            "[{\"role\":\"user\",\"content\":\"c\"}]\n");
  const auto data = LoadCalibration(path, ByteText(), 0, 100);
  ASSERT_THAT(data, IsOk());
  EXPECT_THAT(data->samples,
              ElementsAre(ElementsAre(3, 0, 1), ElementsAre(2, 2), ElementsAre(3, 2)));
}

TEST_F(CalibrationDataTest, ParagraphsOfATextFileAreSamples) {
  const auto data = LoadCalibration(Write("d.txt", "ab\nc\n\n\nba\n"), ByteText(), 0, 100);
  ASSERT_THAT(data, IsOk());
  EXPECT_THAT(data->samples, ElementsAre(ElementsAre(0, 1, 4, 2), ElementsAre(1, 0)));
}

TEST_F(CalibrationDataTest, CutsLongSamplesAndLimitsTheirNumber) {
  const auto data = LoadCalibration(Write("d.txt", "abc\n\nab\n\nc"), ByteText(), 2, 2);
  ASSERT_THAT(data, IsOk());
  EXPECT_THAT(data->samples, ElementsAre(ElementsAre(0, 1), ElementsAre(0, 1)));
  EXPECT_EQ(data->truncated, 1);
}

TEST_F(CalibrationDataTest, BrokenLineIsNamed) {
  const auto path = Write("d.jsonl", "{\"text\":\"a\"}\n{\"text\": oops}\n");
  EXPECT_THAT(LoadCalibration(path, ByteText(), 0, 100),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("d.jsonl:2")));
}

TEST_F(CalibrationDataTest, EmptyFileIsRefused) {
  EXPECT_THAT(LoadCalibration(Write("d.txt", "\n \n"), ByteText(), 0, 100),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("at least one calibration sample")));
}

TEST_F(CalibrationDataTest, MessagesWithoutATemplateAreRefused) {
  TextAssets text = ByteText();
  text.chat_template.clear();
  const auto path = Write("d.jsonl", "{\"messages\":[{\"role\":\"user\",\"content\":\"ab\"}]}\n");
  EXPECT_FALSE(LoadCalibration(path, text, 0, 100).ok());
}

}  // namespace
}  // namespace hexport::compile
