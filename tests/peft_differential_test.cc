// Adapters that PEFT wrote, merged by hexport, against what PEFT merges them to
// (tests/generate/peft_cases.py): 200 single ones, of which 19 must be refused, and weighted sums.
//
// Tolerance: values up to about 4 are sums of at most 10 products in float32, in another order than
// PyTorch's: some 2e-7. Where hexport rebuilds what PiSSA or OLoRA took out of the base, a case has
// a tolerance of its own: twice the error that PEFT's decomposition in float32 makes against one
// in float64, as the generator measured it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "adapter/base_tensors.h"
#include "adapter/merge.h"
#include "base/progress.h"
#include "base/status_matchers.h"
#include "base/test_directory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "compile/logit_check.h"

namespace hexport::adapter {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::Slurp;
using ::hexport::testing::Spill;
using ::hexport::testing::TestDirectory;
using nlohmann::json;

const fs::path kData = fs::path(HEXPORT_TEST_DATA) / "peft";

const json& Cases() {
  static const json cases = json::parse(Slurp(kData / "cases.json"))["cases"];
  return cases;
}

std::string_view Packed(const json& place) {
  static const std::string pack = Slurp(kData / "pack.bin");
  return std::string_view(pack).substr(place.at(0), place.at(1));
}

void WriteAdapter(const fs::path& folder, const json& adapter) {
  fs::create_directories(folder);
  Spill(folder / "adapter_config.json", adapter.at("config").get<std::string>());
  Spill(folder / "adapter_model.safetensors", Packed(adapter.at("weights")));
}

struct Tensor {
  Shape shape;
  std::vector<float> values;
};
using Tensors = std::map<std::string, Tensor>;

// A file of float32 or bfloat16 tensors.
Tensors ReadTensors(std::string_view file) {
  Tensors tensors;
  const auto bytes = std::as_bytes(std::span(file.data(), file.size()));
  const auto entries = ParseSafetensorsHeader(bytes, "expected");
  EXPECT_THAT(entries, IsOk());
  if (!entries.ok()) return tensors;
  for (const SafetensorsEntry& entry : *entries) {
    Tensor tensor{entry.shape, {}};
    tensor.values.resize(static_cast<size_t>(NumElements(entry.shape)));
    if (entry.dtype == "BF16") {
      for (size_t i = 0; i < tensor.values.size(); ++i) {
        uint16_t half = 0;
        std::memcpy(&half, file.data() + entry.begin + 2 * i, sizeof(half));
        const uint32_t wide = uint32_t{half} << 16;
        std::memcpy(&tensor.values[i], &wide, sizeof(wide));
      }
    } else {
      EXPECT_EQ(entry.dtype, "F32") << entry.name;
      if (entry.dtype != "F32") continue;
      std::memcpy(tensor.values.data(), file.data() + entry.begin, entry.end - entry.begin);
    }
    tensors.emplace(entry.name, std::move(tensor));
  }
  return tensors;
}

struct Difference {
  double worst = 0;
  std::string tensor;
  size_t index = 0;
};

class PeftDifferential : public ::testing::TestWithParam<size_t> {
 protected:
  const json& test_case() const { return Cases()[GetParam()]; }
  fs::path base_folder() const {
    return kData / ("base_" + test_case().at("base").get<std::string>());
  }

  // Merges into merged(). The report, or the first refusal.
  Result<MergeReport> Merge() {
    HEXPORT_ASSIGN_OR_RETURN(base_, BaseTensors::Open(base_folder(), {}));
    std::vector<MatchedAdapters::Source> sources;
    for (const json& description : test_case().at("adapters")) {
      const fs::path folder = directory_ / ("adapter" + std::to_string(adapters_.size()));
      WriteAdapter(folder, description);
      HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<Adapter> opened, Adapter::Open(folder));
      adapters_.push_back(std::move(opened));
      sources.push_back({adapters_.back().get(), description.value("weight", 1.0)});
    }
    MatchOptions options;
    if (test_case().contains("initial_adapter")) {
      options.initial_adapter = directory_ / "initial";
      WriteAdapter(options.initial_adapter, test_case()["initial_adapter"]);
    }
    HEXPORT_ASSIGN_OR_RETURN(matched_, MatchedAdapters::Match(sources, *base_, options));
    fs::create_directories(merged());
    MergeOptions merge_options;
    merge_options.dtype = DType::kFloat32;
    return MergeInto(merged(), *base_, *matched_, merge_options, NullProgress());
  }

  fs::path merged() const { return directory_ / "merged"; }

  // The base's tensors with the changed ones in place.
  Tensors Expected() const {
    Tensors expected = ReadTensors(Slurp(base_folder() / "model.safetensors"));
    for (auto& [name, tensor] : ReadTensors(Packed(test_case().at("expected")))) {
      expected[name] = std::move(tensor);
    }
    return expected;
  }

  static std::map<std::string, std::pair<int, Difference>>& by_kind() {
    static std::map<std::string, std::pair<int, Difference>> kinds;
    return kinds;
  }
  static void TearDownTestSuite() {
    for (const auto& [kind, result] : by_kind()) {
      std::cout << kind << ": " << result.first << " cases";
      if (!result.second.tensor.empty()) {
        std::cout << ", max error " << result.second.worst << " in " << result.second.tensor
                  << " at " << result.second.index;
      }
      std::cout << "\n";
    }
  }

  TestDirectory directory_;
  std::unique_ptr<BaseTensors> base_;
  std::vector<std::unique_ptr<Adapter>> adapters_;
  std::unique_ptr<MatchedAdapters> matched_;
};

std::set<std::string> Names(const Tensors& tensors) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) names.insert(name);
  return names;
}

Difference Compare(const Tensors& got, const Tensors& expected) {
  Difference difference;
  for (const auto& [name, right] : expected) {
    const Tensor& tensor = got.at(name);
    EXPECT_EQ(tensor.shape, right.shape) << name;
    if (tensor.shape != right.shape) continue;
    for (size_t i = 0; i < right.values.size(); ++i) {
      const double error =
          std::abs(static_cast<double>(tensor.values[i]) - static_cast<double>(right.values[i]));
      if (difference.tensor.empty() || !(error <= difference.worst)) {  // a NaN is the worst
        difference = {error, name, i};
      }
      if (std::isnan(error)) return difference;
    }
  }
  return difference;
}

TEST_P(PeftDifferential, EqualsMergeAndUnload) {
  const json& facts = test_case();
  const std::string kind = facts.at("kind");
  ++by_kind()[kind].first;
  const Result<MergeReport> report = Merge();
  if (facts.contains("refused")) {
    ASSERT_FALSE(report.ok()) << "expected a refusal";
    EXPECT_NE(report.status().message().find(facts["refused"].get<std::string>()),
              std::string::npos)
        << "expected '" << facts["refused"].get<std::string>() << "' in the reason, got "
        << report.status().ToString();
    EXPECT_TRUE(report.status().code() == StatusCode::kUnimplemented ||
                report.status().code() == StatusCode::kInvalidArgument)
        << report.status().ToString();
    return;
  }
  ASSERT_THAT(report, IsOk());
  for (const std::string& failure : report->failures) ADD_FAILURE() << failure;
  EXPECT_EQ(report->matched, report->adapter_tensors);
  EXPECT_FALSE(report->identity);

  const Tensors expected = Expected();
  const Tensors got = ReadTensors(Slurp(merged() / "model.safetensors"));
  ASSERT_EQ(Names(got), Names(expected));
  EXPECT_EQ(report->tensors_out, static_cast<int64_t>(got.size()));
  const json config = json::parse(Slurp(merged() / "config.json"));
  EXPECT_EQ(config.at("tie_word_embeddings"), facts.at("tied"));
  EXPECT_EQ(config.at("vocab_size"), facts.at("vocab_size"));

  const Difference difference = Compare(got, expected);
  EXPECT_LE(difference.worst, facts.at("tolerance").get<double>())
      << difference.tensor << " at " << difference.index << ": expected "
      << expected.at(difference.tensor).values[difference.index] << ", got "
      << got.at(difference.tensor).values[difference.index];
  Difference& worst = by_kind()[kind].second;
  if (worst.tensor.empty() || !(difference.worst <= worst.worst)) worst = difference;
}

// The check of `hexport merge`: logits of the merged file against the base with the adapter beside
// its weights, which no merging code had a hand in. float32 on both sides: sums in another order.
TEST_P(PeftDifferential, UnmergedLogitsAreTheMergedOnes) {
  if (test_case().contains("refused")) return;
  ASSERT_THAT(Merge(), IsOk());
  const Result<std::unique_ptr<Checkpoint>> opened = Checkpoint::Open(merged());
  ASSERT_THAT(opened, IsOk());
  const Result<std::unique_ptr<Checkpoint>> base = Checkpoint::Open(base_folder());
  ASSERT_THAT(base, IsOk());
  compile::LogitCheckOptions options;
  options.scratch = directory_.path();
  options.samples = {{1, 5, 9, 2, 7, 11, 3, 8}, {4, 4, 10}};
  const Result<compile::LogitCheck> check =
      compile::CompareLogits(**opened, *matched_, base->get(), options, NullProgress());
  ASSERT_THAT(check, IsOk());
  EXPECT_LE(check->merged.max_abs, 2e-5 * std::max(1.0, check->max_abs_logit));
  EXPECT_EQ(check->tokens, 11);
  // A check that can fail: the base is not what the adapter makes of it. (A token that no sample
  // holds may be all that an adapter changes, hence not > 0 for every kind.)
  if (test_case().at("kind") == "lora") {
    EXPECT_GT(check->base.max_abs, 1e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Peft, PeftDifferential, ::testing::Range(size_t{0}, Cases().size()),
                         [](const ::testing::TestParamInfo<size_t>& info) {
                           return Cases()[info.param].at("name").get<std::string>();
                         });

// 200 single adapters and at least ten weighted ones: a shorter file would pass unseen.
TEST(PeftCases, AreAllThere) {
  const auto weighted = [](const json& one) {
    return one.at("kind").get<std::string>().starts_with("weighted");
  };
  const auto count = std::count_if(Cases().begin(), Cases().end(), weighted);
  EXPECT_GE(count, 10);
  EXPECT_EQ(Cases().size() - static_cast<size_t>(count), 200u);
}

}  // namespace
}  // namespace hexport::adapter
