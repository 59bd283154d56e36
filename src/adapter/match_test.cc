// Which key acts on which tensor, and what becomes of heads, vocabularies and biases.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "adapter/matched_adapters.h"
#include "adapter/merge_fixture.h"

namespace hexport::adapter {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::MakeAdapter;
using ::testing::Pair;
using testing::Product;
using testing::StatusIs;
using testing::TinyAdapter;
using testing::TinyModel;
using testing::TinyTensor;
using testing::TinyTensors;

constexpr const char* kEmbed = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
const std::string kPrefix = "base_model.model.";

TinyTensor Generated(Shape shape, uint32_t seed) {
  TinyTensors one{{"x", {std::move(shape), {}, "F32"}}};
  testing::Fill(one, seed);
  return one["x"];
}

// An adapter with embed_tokens and lm_head saved whole.
TinyAdapter SavesBoth(const TinyModel& model, int64_t rows, uint32_t head_seed) {
  TinyAdapter adapter = MakeAdapter(model, 4, 8, {"q_proj"});
  adapter.config["modules_to_save"] = {"embed_tokens", "lm_head"};
  adapter.tensors[kPrefix + kEmbed] = Generated({rows, 32}, 5);
  adapter.tensors[kPrefix + kHead] = Generated({rows, 32}, head_seed);
  return adapter;
}

TEST_F(MergeTest, L09TiedModelWithTwoDifferentCopiesIsUntied) {
  const TinyAdapter adapter = SavesBoth(testing::Tq3(), 64, 6);
  const auto merged = MergeTiny(testing::Tq3(), adapter);
  ASSERT_THAT(merged, IsOk());
  EXPECT_THAT(merged->report.failures, IsEmpty());
  EXPECT_EQ(merged->tensors.at(kEmbed).values, adapter.tensors.at(kPrefix + kEmbed).values);
  EXPECT_EQ(merged->tensors.at(kHead).values, adapter.tensors.at(kPrefix + kHead).values);
  EXPECT_EQ(merged->config["tie_word_embeddings"], false);
  EXPECT_EQ(merged->report.tensors_out, merged->report.tensors_in + 1);
}

TEST_F(MergeTest, L09TiedModelWithEqualCopiesStaysTied) {
  const TinyAdapter adapter = SavesBoth(testing::Tq3(), 64, 5);
  const auto merged = MergeTiny(testing::Tq3(), adapter);
  ASSERT_THAT(merged, IsOk());
  EXPECT_THAT(merged->report.failures, IsEmpty());
  EXPECT_EQ(merged->tensors.at(kEmbed).values, adapter.tensors.at(kPrefix + kEmbed).values);
  EXPECT_EQ(merged->tensors.count(kHead), 0u);
  EXPECT_EQ(merged->config["tie_word_embeddings"], true);
  EXPECT_EQ(merged->report.tensors_out, merged->report.tensors_in);
}

// As PEFT runs it: the saved copy is a module of its own, the other keeps the base's values.
TEST_F(MergeTest, L09TiedModelWithOneSavedModule) {
  const TinyModel model = testing::Tq3();
  for (const char* changed : {kEmbed, kHead}) {
    TinyAdapter adapter = SavesBoth(model, 64, 6);
    const char* other = changed == kEmbed ? kHead : kEmbed;
    adapter.tensors.erase(kPrefix + other);
    adapter.config["modules_to_save"] = {changed == kEmbed ? "embed_tokens" : "lm_head"};
    const auto merged = MergeTiny(model, adapter);
    ASSERT_THAT(merged, IsOk());
    EXPECT_EQ(merged->tensors.at(changed).values, adapter.tensors.at(kPrefix + changed).values);
    EXPECT_EQ(merged->tensors.at(other).values, model.tensors.at(kEmbed).values);
    EXPECT_EQ(merged->config["tie_word_embeddings"], false);
    EXPECT_THAT(merged->report.warnings, Contains(HasSubstr("tie_word_embeddings becomes false")));
  }
}

// A plain embedding in the file (not in modules_to_save) is the one matrix of the tied model.
TEST_F(MergeTest, L10ResizedTiedEmbeddingAloneStaysTied) {
  TinyAdapter adapter = SavesBoth(testing::Tq3(), 70, 6);
  adapter.config.erase("modules_to_save");
  adapter.tensors.erase(kPrefix + kHead);
  const auto merged = MergeTiny(testing::Tq3(), adapter);
  ASSERT_THAT(merged, IsOk());
  EXPECT_THAT(merged->report.failures, IsEmpty());
  EXPECT_EQ(merged->tensors.at(kEmbed).shape, Shape({70, 32}));
  EXPECT_EQ(merged->tensors.count(kHead), 0u);
  EXPECT_EQ(merged->config["tie_word_embeddings"], true);
  EXPECT_EQ(merged->config["vocab_size"], 70);
}

// L10 (a) 61 rows, (b) 70 rows.
TEST_F(MergeTest, L10VocabularyOfTheAdapter) {
  for (const int64_t rows : {61, 70}) {
    const TinyAdapter adapter = SavesBoth(testing::Tq2(), rows, 6);
    const auto merged = MergeTiny(testing::Tq2(), adapter);
    ASSERT_THAT(merged, IsOk());
    EXPECT_THAT(merged->report.failures, IsEmpty());
    EXPECT_EQ(merged->tensors.at(kEmbed).shape, Shape({rows, 32}));
    EXPECT_EQ(merged->tensors.at(kEmbed).values, adapter.tensors.at(kPrefix + kEmbed).values);
    EXPECT_EQ(merged->tensors.at(kHead).values, adapter.tensors.at(kPrefix + kHead).values);
    EXPECT_EQ(merged->config["vocab_size"], rows);
    EXPECT_EQ(matched_->vocab_size(), rows);
    EXPECT_THAT(merged->report.warnings,
                Contains(HasSubstr("ids must be below " + std::to_string(rows))));
  }
}

TEST_F(MergeTest, L10SpecialTokenWithoutARowFails) {
  TinyModel model = testing::Tq2();
  model.config["eos_token_id"] = {2, 63};
  const auto merged = MergeTiny(model, SavesBoth(model, 61, 6));
  ASSERT_THAT(merged, IsOk());
  EXPECT_THAT(merged->report.failures,
              ElementsAre(AllOf(HasSubstr("eos_token_id"), HasSubstr("63"), HasSubstr("61 rows"))));
}

TEST_F(MergeTest, L10OneResizedOfTwoIsRefused) {
  TinyAdapter adapter = SavesBoth(testing::Tq2(), 70, 6);
  adapter.tensors.erase(kPrefix + kHead);
  adapter.config["modules_to_save"] = {"embed_tokens"};
  EXPECT_THAT(MergeTiny(testing::Tq2(), adapter),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("lm_head.weight"), HasSubstr("70"), HasSubstr("64"))));
}

TEST_F(MergeTest, LoraOnATiedEmbeddingUntiesTheHead) {
  const TinyModel model = testing::Tq3();
  TinyAdapter adapter;
  adapter.config = {
      {"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"target_modules", {"embed_tokens"}}};
  const TinyTensor a = Generated({2, 64}, 8), b = Generated({32, 2}, 9);
  adapter.tensors[kPrefix + "model.embed_tokens.lora_embedding_A"] = a;
  adapter.tensors[kPrefix + "model.embed_tokens.lora_embedding_B"] = b;
  const auto merged = MergeTiny(model, adapter);
  ASSERT_THAT(merged, IsOk());
  EXPECT_THAT(merged->report.failures, IsEmpty());
  const auto product = Product(b, a);  // [32, 64]: the delta transposed
  const TinyTensor& base = model.tensors.at(kEmbed);
  for (size_t row = 0; row < 64; ++row) {
    for (size_t column = 0; column < 32; ++column) {
      EXPECT_NEAR(
          static_cast<double>(merged->tensors.at(kEmbed).values[row * 32 + column]),
          static_cast<double>(base.values[row * 32 + column]) + 2.0 * product[column * 64 + row],
          1e-6);
    }
  }
  EXPECT_EQ(merged->tensors.at(kHead).values, base.values);
  EXPECT_EQ(merged->config["tie_word_embeddings"], false);

  // PEFT's ensure_weight_tying saves the same adapter for the head, transposed: one matrix again.
  const auto transposed = [](const TinyTensor& tensor) {
    TinyTensor out{{tensor.shape[1], tensor.shape[0]}, tensor.values, "F32"};
    const auto rows = static_cast<size_t>(tensor.shape[0]);
    const auto columns = static_cast<size_t>(tensor.shape[1]);
    for (size_t i = 0; i < out.values.size(); ++i) {
      out.values[(i % columns) * rows + i / columns] = tensor.values[i];
    }
    return out;
  };
  adapter.tensors[kPrefix + "lm_head.lora_A.weight"] = transposed(b);
  adapter.tensors[kPrefix + "lm_head.lora_B.weight"] = transposed(a);
  const auto tied = MergeTiny(model, adapter);
  ASSERT_THAT(tied, IsOk());
  EXPECT_EQ(tied->tensors.count(kHead), 0u);
  EXPECT_EQ(tied->config["tie_word_embeddings"], true);
  EXPECT_EQ(tied->report.matched, 4);
}

TEST_F(MergeTest, LoraOnATiedHeadLeavesTheEmbedding) {
  const TinyModel model = testing::Tq3();
  TinyAdapter adapter;
  adapter.config = {
      {"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 2}, {"target_modules", {"lm_head"}}};
  const TinyTensor a = Generated({2, 32}, 8), b = Generated({64, 2}, 9);
  adapter.tensors[kPrefix + "lm_head.lora_A.weight"] = a;
  adapter.tensors[kPrefix + "lm_head.lora_B.weight"] = b;
  const auto merged = MergeTiny(model, adapter);
  ASSERT_THAT(merged, IsOk());
  EXPECT_EQ(merged->tensors.at(kEmbed).values, model.tensors.at(kEmbed).values);
  EXPECT_LT(MaxError(merged->tensors.at(kHead), model.tensors.at(kEmbed), 1.0, Product(b, a)),
            1e-6);
  EXPECT_EQ(merged->config["tie_word_embeddings"], false);
}

TEST_F(MergeTest, TrainedTokenRowsReplaceRowsOfBoth) {
  for (const bool tied : {true, false}) {
    const TinyModel model = tied ? testing::Tq3() : testing::Tq2();
    TinyAdapter adapter = MakeAdapter(model, 4, 8, {"q_proj"});
    adapter.config["trainable_token_indices"] = {60, 3};
    const TinyTensor rows = Generated({2, 32}, 8);
    adapter.tensors[kPrefix + "model.embed_tokens.token_adapter.trainable_tokens_delta"] = rows;
    const auto merged = MergeTiny(model, adapter);
    ASSERT_THAT(merged, IsOk());
    EXPECT_THAT(merged->report.failures, IsEmpty());
    std::vector<float> expected = model.tensors.at(kEmbed).values;
    std::copy_n(rows.values.begin(), 32, expected.begin() + 60 * 32);
    std::copy_n(rows.values.begin() + 32, 32, expected.begin() + 3 * 32);
    EXPECT_EQ(merged->tensors.at(kEmbed).values, expected);
    EXPECT_EQ(merged->config["tie_word_embeddings"], tied);
    if (!tied) {
      EXPECT_EQ(merged->tensors.at(kHead).values, model.tensors.at(kHead).values);
    }
  }
}

TEST_F(MergeTest, TrainedTokenRowsMustFit) {
  TinyAdapter adapter = MakeAdapter(testing::Tq2(), 4, 8, {"q_proj"});
  adapter.tensors[kPrefix + "model.embed_tokens.token_adapter.trainable_tokens_delta"] =
      Generated({2, 32}, 8);
  adapter.config["trainable_token_indices"] = {60, 64};
  EXPECT_THAT(MergeTiny(testing::Tq2(), adapter),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("got 64")));
  adapter.config["trainable_token_indices"] = {60};
  EXPECT_THAT(MergeTiny(testing::Tq2(), adapter),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("trainable_token_indices")));
}

// L12: a prefix that the base does not have, both ways.
TEST_F(MergeTest, L12KeysThatMatchNothingFail) {
  const auto with_prefix = [](const TinyTensors& tensors, const std::string& from,
                              const std::string& to) {
    TinyTensors out;
    for (const auto& [name, tensor] : tensors) {
      const size_t at = name.find(from);
      out[at == std::string::npos ? name
                                  : name.substr(0, at) + to + name.substr(at + from.size())] =
          tensor;
    }
    return out;
  };
  const std::string plain = "model.layers.", nested = "model.language_model.layers.";
  const TinyModel model = testing::Tq2();
  const TinyAdapter adapter = MakeAdapter(model, 4, 8, {"q_proj"});
  TinyModel nested_model = model;
  nested_model.tensors = with_prefix(model.tensors, plain, nested);
  TinyAdapter nested_adapter = adapter;
  nested_adapter.tensors = with_prefix(adapter.tensors, plain, nested);

  for (const bool nested_base : {false, true}) {
    const TinyModel& base = nested_base ? nested_model : model;
    const TinyAdapter& keys = nested_base ? adapter : nested_adapter;
    const std::string from = nested_base ? "model." : "model.language_model.";
    const std::string to = nested_base ? "model.language_model." : "model.";
    MergeOptions options;
    options.allow_partial = true;  // nothing at all is never good
    const auto merged = MergeTiny(base, keys, options);
    ASSERT_THAT(merged, IsOk());
    EXPECT_EQ(merged->report.matched, 0);
    EXPECT_EQ(merged->report.adapter_tensors, 4);
    EXPECT_THAT(merged->report.failures, Contains(HasSubstr("matched 0 of 4")));
    EXPECT_TRUE(merged->report.identity);
    EXPECT_THAT(matched_->SuggestedRename(), ElementsAre(Pair(from, to)));

    MatchOptions match;
    match.rename = matched_->SuggestedRename();
    const auto renamed = MergeTiny(base, keys, {}, match);
    ASSERT_THAT(renamed, IsOk());
    EXPECT_THAT(renamed->report.failures, IsEmpty());
    EXPECT_EQ(renamed->report.matched, 4);
  }
}

TEST_F(MergeTest, L12APartFailsUnlessAllowed) {
  const TinyModel model = testing::Tq2();
  TinyAdapter adapter = MakeAdapter(model, 4, 8, {"q_proj"});
  auto moved = adapter.tensors.extract(kPrefix + "model.layers.1.self_attn.q_proj.lora_A.weight");
  moved.key() = kPrefix + "score.lora_A.weight";
  adapter.tensors.insert(std::move(moved));
  moved = adapter.tensors.extract(kPrefix + "model.layers.1.self_attn.q_proj.lora_B.weight");
  moved.key() = kPrefix + "score.lora_B.weight";
  adapter.tensors.insert(std::move(moved));
  const auto merged = MergeTiny(model, adapter);
  ASSERT_THAT(merged, IsOk());
  EXPECT_THAT(merged->report.failures, ElementsAre(HasSubstr("matched 2 of 4")));
  EXPECT_EQ(merged->report.unmatched.size(), 2u);
  MergeOptions options;
  options.allow_partial = true;
  const auto allowed = MergeTiny(model, adapter, options);
  ASSERT_THAT(allowed, IsOk());
  EXPECT_THAT(allowed->report.failures, IsEmpty());
  EXPECT_THAT(allowed->report.warnings, Contains(HasSubstr("matched 2 of 4")));
}

// L13: four spellings, one merge.
TEST_F(MergeTest, L13AdapterNamesInKeysDoNotMatter) {
  const TinyModel model = testing::Tq2();
  TinyAdapter adapter = MakeAdapter(model, 4, 8, {"q_proj"});
  adapter.config["modules_to_save"] = {"lm_head"};
  adapter.tensors[kPrefix + kHead] = Generated({64, 32}, 6);
  const auto expected = MergeTiny(model, adapter);
  ASSERT_THAT(expected, IsOk());
  struct Spelling {
    const char* prefix;
    const char* name;
    const char* head;
  };
  for (const Spelling& spelling :
       {Spelling{"base_model.model.", ".default", "lm_head.modules_to_save.default.weight"},
        Spelling{"base_model.model.", ".lora", "lm_head.modules_to_save.lora.weight"},
        Spelling{"base_model.model.", "", "lm_head.modules_to_save.weight"},
        Spelling{"", "", "lm_head.weight"}}) {
    TinyAdapter spelled = adapter;
    spelled.tensors.clear();
    for (const auto& [key, tensor] : adapter.tensors) {
      const std::string path = key.substr(kPrefix.size());
      const size_t at = path.rfind(".weight");
      spelled.tensors[spelling.prefix +
                      (path == kHead ? std::string(spelling.head)
                                     : path.substr(0, at) + spelling.name + ".weight")] = tensor;
    }
    const auto merged = MergeTiny(model, spelled);
    ASSERT_THAT(merged, IsOk());
    EXPECT_THAT(merged->report.failures, IsEmpty());
    for (const auto& [name, tensor] : expected->tensors) {
      EXPECT_EQ(merged->tensors.at(name).values, tensor.values) << name;
    }
  }
}

// L07: both spellings of a saved bias load into the base's.
TEST_F(MergeTest, L07BothSpellingsOfABias) {
  const TinyModel model = testing::Tq2();
  for (const char* spelling : {".bias", ".base_layer.bias"}) {
    TinyAdapter adapter = MakeAdapter(model, 4, 8, {"q_proj"});
    adapter.config["bias"] = "lora_only";
    const TinyTensor bias = Generated({32}, 8);
    adapter.tensors[kPrefix + "model.layers.0.self_attn.q_proj" + spelling] = bias;
    const auto merged = MergeTiny(model, adapter);
    ASSERT_THAT(merged, IsOk());
    EXPECT_THAT(merged->report.failures, IsEmpty());
    EXPECT_EQ(merged->tensors.at("model.layers.0.self_attn.q_proj.bias").values, bias.values);
  }
}

TEST_F(MergeTest, LoraBiasIsScaledAndAdded) {
  const TinyModel model = testing::Tq2();
  TinyAdapter adapter = MakeAdapter(model, 4, 8, {"q_proj"});
  adapter.config["lora_bias"] = true;
  const TinyTensor bias = Generated({32}, 8);
  for (const char* layer : {"0", "1"}) {
    adapter.tensors[kPrefix + "model.layers." + layer + ".self_attn.q_proj.lora_B.bias"] = bias;
  }
  const auto merged = MergeTiny(model, adapter);
  ASSERT_THAT(merged, IsOk());
  EXPECT_EQ(merged->report.matched, 6);
  const std::string name = "model.layers.1.self_attn.q_proj.bias";
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_FLOAT_EQ(merged->tensors.at(name).values[i],
                    model.tensors.at(name).values[i] + 2 * bias.values[i]);
  }
}

TEST_F(MergeTest, NewBiasesNeedAFieldOfTheArchitecture) {
  TinyAdapter adapter = MakeAdapter(testing::Tl3(), 4, 8, {"q_proj"});
  adapter.config["lora_bias"] = true;
  const TinyTensor bias = Generated({32}, 8);
  adapter.tensors[kPrefix + "model.layers.0.self_attn.q_proj.lora_B.bias"] = bias;
  const auto merged = MergeTiny(testing::Tl3(), adapter);
  ASSERT_THAT(merged, IsOk());
  EXPECT_THAT(merged->report.failures, IsEmpty());
  EXPECT_EQ(merged->config["attention_bias"], true);
  EXPECT_EQ(merged->report.tensors_out, merged->report.tensors_in + 8);
  EXPECT_FLOAT_EQ(merged->tensors.at("model.layers.0.self_attn.q_proj.bias").values[3],
                  2 * bias.values[3]);
  EXPECT_EQ(merged->tensors.at("model.layers.1.self_attn.o_proj.bias").values,
            std::vector<float>(32, 0.0f));

  TinyModel mistral = testing::Tl3();
  mistral.config["model_type"] = "mistral";
  EXPECT_THAT(
      MergeTiny(mistral, adapter),
      StatusIs(StatusCode::kUnimplemented, AllOf(HasSubstr("q_proj.bias"), HasSubstr("mistral"))));
}

// Bases that no model has, but a file may.
TEST_F(MergeTest, OddEmbeddingsOfTheBaseDoNoHarm) {
  TinyAdapter adapter = MakeAdapter(testing::Tl3(), 4, 8, {"q_proj"});
  adapter.config["trainable_token_indices"] = {1, 2};
  adapter.tensors[kPrefix + "model.norm.token_adapter.trainable_tokens_delta"] =
      Generated({2, 32}, 8);
  EXPECT_THAT(MergeTiny(testing::Tl3(), adapter),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("trainable_token_indices")));
  for (const bool flat : {false, true}) {
    TinyModel model = testing::Tl3();
    model.config["tie_word_embeddings"] = true;
    if (flat) {
      model.tensors[kEmbed] = Generated({64}, 3);
    } else {
      model.tensors.erase(kEmbed);
    }
    const auto merged = MergeTiny(model, MakeAdapter(model, 4, 8, {"lm_head"}));
    ASSERT_THAT(merged, IsOk());
    EXPECT_THAT(merged->report.failures, IsEmpty());
    EXPECT_EQ(matched_->vocab_size(), -1);
  }
}

TEST_F(MergeTest, RefusesAnAdapterOfAnotherBase) {
  testing::TinySizes sizes;
  sizes.hidden = 48;
  TinyAdapter adapter = MakeAdapter(MakeModel(sizes), 4, 8, {"q_proj"});
  EXPECT_THAT(
      MergeTiny(testing::Tl3(), adapter),
      StatusIs(StatusCode::kInvalidArgument,
               AllOf(HasSubstr("[4, 48]"), HasSubstr("[32, 32]"), HasSubstr("another base"))));
}

TEST_F(MergeTest, WarnsOfTargetsWithoutTensors) {
  TinyAdapter adapter = MakeAdapter(testing::Tl3(), 4, 8, {"q_proj"});
  adapter.config["target_modules"] = "all-linear";
  const auto merged = MergeTiny(testing::Tl3(), adapter);
  ASSERT_THAT(merged, IsOk());
  EXPECT_THAT(merged->report.warnings, Contains(HasSubstr("12 modules are targets")));
  adapter.config["target_modules"] = {"k_proj"};
  const auto other = MergeTiny(testing::Tl3(), adapter);
  ASSERT_THAT(other, IsOk());
  EXPECT_THAT(other->report.warnings, Contains(HasSubstr("2 modules have tensors but are no")));
}

TEST(SuggestRenameTest, IgnoresEndingsThatProveNothing) {
  const std::vector<BaseTensor> base{{"model.layers.0.q.weight", {1}, "F32", ""},
                                     {"model.layers.1.q.weight", {1}, "F32", ""},
                                     {"lm_head.weight", {1}, "F32", ""}};
  EXPECT_THAT(SuggestRename({"x.q.weight"}, base), IsEmpty());
  EXPECT_THAT(SuggestRename({"thinker.layers.0.q.weight", "thinker.layers.1.q.weight",
                             "thinker.lm_head.weight"},
                            base),
              ElementsAre(Pair("thinker.", "model.")));
  EXPECT_THAT(SuggestRename({"layers.1.q.weight"}, base), ElementsAre(Pair("", "model.")));
}

}  // namespace
}  // namespace hexport::adapter
