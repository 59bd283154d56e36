#include "quant/encodings_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "quant/encodings_export.h"
#include "quant/tiny_model.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr const char* kWeight = "layers.0.mlp.down_proj.weight";
constexpr const char* kActivation = "layers.1.mlp.gated";

class EncodingsCheckTest : public ::testing::Test {
 protected:
  void SetUp() override { Fill({WeightFormat::kInt8, 32}); }

  void Fill(const WeightOptions& weights) {
    model_ = std::make_unique<TinyModel>("llama", weights);
    graph_ = model_->Graph({});
    const auto file =
        ExportEncodings({graph_, model_->ranges, *model_->store, config_}, EncodingsSchema::k100);
    ASSERT_THAT(file, IsOk());
    file_ = *file;
  }
  std::vector<EncodingFinding> Check() const { return CheckEncodings(file_, graph_); }

  static TensorEncoding& Find(std::vector<TensorEncoding>& list, const std::string& name) {
    const auto found = std::find_if(list.begin(), list.end(),
                                    [&](const TensorEncoding& e) { return e.name == name; });
    EXPECT_NE(found, list.end()) << name;
    return *found;
  }
  static TensorEncoding Take(std::vector<TensorEncoding>& list, const std::string& name) {
    TensorEncoding out = Find(list, name);
    std::erase_if(list, [&](const TensorEncoding& e) { return e.name == name; });
    return out;
  }
  // The finding of `fault`, which must be the only one of it.
  static EncodingFinding Only(const std::vector<EncodingFinding>& findings, EncodingFault fault) {
    EncodingFinding out;
    int count = 0;
    for (const EncodingFinding& finding : findings) {
      if (finding.fault != fault) continue;
      out = finding;
      ++count;
    }
    EXPECT_EQ(count, 1) << EncodingFaultName(fault);
    return out;
  }

  std::unique_ptr<TinyModel> model_;
  decoder::DecoderGraph graph_;
  QuantConfig config_;
  EncodingsFile file_;
};

TEST_F(EncodingsCheckTest, WhatIsExportedIsWhole) {
  for (const WeightOptions& weights :
       {WeightOptions{WeightFormat::kInt8, 32}, WeightOptions{WeightFormat::kInt4, 32},
        WeightOptions{WeightFormat::kLpbq, 16}}) {
    Fill(weights);
    EXPECT_EQ(file_.activations.size(), graph_.activations.size());
    EXPECT_GT(file_.params.size(), graph_.linears.size());
    for (const EncodingFinding& finding : Check()) ADD_FAILURE() << finding.message;
  }
}

TEST_F(EncodingsCheckTest, Q10FourFaultsAreFourFindings) {
  const std::string missing = "layers.0.self_attn.v_proj.weight", misspelt = "layers.0.mlp.gatd";
  Take(file_.params, missing);
  file_.activations.push_back(Take(file_.params, kWeight));
  file_.params.push_back(Take(file_.activations, kActivation));
  Find(file_.activations, "layers.0.mlp.gated").name = misspelt;
  const std::vector<EncodingFinding> findings = Check();
  ASSERT_EQ(findings.size(), 4u) << FindingsStatus(findings).ToString();
  EXPECT_EQ(Only(findings, EncodingFault::kMissing).tensor, missing);
  EXPECT_EQ(Only(findings, EncodingFault::kWeightAmongActivations).tensor, kWeight);
  EXPECT_EQ(Only(findings, EncodingFault::kActivationAmongParams).tensor, kActivation);
  const EncodingFinding unknown = Only(findings, EncodingFault::kUnknownName);
  EXPECT_EQ(unknown.tensor, misspelt);
  EXPECT_THAT(unknown.message, HasSubstr("did you mean \"layers.0.mlp.gated\"?"));
  for (const EncodingFinding& finding : findings) {
    EXPECT_TRUE(finding.error);
    EXPECT_THAT(finding.message, StartsWith(finding.tensor + ": expected"));
  }
  EXPECT_THAT(FindingsStatus(findings),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("4 faults"), HasSubstr(missing), HasSubstr(misspelt))));
}

TEST_F(EncodingsCheckTest, Q10AnActivationWithoutAnEncodingIsAnError) {
  Take(file_.activations, kActivation);
  const std::vector<EncodingFinding> findings = Check();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(Only(findings, EncodingFault::kMissing).tensor, kActivation);
  EXPECT_EQ(CountErrors(findings), 1);
}

TEST_F(EncodingsCheckTest, OneEncodingIsEnoughForTensorsThatHoldTheSameCodes) {
  // Reshape and Transpose after the projection move its codes.
  std::set<std::string> before;
  for (const TensorEncoding& encoding : file_.activations) before.insert(encoding.name);
  const std::string past = "past_value_1_in", present = "past_value_1_out";
  ASSERT_TRUE(before.contains(past) && before.contains(present));
  Take(file_.activations, past);
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(EncodingsCheckTest, TwoEncodingsOfTheSameCodesConflict) {
  Find(file_.activations, "past_key_0_out").scales[0] *= 1.5f;
  const std::vector<EncodingFinding> findings = Check();
  ASSERT_FALSE(findings.empty());
  for (const EncodingFinding& finding : findings) {
    EXPECT_EQ(finding.fault, EncodingFault::kConflict);
    EXPECT_THAT(finding.message, HasSubstr("past_key_0"));
  }
}

TEST_F(EncodingsCheckTest, Q13AbsurdRangesAreNamedBeforeAnythingIsQuantized) {
  TensorEncoding& gated = Find(file_.activations, kActivation);
  gated.scales[0] = 2.7e34f / 65535.0f;
  gated.offsets[0] = 0;
  const EncodingFinding absurd = Only(Check(), EncodingFault::kAbsurd);
  EXPECT_TRUE(absurd.error);
  EXPECT_EQ(absurd.tensor, kActivation);
  EXPECT_THAT(absurd.message, AllOf(HasSubstr("2.7e+34"), HasSubstr("float16 ends at 65504")));
}

TEST_F(EncodingsCheckTest, Q13RangesBeyondFloat16AreAWarning) {
  TensorEncoding& gated = Find(file_.activations, kActivation);
  gated.scales[0] = 70000.0f / 65535.0f;
  gated.offsets[0] = 0;
  const EncodingFinding absurd = Only(Check(), EncodingFault::kAbsurd);
  EXPECT_FALSE(absurd.error);
  EXPECT_THAT(FindingsStatus(Check()), IsOk());
}

TEST_F(EncodingsCheckTest, ChannelsAndBlocksMustBeTheTensors) {
  TensorEncoding& weight = Find(file_.params, kWeight);
  weight.scales.pop_back();
  weight.offsets.pop_back();
  EXPECT_EQ(Only(Check(), EncodingFault::kUnfit).tensor, kWeight);
  Fill({WeightFormat::kLpbq, 16});
  Find(file_.params, kWeight).block_size = 32;
  EXPECT_THAT(Only(Check(), EncodingFault::kUnfit).message, HasSubstr("block scales"));
  Find(file_.params, kWeight).block_size = 7;
  EXPECT_THAT(Only(Check(), EncodingFault::kUnfit).message, HasSubstr("blocks that divide"));
  Fill({WeightFormat::kInt8, 32});
  TensorEncoding& gated = Find(file_.activations, kActivation);
  gated.type = EncodingType::kPerChannel;
  gated.scales.resize(2, 1.0f);
  gated.offsets.resize(2, 0);
  EXPECT_EQ(Only(Check(), EncodingFault::kUnfit).tensor, kActivation);
}

TEST_F(EncodingsCheckTest, AForeignFileEndsInTime) {
  for (TensorEncoding& encoding : file_.params) encoding.name = "/model/" + encoding.name + "_x";
  for (int i = 0; i < 20000; ++i) {
    file_.params.push_back(file_.params[0]);
    file_.params.back().name = std::string(190, 'y') + std::to_string(i);
  }
  const std::vector<EncodingFinding> findings = Check();
  EXPECT_GT(findings.size(), 20000u);
  EXPECT_LT(FindingsStatus(findings).message().size(), 4000u);
}

}  // namespace
}  // namespace hexport::quant
