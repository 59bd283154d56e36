// L17: LoRA files of llama.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "adapter/merge_fixture.h"
#include "checkpoint/gguf_builder.h"

namespace hexport::adapter {
namespace {

using checkpoint::testing::GgufBuilder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::MakeAdapter;
using testing::StatusIs;
using testing::TinyAdapter;
using testing::TinyModel;
using testing::TinyTensor;

const std::string kPrefix = "base_model.model.";

// Rows as llama.cpp's converter stores those of q and k: of each head, row i of the first half and
// row i of the second half side by side.
TinyTensor Interleaved(const TinyTensor& tensor, int64_t heads) {
  TinyTensor out = tensor;
  const int64_t head_dim = tensor.shape[0] / heads, columns = tensor.shape[1];
  for (int64_t row = 0; row < tensor.shape[0]; ++row) {
    const int64_t in_head = row % head_dim;
    const int64_t source = row - in_head + in_head / 2 + (in_head % 2) * (head_dim / 2);
    std::copy_n(tensor.values.begin() + source * columns, columns,
                out.values.begin() + row * columns);
  }
  return out;
}

GgufBuilder Header(const std::string& architecture, float alpha) {
  GgufBuilder builder;
  builder.String("general.type", "adapter")
      .String("adapter.type", "lora")
      .String("general.architecture", architecture)
      .Float32("adapter.lora.alpha", alpha);
  return builder;
}

void Add(GgufBuilder& builder, const std::string& name, const TinyTensor& tensor) {
  builder.Tensor(name,
                 {static_cast<uint64_t>(tensor.shape[1]), static_cast<uint64_t>(tensor.shape[0])},
                 0, testing::Encode(tensor));
}

class GgufAdapterTest : public MergeTest {
 protected:
  Result<Merged> MergeGguf(const TinyModel& model, const GgufBuilder& builder) {
    testing::WriteModel(Base(), model);
    testing::Spill(directory_ / "lora.gguf", builder.Build());
    HEXPORT_RETURN_IF_ERROR(Match({{directory_ / "lora.gguf", 1.0}}));
    return Merge();
  }
  Status Open(const GgufBuilder& builder) {
    testing::Spill(directory_ / "lora.gguf", builder.Build());
    return Adapter::Open(directory_ / "lora.gguf").status();
  }

  // The same adapter as GGUF; rows of q and k in GGUF's order when `interleave`.
  static GgufBuilder Convert(const TinyAdapter& adapter, const std::string& architecture,
                             float alpha, bool interleave) {
    GgufBuilder builder = Header(architecture, alpha);
    for (const auto& [short_name, module, heads] :
         {std::tuple{"attn_q", "self_attn.q_proj", 4}, std::tuple{"attn_k", "self_attn.k_proj", 2},
          std::tuple{"ffn_down", "mlp.down_proj", 0}}) {
      for (const char* layer : {"0", "1"}) {
        const std::string key = kPrefix + "model.layers." + layer + "." + module + ".lora_";
        const std::string name = std::string("blk.") + layer + "." + short_name + ".weight.lora_";
        TinyTensor b = adapter.tensors.at(key + "B.weight");
        if (interleave && heads != 0) b = Interleaved(b, heads);
        Add(builder, name + "a", adapter.tensors.at(key + "A.weight"));
        Add(builder, name + "b", b);
      }
    }
    return builder;
  }
};

void ExpectEqual(const Merged& merged, const Merged& expected) {
  for (const auto& [name, tensor] : expected.tensors) {
    EXPECT_EQ(merged.tensors.at(name).values, tensor.values) << name;
  }
}

TEST_F(GgufAdapterTest, L17LlamaRowsOfQAndKAreRestored) {
  const TinyModel model = testing::Tl3();
  const TinyAdapter adapter = MakeAdapter(model, 4, 8, {"q_proj", "k_proj", "down_proj"});
  const auto expected = MergeTiny(model, adapter);
  ASSERT_THAT(expected, IsOk());
  const auto merged = MergeGguf(model, Convert(adapter, "llama", 8, true));
  ASSERT_THAT(merged, IsOk());
  EXPECT_THAT(merged->report.failures, IsEmpty());
  EXPECT_EQ(merged->report.matched, 12);
  ExpectEqual(*merged, *expected);
}

TEST_F(GgufAdapterTest, L17Qwen2RowsStandAsTheyAre) {
  const TinyModel model = testing::Tq2();
  const TinyAdapter adapter = MakeAdapter(model, 4, 8, {"q_proj", "k_proj", "down_proj"});
  const auto expected = MergeTiny(model, adapter);
  ASSERT_THAT(expected, IsOk());
  const auto merged = MergeGguf(model, Convert(adapter, "qwen2", 8, false));
  ASSERT_THAT(merged, IsOk());
  ExpectEqual(*merged, *expected);
}

// The format keeps alpha only: alpha' = alpha sqrt(r) for rsLoRA; 0 means that B holds the scale.
TEST_F(GgufAdapterTest, L17AlphaIsDividedByTheRankOfTheTensors) {
  const TinyModel model = testing::Tl3();
  TinyAdapter adapter = MakeAdapter(model, 16, 16, {"q_proj", "k_proj", "down_proj"});
  adapter.config["use_rslora"] = true;
  const auto expected = MergeTiny(model, adapter);
  ASSERT_THAT(expected, IsOk());
  const auto merged = MergeGguf(model, Convert(adapter, "llama", 16 * 4, true));
  ASSERT_THAT(merged, IsOk());
  ExpectEqual(*merged, *expected);

  adapter.config["use_rslora"] = false;  // 16 / 16
  const auto plain = MergeTiny(model, adapter);
  ASSERT_THAT(plain, IsOk());
  const auto no_alpha = MergeGguf(model, Convert(adapter, "llama", 0, true));
  ASSERT_THAT(no_alpha, IsOk());
  ExpectEqual(*no_alpha, *plain);
}

// Of token_embd, llama.cpp stores A as [vocabulary, rank] and B as [width, rank].
TEST_F(GgufAdapterTest, L17Embedding) {
  const TinyModel model = testing::Tq2();
  testing::TinyTensors ab{{"a", {{64, 2}, {}, "F32"}}, {"b", {{32, 2}, {}, "F32"}}};
  testing::Fill(ab, 5);
  GgufBuilder builder = Header("qwen2", 2);
  Add(builder, "token_embd.weight.lora_a", ab["a"]);
  Add(builder, "token_embd.weight.lora_b", ab["b"]);
  const auto merged = MergeGguf(model, builder);
  ASSERT_THAT(merged, IsOk());
  EXPECT_THAT(merged->report.failures, IsEmpty());
  const auto& base = model.tensors.at("model.embed_tokens.weight").values;
  for (size_t row = 0; row < 64; ++row) {
    for (size_t column = 0; column < 32; ++column) {
      double delta = 0;
      for (size_t k = 0; k < 2; ++k) {
        delta += static_cast<double>(ab["a"].values[row * 2 + k]) *
                 static_cast<double>(ab["b"].values[column * 2 + k]);
      }
      EXPECT_NEAR(static_cast<double>(
                      merged->tensors.at("model.embed_tokens.weight").values[row * 32 + column]),
                  static_cast<double>(base[row * 32 + column]) + delta, 1e-6);
    }
  }
}

TEST_F(GgufAdapterTest, L17StrayTensorsAreRefusedClearly) {
  TinyTensor some{{1, 4}, {1, 1, 1, 1}, "F32"};
  GgufBuilder rope = Header("llama", 8);
  Add(rope, "rope_freqs.weight", some);
  EXPECT_THAT(Open(rope), StatusIs(StatusCode::kUnimplemented,
                                   AllOf(HasSubstr("rope_freqs.weight"), HasSubstr(".lora_a"))));
  GgufBuilder head = Header("llama", 8);
  Add(head, "output.weight", some);
  EXPECT_THAT(Open(head),
              StatusIs(StatusCode::kUnimplemented,
                       AllOf(HasSubstr("output.weight"), HasSubstr("modules_to_save"))));
}

TEST_F(GgufAdapterTest, L17RefusesWhatIsNoLora) {
  GgufBuilder model;
  model.String("general.architecture", "llama");
  EXPECT_THAT(Open(model), StatusIs(StatusCode::kInvalidArgument, HasSubstr("whole model")));
  GgufBuilder vector;
  vector.String("general.type", "adapter").String("adapter.type", "control");
  EXPECT_THAT(Open(vector), StatusIs(StatusCode::kUnimplemented, HasSubstr("control")));
  EXPECT_THAT(Open(Header("llama", 8)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("expected tensors")));
}

TEST_F(GgufAdapterTest, L17UnknownNamesMatchNothing) {
  GgufBuilder builder = Header("llama", 8);
  Add(builder, "blk.0.ffn_gate_inp.weight.lora_a", {{1, 4}, {1, 1, 1, 1}, "F32"});
  Add(builder, "blk.0.ffn_gate_inp.weight.lora_b", {{4, 1}, {1, 1, 1, 1}, "F32"});
  const auto merged = MergeGguf(testing::Tl3(), builder);
  ASSERT_THAT(merged, IsOk());
  EXPECT_THAT(merged->report.failures, ::testing::Contains(HasSubstr("matched 0 of 2")));
}

}  // namespace
}  // namespace hexport::adapter
