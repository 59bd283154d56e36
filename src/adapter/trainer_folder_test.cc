#include "adapter/trainer_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/status_matchers.h"
#include "base/test_directory.h"

namespace hexport::adapter {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TrainerFolderTest : public ::testing::Test {
 protected:
  void Put(const std::string& name, const std::string& text) {
    ASSERT_THAT(WriteFileAtomically(directory_.path() / name, text), IsOk());
  }
  TrainerFacts Read() {
    Result<TrainerFacts> facts = ReadTrainerFolder(directory_.path());
    EXPECT_THAT(facts, IsOk());
    return facts.ok() ? *std::move(facts) : TrainerFacts{};
  }
  hexport::testing::TestDirectory directory_;
};

TEST_F(TrainerFolderTest, LlamaFactorysArguments) {
  Put("training_args.yaml",
      "### model\nmodel_name_or_path: Qwen/Qwen2.5-0.5B-Instruct\nstage: sft\n"
      "finetuning_type: lora\ntemplate: qwen\ndataset: identity, alpaca_en_demo\n"
      "learning_rate: 1.0e-4\n");
  const TrainerFacts facts = Read();
  EXPECT_EQ(facts.trainer, "LLaMA-Factory");
  EXPECT_EQ(facts.template_name, "qwen");
  EXPECT_EQ(facts.base_model, "Qwen/Qwen2.5-0.5B-Instruct");
  EXPECT_EQ(facts.stage, "sft");
  EXPECT_EQ(facts.finetuning_type, "lora");
  EXPECT_THAT(facts.datasets, ElementsAre("identity", "alpaca_en_demo"));
  EXPECT_THAT(facts.warnings, IsEmpty());
}

TEST_F(TrainerFolderTest, WebPagesArgumentsHaveAPrefix) {
  Put("llamaboard_config.yaml", "top.template: llama3\ntop.finetuning_type: lora\n");
  EXPECT_EQ(Read().template_name, "llama3");
}

TEST_F(TrainerFolderTest, TrainerStateAlone) {
  Put("trainer_state.json",
      R"({"global_step": 120, "epoch": 2.5, "log_history": [{"loss": 2.5}, {"loss": 0.75}]})");
  const TrainerFacts facts = Read();
  EXPECT_EQ(facts.trainer, "Hugging Face Trainer");
  EXPECT_EQ(facts.global_step, 120);
  EXPECT_DOUBLE_EQ(facts.epoch, 2.5);
  EXPECT_EQ(facts.last_loss, 0.75);
}

TEST_F(TrainerFolderTest, PythonsNanInTheLogIsAWarning) {
  Put("trainer_state.json", R"({"global_step": 3, "log_history": [{"loss": NaN}, {"loss": 1.0}]})");
  const TrainerFacts facts = Read();
  EXPECT_EQ(facts.global_step, 3);
  EXPECT_THAT(facts.warnings, ElementsAre(HasSubstr("not finite")));
}

TEST_F(TrainerFolderTest, LossOfZeroIsAWarning) {
  Put("trainer_state.json", R"({"log_history": [{"loss": 0.0}]})");
  EXPECT_THAT(Read().warnings, ElementsAre(HasSubstr("exactly 0")));
}

TEST_F(TrainerFolderTest, CheckpointsByStep) {
  for (const char* name : {"checkpoint-1000", "checkpoint-200", "checkpoint-x", "other"}) {
    std::filesystem::create_directory(directory_.path() / name);
  }
  EXPECT_THAT(Read().checkpoints, ElementsAre("checkpoint-200", "checkpoint-1000"));
}

TEST_F(TrainerFolderTest, BrokenFilesAreWarnings) {
  Put("training_args.yaml", "a: [1, 2\nb");
  Put("trainer_state.json", "{");
  Put("dataset_info.json", "[]");
  EXPECT_EQ(Read().warnings.size(), 3u);
}

TEST_F(TrainerFolderTest, NothingThere) {
  const TrainerFacts facts = Read();
  EXPECT_EQ(facts.trainer, "");
  EXPECT_EQ(facts.global_step, -1);
  EXPECT_THAT(ReadTrainerFolder(directory_.path() / "no"),
              StatusIs(StatusCode::kNotFound, HasSubstr("no")));
}

}  // namespace
}  // namespace hexport::adapter
