// On tests/data/tiny_bundle: a one-layer model whose logits numpy computed without cache and
// chunks.
#include "runtime/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/status_matchers.h"

namespace hexport::runtime {
namespace {

namespace fs = std::filesystem;
using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Lt;

constexpr int64_t kVocab = 64, kTokens = 61, kContext = 64;

std::string Text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<int32_t> Ids(const std::vector<GeneratedToken>& tokens) {
  std::vector<int32_t> ids;
  for (const GeneratedToken& token : tokens) ids.push_back(token.id);
  return ids;
}

double Largest(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return largest;
}

class SessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const fs::path data = fs::path(HEXPORT_TEST_DATA) / "tiny_bundle";
    bundle_ =
        fs::path(::testing::TempDir()) /
        ("hexport_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(bundle_);
    fs::copy(data, bundle_, fs::copy_options::recursive);
    const json expected = json::parse(Text(data / "expected.json"));
    prompt_ = expected.at("ids").get<std::vector<int32_t>>();
    for (const json& row : expected.at("logits")) {
      for (const json& value : row) expected_.push_back(value.get<float>());
    }
  }
  void TearDown() override { fs::remove_all(bundle_); }

  bundle::Manifest ReadManifest() const {
    Result<bundle::Manifest> manifest = bundle::OpenBundle(bundle_, true);
    EXPECT_THAT(manifest, IsOk());
    return *manifest;
  }
  void WriteManifest(const bundle::Manifest& manifest) const {
    std::ofstream(bundle_ / "manifest.json") << bundle::ManifestToJson(manifest);
  }
  // The float model as if there were graphs with these ARs.
  void UseArs(const std::vector<int64_t>& ars, int64_t context_length) const {
    bundle::Manifest manifest = ReadManifest();
    manifest.context_length = context_length;
    manifest.graphs.clear();
    for (const int64_t ar : ars) {
      bundle::GraphEntry graph;
      graph.name = "ar" + std::to_string(ar);
      graph.ar = ar;
      graph.cl = context_length;
      manifest.graphs.push_back(graph);
    }
    WriteManifest(manifest);
  }
  std::unique_ptr<Session> Open(EngineKind kind) const {
    Result<std::unique_ptr<Session>> session = Session::Create(bundle_, kind);
    EXPECT_THAT(session, IsOk());
    return session.ok() ? *std::move(session) : nullptr;
  }
  std::span<const int32_t> Prompt(size_t count) const { return std::span(prompt_).first(count); }
  // A long text: the prompt's ids again and again.
  std::vector<int32_t> Long(size_t count) const {
    std::vector<int32_t> ids;
    while (ids.size() < count) ids.push_back(prompt_[ids.size() % prompt_.size()]);
    return ids;
  }

  fs::path bundle_;
  std::vector<int32_t> prompt_;  // 37 ids
  std::vector<float> expected_;  // [37, kVocab]
};

GenerateResult Generate(Session& session, std::span<const int32_t> prompt,
                        const GenerateOptions& options) {
  Result<GenerateResult> result = session.Generate(prompt, options, {});
  EXPECT_THAT(result, IsOk());
  return result.ok() ? *result : GenerateResult();
}

GenerateOptions MaxTokens(int64_t count) {
  GenerateOptions options;
  options.max_tokens = count;
  return options;
}

TEST_F(SessionTest, FloatLogitsAgreeWithNumpy) {
  const auto session = Open(EngineKind::kCpu);
  const auto logits = session->Logits(prompt_);
  ASSERT_THAT(logits, IsOk());
  EXPECT_LT(Largest(*logits, expected_), 1e-4);
}

TEST_F(SessionTest, EveryChunkLengthGivesTheSameLogits) {
  for (const int64_t ar : {1, 16, 32, 36, 37, 128}) {
    UseArs({ar}, 192);
    const auto logits = Open(EngineKind::kCpu)->Logits(prompt_);
    ASSERT_THAT(logits, IsOk());
    EXPECT_LT(Largest(*logits, expected_), 1e-4) << "ar " << ar;
  }
}

TEST_F(SessionTest, CodedGraphsAgreeWithNumpyWithinTheirCodes) {
  const auto logits = Open(EngineKind::kQdq)->Logits(prompt_);
  ASSERT_THAT(logits, IsOk());
  double dot = 0, a = 0, b = 0;
  for (size_t i = 0; i < expected_.size(); ++i) {
    dot += static_cast<double>((*logits)[i] * expected_[i]);
    a += static_cast<double>((*logits)[i] * (*logits)[i]);
    b += static_cast<double>(expected_[i] * expected_[i]);
  }
  EXPECT_GT(dot / std::sqrt(a * b), 0.999);  // 8 bit caches cost .0003
}

TEST_F(SessionTest, CodedChunksAgreeWithSingleSteps) {
  const auto chunks = Open(EngineKind::kQdq)->Logits(prompt_);
  bundle::Manifest manifest = ReadManifest();
  std::erase_if(manifest.graphs, [](const auto& graph) { return graph.ar != 1; });
  WriteManifest(manifest);
  const auto steps = Open(EngineKind::kQdq)->Logits(prompt_);
  ASSERT_THAT(chunks, IsOk());
  ASSERT_THAT(steps, IsOk());
  EXPECT_LT(Largest(*chunks, *steps), 0.05);  // a cache code may round the other way
}

TEST_F(SessionTest, TheWholeContextCanBeFilled) {
  const std::vector<int32_t> ids = Long(kContext);
  const auto chunks = Open(EngineKind::kCpu)->Logits(ids);  // 16 a time, then single steps
  UseArs({1}, 200);
  const auto roomy = Open(EngineKind::kCpu)->Logits(ids);
  ASSERT_THAT(chunks, IsOk());
  ASSERT_THAT(roomy, IsOk());
  EXPECT_EQ(chunks->size(), static_cast<size_t>(kContext * kVocab));
  EXPECT_LT(Largest(*chunks, *roomy), 1e-4);
}

TEST_F(SessionTest,
       SingleStepsFinishWhereChunksEnd) {  // 57 ids: a fourth chunk of 16 does not fit behind 49
  UseArs({49, 1}, kContext);
  const std::vector<int32_t> ids = Long(57);
  const auto mixed = Open(EngineKind::kCpu)->Logits(ids);
  UseArs({1}, 200);
  const auto roomy = Open(EngineKind::kCpu)->Logits(ids);
  ASSERT_THAT(mixed, IsOk());
  ASSERT_THAT(roomy, IsOk());
  EXPECT_LT(Largest(*mixed, *roomy), 1e-4);
}

TEST_F(SessionTest, LogitsBeyondTheContextAreRefusedWithBothNumbers) {
  EXPECT_THAT(Open(EngineKind::kCpu)->Logits(Long(65)),
              StatusIs(StatusCode::kResourceExhausted, AllOf(HasSubstr("65"), HasSubstr("64"))));
}

TEST_F(SessionTest, GreedyTokensFollowTheLogits) {
  const auto session = Open(EngineKind::kCpu);
  const GenerateResult result = Generate(*session, Prompt(20), MaxTokens(6));
  EXPECT_EQ(result.finish_reason, "length");
  ASSERT_EQ(result.tokens.size(), 6u);
  std::vector<int32_t> ids(prompt_.begin(), prompt_.begin() + 20);
  for (const GeneratedToken& token : result.tokens) {  // each from scratch
    const auto logits = session->Logits(ids);
    ASSERT_THAT(logits, IsOk());
    std::vector<float> row(logits->end() - kVocab, logits->end() - kVocab + kTokens);
    std::sort(row.rbegin(), row.rend());
    EXPECT_FLOAT_EQ((*logits)[(ids.size() - 1) * kVocab + static_cast<size_t>(token.id)], row[0]);
    EXPECT_NEAR(token.margin, row[0] - row[1], 1e-4);
    ids.push_back(token.id);
  }
}

TEST_F(SessionTest, PaddedRowsAreNeverGenerated) {
  const auto logits = Open(EngineKind::kCpu)->Logits(prompt_);
  ASSERT_THAT(logits, IsOk());
  int padded = 0;  // the test means nothing unless padding would win
  for (size_t row = 0; row < prompt_.size(); ++row) {
    const auto begin = logits->begin() + static_cast<std::ptrdiff_t>(row * kVocab);
    padded += std::max_element(begin, begin + kVocab) - begin >= kTokens;
  }
  EXPECT_GT(padded, 10);
  GenerateOptions options = MaxTokens(40);
  options.sampling.temperature = 2;
  for (const EngineKind kind : {EngineKind::kCpu, EngineKind::kQdq}) {
    EXPECT_THAT(Ids(Generate(*Open(kind), Prompt(5), options).tokens), Each(Lt(kTokens)));
  }
}

TEST_F(SessionTest, SecondTurnEqualsAFreshStart) {
  for (const EngineKind kind : {EngineKind::kCpu, EngineKind::kQdq}) {
    const auto session = Open(kind);
    const GenerateResult first = Generate(*session, Prompt(18), MaxTokens(7));
    std::vector<int32_t> turn(prompt_.begin(), prompt_.begin() + 18);
    for (const GeneratedToken& token : first.tokens) turn.push_back(token.id);
    turn.insert(turn.end(), prompt_.begin() + 18, prompt_.begin() + 30);
    const GenerateResult second = Generate(*session, turn, MaxTokens(7));
    const GenerateResult fresh = Generate(*Open(kind), turn, MaxTokens(7));
    EXPECT_EQ(Ids(second.tokens), Ids(fresh.tokens));
    ASSERT_EQ(second.tokens.size(), 7u);
    EXPECT_NEAR(second.tokens[0].margin, fresh.tokens[0].margin,
                kind == EngineKind::kCpu ? 1e-4 : 0.05);
  }
}

TEST_F(SessionTest, AnotherPromptForgetsTheFirst) {
  const auto session = Open(EngineKind::kCpu);
  Generate(*session, prompt_, MaxTokens(10));
  const std::vector<int32_t> other = {prompt_[0], 5, 9};
  EXPECT_EQ(Ids(Generate(*session, other, MaxTokens(9)).tokens),
            Ids(Generate(*Open(EngineKind::kCpu), other, MaxTokens(9)).tokens));
}

TEST_F(SessionTest, TheSamePromptTwiceGivesTheSameAnswer) {
  const auto session = Open(EngineKind::kQdq);
  GenerateOptions options = MaxTokens(12);
  options.sampling.temperature = 1.5;
  const GenerateResult first = Generate(*session, prompt_, options);
  EXPECT_EQ(Ids(first.tokens), Ids(Generate(*session, prompt_, options).tokens));
  options.sampling.seed = 43;
  EXPECT_NE(Ids(first.tokens), Ids(Generate(*session, prompt_, options).tokens));
}

TEST_F(SessionTest, StopsAtAnyStopToken) {
  const auto session = Open(EngineKind::kCpu);
  GenerateOptions options = MaxTokens(20);
  options.sampling.temperature = 1;
  const std::vector<int32_t> all = Ids(Generate(*session, Prompt(9), options).tokens);
  ASSERT_EQ(all.size(), 20u);
  const int32_t stop = all[6];
  const auto expected = std::vector<int32_t>(all.begin(), std::find(all.begin(), all.end(), stop));
  options.stop_token_ids = {1000, stop};
  const GenerateResult stopped = Generate(*session, Prompt(9), options);
  EXPECT_EQ(stopped.finish_reason, "stop");
  EXPECT_EQ(Ids(stopped.tokens), expected);  // without the stop token
}

TEST_F(SessionTest, StopsAtEveryEosOfTheManifest) {
  const std::vector<int32_t> all =
      Ids(Generate(*Open(EngineKind::kCpu), Prompt(9), MaxTokens(1)).tokens);
  ASSERT_EQ(all.size(), 1u);
  bundle::Manifest manifest = ReadManifest();
  manifest.model.eos_token_ids = {7, 60, all[0]};
  WriteManifest(manifest);
  const GenerateResult stopped = Generate(*Open(EngineKind::kCpu), Prompt(9), MaxTokens(5));
  EXPECT_EQ(stopped.finish_reason, "stop");
  EXPECT_TRUE(stopped.tokens.empty());
}

TEST_F(SessionTest, AFullContextEndsWithLength) {
  for (const EngineKind kind : {EngineKind::kCpu, EngineKind::kQdq}) {
    const GenerateResult result = Generate(*Open(kind), prompt_, MaxTokens(1000));
    EXPECT_EQ(result.finish_reason, "length");
    EXPECT_EQ(result.tokens.size(), static_cast<size_t>(kContext) - prompt_.size());
  }
}

TEST_F(SessionTest, TheLongestPromptLeavesRoomForOneToken) {
  const GenerateResult result = Generate(*Open(EngineKind::kQdq), Long(63), MaxTokens(1000));
  EXPECT_EQ(result.finish_reason, "length");
  EXPECT_EQ(result.tokens.size(), 1u);
}

TEST_F(SessionTest, ATooLongPromptIsRefusedWithBothNumbers) {
  EXPECT_THAT(Open(EngineKind::kCpu)->Generate(Long(64), MaxTokens(1), {}),
              StatusIs(StatusCode::kResourceExhausted,
                       HasSubstr("64 tokens do not fit the context of 64")));
}

TEST_F(SessionTest, WithoutASingleStepGraphTheContextIsFullEarlier) {
  bundle::Manifest manifest = ReadManifest();
  std::erase_if(manifest.graphs, [](const auto& graph) { return graph.ar == 1; });
  WriteManifest(manifest);
  const auto session = Open(EngineKind::kQdq);  // ar 16: the past holds 48
  const GenerateResult result = Generate(*session, prompt_, MaxTokens(1000));
  EXPECT_EQ(result.finish_reason, "length");
  EXPECT_EQ(result.tokens.size(), 13u);  // 37 + 12 run, the last one not
  EXPECT_THAT(session->Generate(Long(60), MaxTokens(1), {}),
              IsOk());  // 48, then a short chunk of 12
}

TEST_F(SessionTest, ReportsEachTokenAndCanBeCancelled) {
  std::vector<int32_t> seen;
  const auto result =
      Open(EngineKind::kCpu)->Generate(prompt_, MaxTokens(20), [&](const GeneratedToken& token) {
        seen.push_back(token.id);
        return seen.size() < 3;
      });
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->finish_reason, "cancelled");
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_EQ(Ids(result->tokens), seen);
}

TEST_F(SessionTest, MaxTokensZeroAnswersNothing) {
  const GenerateResult result = Generate(*Open(EngineKind::kCpu), prompt_, MaxTokens(0));
  EXPECT_TRUE(result.tokens.empty());
  EXPECT_EQ(result.finish_reason, "length");
}

TEST_F(SessionTest, RefusesBadPrompts) {
  const auto session = Open(EngineKind::kCpu);
  EXPECT_THAT(session->Generate({}, {}, {}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("at least one")));
  const std::vector<int32_t> high = {1, 64}, low = {-1};
  EXPECT_THAT(session->Generate(high, {}, {}),
              StatusIs(StatusCode::kInvalidArgument,
                       "prompt: token 1: expected an id from 0 to 63, got 64"));
  EXPECT_THAT(session->Logits(low), StatusIs(StatusCode::kInvalidArgument, HasSubstr("got -1")));
}

TEST_F(SessionTest, ABundleWithoutEmulatorGraphsSaysSo) {
  EXPECT_THAT(Session::Create(bundle_, EngineKind::kEmulator),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("emulator engine")));
}

TEST_F(SessionTest, CachesWithTwoEncodingsAreRefused) {
  bundle::Manifest manifest = ReadManifest();
  manifest.graphs[0].outputs[1].scale *= 2;
  WriteManifest(manifest);
  EXPECT_THAT(Session::Create(bundle_, EngineKind::kQdq),
              StatusIs(StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("past_key_0_in"), HasSubstr("past_key_0_out"))));
  manifest.graphs[0].inputs[4].scale *= 2;  // now one encoding in this graph, another in the next
  WriteManifest(manifest);
  EXPECT_THAT(
      Session::Create(bundle_, EngineKind::kQdq),
      StatusIs(StatusCode::kFailedPrecondition, AllOf(HasSubstr("ar 16"), EndsWith("with ar 1"))));
}

TEST_F(SessionTest, AWrongShapeInTheManifestIsRefused) {
  bundle::Manifest manifest = ReadManifest();
  manifest.graphs[1].inputs[4].shape = {2, 1, 63, 8};
  WriteManifest(manifest);
  EXPECT_THAT(Session::Create(bundle_, EngineKind::kQdq),
              StatusIs(StatusCode::kFailedPrecondition,
                       HasSubstr("past_key_0_in: expected shape [2, 1, 8, 63]")));
}

TEST_F(SessionTest, AMissingBundleIsNotFound) {
  EXPECT_THAT(Session::Create(bundle_ / "none", EngineKind::kCpu),
              StatusIs(StatusCode::kNotFound, HasSubstr("none")));
}

TEST(EngineKindTest, ParsesNames) {
  EXPECT_EQ(*ParseEngineKind("cpu"), EngineKind::kCpu);
  EXPECT_EQ(*ParseEngineKind("qdq"), EngineKind::kQdq);
  EXPECT_EQ(*ParseEngineKind("emulator"), EngineKind::kEmulator);
  EXPECT_THAT(ParseEngineKind("gpu"), StatusIs(StatusCode::kInvalidArgument, HasSubstr("\"gpu\"")));
}

}  // namespace
}  // namespace hexport::runtime
