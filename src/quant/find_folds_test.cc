#include "quant/find_folds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "checkpoint/safetensors.h"
#include "quant/fake_checkpoint.h"
#include "quant/gptq.h"
#include "quant/weights.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::IsOk;

// tests/data/quant/references.safetensors: tests/generate/quant_references.py, float64 numpy.
class References : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened =
        SafetensorsFile::Open(std::string(HEXPORT_TEST_DATA) + "/quant/references.safetensors");
    ASSERT_THAT(opened, IsOk());
    file_ = *std::move(opened);
    input_.rows = Values<float>("rows");
    input_.channels = Columns("rows");
    input_.tokens = static_cast<int64_t>(input_.rows.size()) / input_.channels;
    const auto channels = static_cast<size_t>(input_.channels);
    input_.largest.assign(channels, 0.0f);
    input_.magnitude_sum.assign(channels, 0.0);
    for (size_t i = 0; i < input_.rows.size(); ++i) {
      const float magnitude = std::abs(input_.rows[i]);
      input_.largest[i % channels] = std::max(input_.largest[i % channels], magnitude);
      input_.magnitude_sum[i % channels] += static_cast<double>(magnitude);
    }
  }

  int64_t Columns(const std::string& name) const { return file_->Find(name)->shape.back(); }
  template <typename T>
  std::vector<T> Values(const std::string& name) const {
    const SafetensorsEntry* entry = file_->Find(name);
    EXPECT_NE(entry, nullptr) << name;
    if (entry == nullptr) return {};
    const std::span<const std::byte> bytes = file_->Bytes(*entry);
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

  std::vector<FoldReader> Readers(const WeightOptions& format) const {
    std::vector<FoldReader> out;
    for (const std::string name : {"weights.0", "weights.1"})
      out.push_back({Values<float>(name), Columns(name), format});
    return out;
  }

  // The reader's codes with its rows multiplied by `factors`.
  QuantizedWeight Rounded(const FoldReader& reader, const std::vector<float>& factors) const {
    std::vector<float> folded = reader.weights;
    for (size_t i = 0; i < folded.size(); ++i)
      folded[i] *= factors[i / static_cast<size_t>(reader.out_features)];
    const auto out = QuantizeRtn(folded, input_.channels, reader.out_features, reader.format);
    EXPECT_THAT(out, IsOk());
    return out.ok() ? *out : QuantizedWeight();
  }

  void ExpectNear(const std::vector<float>& got, const std::vector<float>& expected) const {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], expected[i], 1e-5f * std::abs(expected[i])) << i;
  }

  std::unique_ptr<SafetensorsFile> file_;
  FoldInput input_;
};

TEST_F(References, SmoothQuantGivesTheCodesOfFloat64) {
  const std::vector<FoldReader> readers = Readers({WeightFormat::kInt8, 0});
  const std::vector<float> factors = SmoothQuantFactors(input_, readers, 0.5);
  ExpectNear(factors, Values<float>("smoothquant.factors"));
  for (size_t n = 0; n < readers.size(); ++n) {
    const std::string index = std::to_string(n);
    const QuantizedWeight rounded = Rounded(readers[n], factors);
    EXPECT_EQ(rounded.codes, Values<int8_t>("smoothquant.codes." + index)) << n;
    ExpectNear(rounded.channel_scales, Values<float>("smoothquant.scales." + index));
  }
}

TEST_F(References, AwqGivesTheAlphaAndTheCodesOfFloat64) {
  const std::vector<FoldReader> readers = Readers({WeightFormat::kLpbq, 16});
  const auto factors = AwqFactors(input_, readers);
  ASSERT_THAT(factors, IsOk());
  ExpectNear(*factors, Values<float>("awq.factors"));
  for (size_t n = 0; n < readers.size(); ++n) {
    const std::string index = std::to_string(n);
    const QuantizedWeight rounded = Rounded(readers[n], *factors);
    EXPECT_EQ(rounded.codes, Values<int8_t>("awq.codes." + index)) << n;
    EXPECT_EQ(rounded.block_scales, Values<uint8_t>("awq.block_scales." + index)) << n;
  }
}

// A code that float32 rounds to the other side moves those after it: at most one in a hundred, and
// the error of the outputs is the same to a part in two hundred.
TEST_F(References, GptqGivesTheCodesOfFloat64) {
  const std::vector<float> weights = Values<float>("weights.0");
  const int64_t out_features = Columns("weights.0");
  const auto in = static_cast<size_t>(input_.channels);
  std::vector<float> hessian(in * in, 0.0f);
  for (size_t t = 0; t < input_.rows.size(); t += in) {
    for (size_t i = 0; i < in; ++i) {
      for (size_t j = 0; j < in; ++j)
        hessian[i * in + j] += input_.rows[t + i] * input_.rows[t + j];
    }
  }
  for (const bool act_order : {false, true}) {
    const GptqOptions options{.act_order = act_order, .weigh_scales = false};
    ASSERT_EQ(options.damping, 0.01);
    const auto got = QuantizeGptq(weights, input_.channels, out_features, hessian,
                                  {WeightFormat::kLpbq, 16}, options);
    ASSERT_THAT(got, IsOk());
    const std::vector<int8_t> expected =
        Values<int8_t>(act_order ? "gptq_act_order.codes" : "gptq.codes");
    ASSERT_EQ(got->codes.size(), expected.size());
    size_t differ = 0;
    for (size_t i = 0; i < expected.size(); ++i) differ += got->codes[i] != expected[i] ? 1 : 0;
    EXPECT_LE(differ, expected.size() / 100) << act_order;
    QuantizedWeight reference = *got;
    reference.codes = expected;
    const auto error = [&](const QuantizedWeight& weight) {
      const std::vector<float> back = Dequantize(weight);
      double sum = 0.0;
      for (size_t t = 0; t < input_.rows.size(); t += in) {
        for (size_t n = 0; n < static_cast<size_t>(out_features); ++n) {
          double output = 0.0;
          for (size_t k = 0; k < in; ++k) {
            const size_t at = k * static_cast<size_t>(out_features) + n;
            output += static_cast<double>(input_.rows[t + k]) *
                      (static_cast<double>(back[at]) - static_cast<double>(weights[at]));
          }
          sum += output * output;
        }
      }
      return sum;
    };
    EXPECT_NEAR(error(*got) / error(reference), 1.0, 0.005) << act_order;
  }
}

// neural-compressor#1427, sparseml#1872, aimet#4054: a dead channel must not give a factor of 0 or
// infinity.
TEST_F(References, Q02DeadChannelsGetTheFactorOne) {
  std::vector<FoldReader> readers = Readers({WeightFormat::kLpbq, 16});
  constexpr size_t kDeadInput = 7, kDeadWeight = 9;
  ASSERT_EQ(input_.largest[kDeadInput], 0.0f);
  for (FoldReader& reader : readers) {
    const auto width = static_cast<size_t>(reader.out_features);
    std::fill_n(reader.weights.begin() + static_cast<std::ptrdiff_t>(kDeadWeight * width), width,
                0.0f);
  }
  const auto awq = AwqFactors(input_, readers);
  const auto balanced = BalancedFactors(input_, readers, 8);
  ASSERT_THAT(awq, IsOk());
  ASSERT_THAT(balanced, IsOk());
  const std::vector<float> smooth = SmoothQuantFactors(input_, readers, 0.5);
  for (const std::vector<float>& factors : {smooth, *awq, *balanced}) {
    EXPECT_EQ(factors[kDeadInput], 1.0f);
    for (const float factor : factors) EXPECT_TRUE(std::isfinite(factor) && factor > 0.0f);
  }
  EXPECT_EQ(smooth[kDeadWeight], 1.0f);
}

// Two channels are 30 and 60 times the others.
TEST_F(References, BalancedTakesTheOutlierOutOfACoarseActivation) {
  const std::vector<FoldReader> readers = Readers({WeightFormat::kInt8, 0});
  const auto factors = BalancedFactors(input_, readers, 8);
  ASSERT_THAT(factors, IsOk());
  const auto widest = [&](const std::vector<float>& by) {
    float largest = 0.0f;
    for (size_t c = 0; c < by.size(); ++c) largest = std::max(largest, input_.largest[c] / by[c]);
    return largest / input_.largest[0] * by[0];
  };
  EXPECT_LT(widest(*factors), 0.3f * widest(std::vector<float>(factors->size(), 1.0f)));
  // With bits to spare there is nothing to gain from coarser weights.
  const auto fine = BalancedFactors(input_, readers, 24);
  ASSERT_THAT(fine, IsOk());
  EXPECT_GT(widest(*fine), widest(*factors));
}

class FoundFolds : public ::testing::TestWithParam<const char*> {};

TEST_P(FoundFolds, KeepTheModel) {
  const auto base = Checkpoint::Open(std::string(HEXPORT_TEST_DATA) + "/tiny/" + GetParam());
  ASSERT_THAT(base, IsOk());
  const auto graph = decoder::BuildDecoder(**base, {});
  ASSERT_THAT(graph, IsOk());
  const std::vector<TokenIds> samples = {{1, 5, 9, 33, 2, 60, 7}, {1, 44, 12, 8, 9, 10, 11, 12}};
  for (const Method method : {Method::kAwq, Method::kSmoothQuant, Method::kGptq}) {
    QuantConfig config;
    config.method = method;
    config.fold_channels = true;
    const auto folds = FindFolds(**base, *graph, config, samples, 0, NullProgress());
    ASSERT_THAT(folds, IsOk());
    const ModelConfig& model = (*base)->config();
    const size_t norms = method == Method::kGptq ? 0 : 2, keys = model.qk_norm ? 0 : 1;
    EXPECT_EQ(folds->size(), static_cast<size_t>(model.num_hidden_layers) * (2 + keys + norms));
    const auto folded = FoldChannels(**base, *folds);
    ASSERT_THAT(folded, IsOk());
    const auto expected = FloatLogits(**base, samples, NullProgress());
    const auto got = FloatLogits(**folded, samples, NullProgress());
    ASSERT_THAT(expected, IsOk());
    ASSERT_THAT(got, IsOk());
    for (size_t i = 0; i < (*expected)[0].size(); ++i)
      ASSERT_NEAR((*got)[0][i], (*expected)[0][i], 2e-4) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, FoundFolds,
                         ::testing::Values("llama", "phi3", "qwen2", "qwen3", "gemma3_text"));

}  // namespace
}  // namespace hexport::quant
