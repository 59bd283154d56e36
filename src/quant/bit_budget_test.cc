#include "quant/bit_budget.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/status_matchers.h"
#include "quant/layer_walker.h"

namespace hexport::quant {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::HasSubstr;

using Logits = std::vector<std::vector<float>>;  // [sample][token * vocab]

class BitBudgetTest : public ::testing::Test {
 protected:
  BitBudgetTest()
      : folder_(fs::path(::testing::TempDir()) / ("budget" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
    auto opened = Checkpoint::Open(fs::path(HEXPORT_TEST_DATA) / "tiny" / "llama");
    EXPECT_THAT(opened, IsOk());
    checkpoint_ = *std::move(opened);
    auto graph = decoder::BuildDecoder(*checkpoint_, {});
    EXPECT_THAT(graph, IsOk());
    graph_ = *std::move(graph);
    config_.weights = {WeightFormat::kInt4, 32};
  }
  ~BitBudgetTest() override { fs::remove_all(folder_); }

  // With the linears of `layer` rounded to nearest; -1: none.
  Logits LogitsWith(int64_t layer) {
    const auto vocab = static_cast<size_t>(checkpoint_->config().vocab_size);
    Logits out(samples_.size());
    WalkOptions walk;
    walk.amend = [&](decoder::DecoderGraph& part) -> Status {
      for (const decoder::LinearWeight& linear : part.linears) {
        if (linear.layer != layer) continue;
        std::vector<float> values(static_cast<size_t>(linear.in_features * linear.out_features));
        HEXPORT_RETURN_IF_ERROR(decoder::ReadLinear(*checkpoint_, linear, values));
        HEXPORT_ASSIGN_OR_RETURN(const QuantizedWeight rounded,
                                 QuantizeRtn(values, linear.in_features, linear.out_features,
                                             PlanLinear(config_, linear).weights));
        for (graph::Initializer& initializer : part.graph.initializers) {
          if (initializer.name != linear.name) continue;
          initializer = graph::MakeConstant<float>(initializer.name, DType::kFloat32,
                                                   initializer.shape, Dequantize(rounded));
        }
      }
      return OkStatus();
    };
    const Status walked = WalkDecoder(
        *checkpoint_, samples_, walk,
        [&](const ActivationView& view) {
          EXPECT_EQ(view.columns, static_cast<int64_t>(vocab));
          out[view.sample].assign(view.values.begin(), view.values.end());
          return OkStatus();
        },
        NullProgress());
    EXPECT_THAT(walked, IsOk());
    return out;
  }

  // Mean over all places, in nats.
  double Divergence(const Logits& p, const Logits& q) const {
    const auto vocab = static_cast<size_t>(checkpoint_->config().vocab_size);
    const auto log_sum = [&](const float* row) {
      double sum = 0.0;
      for (size_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(row[i]));
      return std::log(sum);
    };
    double sum = 0.0;
    size_t places = 0;
    for (size_t s = 0; s < p.size(); ++s) {
      for (size_t first = 0; first < p[s].size(); first += vocab, ++places) {
        const float *a = p[s].data() + first, *b = q[s].data() + first;
        const double of_a = log_sum(a), of_b = log_sum(b);
        for (size_t i = 0; i < vocab; ++i) {
          const double log_p = static_cast<double>(a[i]) - of_a;
          sum += std::exp(log_p) * (log_p - (static_cast<double>(b[i]) - of_b));
        }
      }
    }
    return sum / static_cast<double>(places);
  }

  fs::path folder_;
  std::unique_ptr<Checkpoint> checkpoint_;
  decoder::DecoderGraph graph_;
  QuantConfig config_;
  const std::vector<TokenIds> samples_ = {{1, 5, 9, 33, 2, 60, 7}, {1, 44, 12, 8}};
};

TEST_F(BitBudgetTest, LinearsOfALayerShareItsDivergence) {
  const auto measured =
      MeasureSensitivity(*checkpoint_, graph_, config_, samples_, folder_, NullProgress());
  ASSERT_THAT(measured, IsOk());
  const Logits reference = LogitsWith(-1);
  std::map<int64_t, double> of_layer;
  for (const decoder::LinearWeight& linear : graph_.linears) {
    if (linear.lm_head) continue;
    const auto found = std::find_if(measured->begin(), measured->end(),
                                    [&](const auto& entry) { return entry.name == linear.name; });
    ASSERT_NE(found, measured->end()) << linear.name;
    EXPECT_GT(found->damage, 0.0) << linear.name;
    of_layer[linear.layer] += found->damage;
  }
  ASSERT_EQ(of_layer.size(), static_cast<size_t>(checkpoint_->config().num_hidden_layers));
  for (const auto& [layer, damage] : of_layer) {
    const double expected = Divergence(reference, LogitsWith(layer));
    EXPECT_NEAR(damage, expected, 1e-3 * expected) << layer;
  }
}

TEST_F(BitBudgetTest, MostDamagePerBitBecomesInt8First) {
  const auto measured =
      MeasureSensitivity(*checkpoint_, graph_, config_, samples_, folder_, NullProgress());
  ASSERT_THAT(measured, IsOk());
  const auto worst = std::max_element(
      measured->begin(), measured->end(), [](const Sensitivity& a, const Sensitivity& b) {
        return a.damage / static_cast<double>(a.int8_bits - a.bits) <
               b.damage / static_cast<double>(b.int8_bits - b.bits);
      });
  int64_t bits = 0, elements = 0;
  for (const Sensitivity& entry : *measured) {
    bits += entry.bits;
    elements += entry.elements;
  }
  const double room =
      static_cast<double>(bits + worst->int8_bits - worst->bits) / static_cast<double>(elements);
  const auto spent =
      SpendBits(*checkpoint_, graph_, config_, room + 1e-9, samples_, folder_, NullProgress());
  ASSERT_THAT(spent, IsOk());
  ASSERT_EQ(spent->linears.size(), 1u);
  EXPECT_EQ(spent->linears.front().pattern + ".weight", worst->name);
  EXPECT_EQ(spent->linears.front().weights, WeightFormat::kInt8);
  EXPECT_THAT(SpendBits(*checkpoint_, graph_, config_, 3.0, samples_, folder_, NullProgress()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("--auto")));
}

}  // namespace
}  // namespace hexport::quant
