#include "quant/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>

#include "base/status_matchers.h"
#include "quant/layer_stages.h"
#include "quant/layer_walker.h"

namespace hexport::quant {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::HasSubstr;

std::vector<TokenIds> RandomSamples(size_t count, size_t tokens, int32_t vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<TokenIds> out(count, TokenIds(tokens));
  for (TokenIds& sample : out) {
    for (int32_t& id : sample) id = static_cast<int32_t>(random() % static_cast<unsigned>(vocab));
  }
  return out;
}

class QuantizeTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("hexport_quantize_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    auto opened = Checkpoint::Open(std::string(HEXPORT_TEST_DATA) + "/tiny/" + GetParam());
    ASSERT_THAT(opened, IsOk());
    checkpoint_ = *std::move(opened);
    auto graph = decoder::BuildDecoder(*checkpoint_, {});
    ASSERT_THAT(graph, IsOk());
    graph_ = *std::move(graph);
    const auto vocab = static_cast<int32_t>(checkpoint_->config().vocab_size);
    samples_ = RandomSamples(64, 32, vocab, 1);
    held_apart_ = RandomSamples(8, 24, vocab, 2);
  }
  void TearDown() override { fs::remove_all(folder_); }

  WeightQuantization Options(Method method, WeightOptions weights) const {
    WeightQuantization options;
    options.config.method = method;
    options.config.weights = weights;
    options.work = folder_;
    options.key = "key";
    return options;
  }

  Status Quantize(const WeightQuantization& options, std::unique_ptr<WeightStore>& store,
                  std::vector<LinearLoss>* losses = nullptr) {
    const fs::path path = folder_ / "weights.safetensors";
    HEXPORT_ASSIGN_OR_RETURN(auto result, QuantizeModelWeights(*checkpoint_, graph_, options,
                                                               samples_, path, NullProgress()));
    if (losses != nullptr) *losses = result;
    HEXPORT_ASSIGN_OR_RETURN(store, WeightStore::Open(path));
    return OkStatus();
  }

  // Mean squared difference of the logits, over the mean square, on samples that calibration never
  // saw, with float activations.
  double LogitError(const WeightStore& store) {
    const auto reference = FloatLogits(*checkpoint_, held_apart_, NullProgress());
    EXPECT_THAT(reference, IsOk());
    double error = 0.0, energy = 0.0;
    const RangeMap ranges;
    const QuantConfig config;
    const QuantizedParts quantized{ranges, store, config, {.activations = false}};
    WalkOptions walk;
    walk.quantized = &quantized;
    const Status walked = WalkDecoder(
        *checkpoint_, held_apart_, walk,
        [&](const ActivationView& view) {
          const auto vocab = static_cast<size_t>(checkpoint_->config().vocab_size);
          const auto columns = static_cast<size_t>(view.columns);
          for (size_t i = 0; i < view.values.size(); ++i) {
            const size_t at =
                i / columns * vocab + static_cast<size_t>(view.first_column) + i % columns;
            const auto expected = static_cast<double>((*reference)[view.sample][at]);
            error += std::pow(static_cast<double>(view.values[i]) - expected, 2);
            energy += expected * expected;
          }
          return OkStatus();
        },
        NullProgress());
    EXPECT_THAT(walked, IsOk());
    return error / energy;
  }

  fs::path folder_;
  std::unique_ptr<Checkpoint> checkpoint_;
  decoder::DecoderGraph graph_;
  std::vector<TokenIds> samples_, held_apart_;
};

TEST_P(QuantizeTest, StagesComputeWhatTheLayerComputes) {
  SpillBudget budget(0, folder_);  // everything through the file
  std::map<std::string, std::vector<float>> expected;
  const auto visit = [&](const ActivationView& view) {
    if (view.sample == 1) expected[view.name] = {view.values.begin(), view.values.end()};
    return OkStatus();
  };
  WalkOptions every;
  every.every_activation = true;
  ASSERT_THAT(WalkDecoder(*checkpoint_, held_apart_, every, visit, NullProgress()), IsOk());
  const ModelConfig& config = checkpoint_->config();
  SampleTensors hidden(budget, held_apart_.size());
  const std::string first = decoder::ResidualName(config, 0),
                    second = decoder::ResidualName(config, 1);
  const Shape shape = {1, static_cast<int64_t>(held_apart_[1].size()), config.hidden_size};
  for (size_t s = 0; s < held_apart_.size(); ++s)
    ASSERT_THAT(hidden.Put(s, shape, expected.at(first)), IsOk());
  for (const bool own : {false, true}) {
    SampleTensors copy(budget, held_apart_.size());
    for (size_t s = 0; s < held_apart_.size(); ++s)
      ASSERT_THAT(copy.Put(s, shape, expected.at(first)), IsOk());
    auto stages = LayerStages::Create(*checkpoint_, 0, {0, own}, std::move(copy), budget);
    ASSERT_THAT(stages, IsOk());
    std::set<std::string> linears, residuals;
    for (const LayerStages::Group& group : (*stages)->groups()) {
      for (const auto& linear : group.linears) linears.insert(linear.name);
      ASSERT_THAT((*stages)->OpenGroup(), IsOk());
      for (size_t s = 0; s < held_apart_.size(); ++s) {
        const auto rows = (*stages)->Run(s);
        ASSERT_THAT(rows, IsOk());
        EXPECT_EQ(rows->size(),
                  held_apart_[s].size() * static_cast<size_t>(group.linears.front().in_features));
        if (const auto tap = expected.find(group.input); tap != expected.end()) {
          for (size_t i = 0; i < rows->size(); ++i)
            ASSERT_NEAR((*rows)[i], tap->second[i], 1e-5) << group.input;
        }
        if (group.residual.empty()) continue;
        residuals.insert(group.residual);
        std::vector<float> scratch;
        EXPECT_THAT((*stages)->Residual(s, scratch), IsOk());
      }
      (*stages)->CloseGroup();
    }
    EXPECT_EQ(linears.size(), 7u);
    EXPECT_EQ(residuals.size(), config.branch_norms ? 0u : 2u);
    const auto out = (*stages)->Finish();
    ASSERT_THAT(out, IsOk());
    std::vector<float> scratch;
    const auto values = out->Get(1, scratch);
    ASSERT_THAT(values, IsOk());
    for (size_t i = 0; i < values->size(); ++i)
      ASSERT_NEAR((*values)[i], expected.at(second)[i], 1e-5);
  }
}

TEST_P(QuantizeTest, EachMethodLosesLessThanTheOneBefore) {
  const WeightOptions lpbq{WeightFormat::kLpbq, 16};
  std::unique_ptr<WeightStore> store;
  std::vector<LinearLoss> losses;
  ASSERT_THAT(Quantize(Options(Method::kRtn, lpbq), store), IsOk());
  const double rtn = LogitError(*store);
  WeightQuantization plain = Options(Method::kGptq, lpbq);
  plain.correction_ridge = 0.0;
  ASSERT_THAT(Quantize(plain, store), IsOk());
  const double gptq = LogitError(*store);
  WeightQuantization corrected = Options(Method::kGptq, lpbq);
  corrected.key = "another key";
  ASSERT_THAT(Quantize(corrected, store, &losses), IsOk());
  const double with_correction = LogitError(*store);
  EXPECT_LT(gptq, rtn);
  EXPECT_LT(with_correction, gptq);
  EXPECT_EQ(losses.size(), 7u * static_cast<size_t>(checkpoint_->config().num_hidden_layers));
  for (const LinearLoss& loss : losses) {
    EXPECT_GT(loss.relative_error, 0.0) << loss.name;
    EXPECT_LT(loss.relative_error, 0.2) << loss.name;
  }
}

TEST_P(QuantizeTest, OutputProjectionLosesLessByGptq) {
  WeightQuantization options = Options(Method::kGptq, {WeightFormat::kInt8, 32});
  options.config.linears = {{"lm_head", WeightFormat::kInt4, {}, Method::kRtn}};
  std::unique_ptr<WeightStore> store;
  ASSERT_THAT(Quantize(options, store), IsOk());
  const double rtn = LogitError(*store);
  options.config.linears.front().method = Method::kGptq;
  ASSERT_THAT(Quantize(options, store), IsOk());
  EXPECT_LT(LogitError(*store), 0.9 * rtn);
}

TEST_P(QuantizeTest, SeqMseLosesLessThanRoundToNearest) {
  const WeightOptions int4{WeightFormat::kInt4, 32};
  std::unique_ptr<WeightStore> store;
  ASSERT_THAT(Quantize(Options(Method::kRtn, int4), store), IsOk());
  const double rtn = LogitError(*store);
  ASSERT_THAT(Quantize(Options(Method::kSeqMse, int4), store), IsOk());
  EXPECT_LT(LogitError(*store), rtn);
}

TEST_P(QuantizeTest, GoesOnAfterTheLayersThatAreDone) {
  const WeightOptions lpbq{WeightFormat::kLpbq, 16};
  std::unique_ptr<WeightStore> whole, resumed;
  ASSERT_THAT(Quantize(Options(Method::kGptq, lpbq), whole), IsOk());
  const auto last = checkpoint_->config().num_hidden_layers - 1;
  // The first layer's file is kept and marked; the last one's is lost.
  ASSERT_TRUE(fs::remove(folder_ / ("layer_" + std::to_string(last) + "_key.safetensors")));
  const fs::file_time_type before = fs::last_write_time(folder_ / "layer_0_key.safetensors");
  ASSERT_THAT(Quantize(Options(Method::kGptq, lpbq), resumed), IsOk());
  EXPECT_EQ(fs::last_write_time(folder_ / "layer_0_key.safetensors"), before);
  for (const decoder::LinearWeight& linear : graph_.linears) {
    const auto a = whole->Read(linear.name), b = resumed->Read(linear.name);
    ASSERT_THAT(a, IsOk());
    ASSERT_THAT(b, IsOk());
    EXPECT_EQ(a->codes, b->codes) << linear.name;
  }
}

TEST_P(QuantizeTest, FormatsMayDifferByLinear) {
  WeightQuantization options = Options(Method::kGptq, {});
  options.config.weights = {WeightFormat::kLpbq, 16};
  options.config.linears = {{"*.v_proj", WeightFormat::kInt8, {}, Method::kSeqMse},
                            {"*.o_proj", {}, {}, Method::kRtn}};
  std::unique_ptr<WeightStore> store;
  ASSERT_THAT(Quantize(options, store), IsOk());
  for (const decoder::LinearWeight& linear : graph_.linears) {
    const auto weight = store->Describe(linear.name);
    ASSERT_THAT(weight, IsOk());
    EXPECT_EQ(weight->format, PlanLinear(options.config, linear).weights.format) << linear.name;
  }
}

TEST_P(QuantizeTest, RefusesSamplesThatAreNone) {
  samples_.clear();
  std::unique_ptr<WeightStore> store;
  EXPECT_THAT(Quantize(Options(Method::kGptq, {}), store),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("at least one")));
}

INSTANTIATE_TEST_SUITE_P(Models, QuantizeTest,
                         ::testing::Values("llama", "qwen3", "phi3", "gemma3_text"));

}  // namespace
}  // namespace hexport::quant
