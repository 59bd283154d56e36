#include "decoder/decoder.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "decoder/builder.h"

namespace hexport::decoder {
namespace {

std::string Layer(int64_t layer) { return "layers." + std::to_string(layer) + "."; }

Status CheckOptions(const ModelConfig& config, const DecoderOptions& options, int64_t last) {
  const bool dynamic = options.ar == kDynamicDim && options.cl == kDynamicDim;
  if (!dynamic && (options.ar < 1 || options.cl <= options.ar)) {
    return InvalidArgument("decoder: expected 0 < ar < cl, or both dynamic, got ar " +
                           std::to_string(options.ar) + " and cl " + std::to_string(options.cl));
  }
  const int64_t first = options.first_layer;
  const std::string range = "[" + std::to_string(first) + ", " + std::to_string(last) + ")";
  if (first < 0 || first > last || last > config.num_hidden_layers) {
    return InvalidArgument("decoder: expected a layer range within [0, " +
                           std::to_string(config.num_hidden_layers) + "), got " + range);
  }
  if ((options.embedding && first != 0) || (options.head && last != config.num_hidden_layers)) {
    return InvalidArgument(
        "decoder: the embedding needs the first layer and the head the last of " +
        std::to_string(config.num_hidden_layers) + ", got layers " + range +
        "; turn embedding or head off");
  }
  if (first == last && !options.embedding && !options.head) {
    return InvalidArgument(
        "decoder: expected at least one layer, the embedding or the head, got none");
  }
  return OkStatus();
}

// Adds one layer after the other. Reshape targets of dynamic graphs: -1 is the one free dimension,
// 0 copies CL, which is never empty.
class LayerBuilder {
 public:
  LayerBuilder(Builder& builder, const DecoderOptions& options)
      : b_(builder),
        c_(builder.config()),
        dynamic_(options.ar == kDynamicDim),
        ar_(options.ar, "ar"),
        cl_(options.cl, "cl"),
        past_(dynamic_ ? kDynamicDim : options.cl - options.ar, "past"),
        grouped_(dynamic_ ? kDynamicDim
                          : options.ar * (c_.num_attention_heads / c_.num_key_value_heads)) {}

  void StepInputs() {
    b_.Input("attention_mask", DType::kFloat32, {1, 1, ar_, cl_});
    for (const char* name : {"position_ids_cos", "position_ids_sin"}) {
      b_.Input(name, DType::kFloat32, {1, 1, ar_, c_.head_dim / 2});
    }
  }

  void CacheInputs(int64_t layer) {
    b_.Input(KeyName(layer) + "_in", DType::kFloat32,
             {c_.num_key_value_heads, 1, c_.head_dim, past_});
    b_.Input(ValueName(layer) + "_in", DType::kFloat32,
             {c_.num_key_value_heads, 1, past_, c_.head_dim});
  }

  void CacheOutputs(int64_t layer) {
    b_.Output(KeyName(layer) + "_out");
    b_.Output(ValueName(layer) + "_out");
  }

  // Adds the layer after `input`; its result is named `output`, or `full_name` in the full graph.
  void Add(int64_t layer, const std::string& input, const std::string& output,
           const std::string& full_name) {
    const std::string prefix = Layer(layer), tensors = "model." + prefix;
    const std::string normed =
        b_.Norm(input, prefix + "input_layernorm", tensors + "input_layernorm.weight", Hidden());
    const std::string attended =
        b_.Emit("Add", {input, Attention(layer, normed)}, prefix + "attn_residual", Hidden());
    const std::string again = b_.Norm(attended, prefix + "post_attention_layernorm",
                                      tensors + "post_attention_layernorm.weight", Hidden());
    b_.Emit("Add", {attended, Mlp(layer, again)}, output, Hidden(), {}, full_name);
  }

  Dims Hidden() const { return {1, ar_, c_.hidden_size}; }
  const Dim& ar() const { return ar_; }

 private:
  static std::string KeyName(int64_t layer) { return "past_key_" + std::to_string(layer); }
  static std::string ValueName(int64_t layer) { return "past_value_" + std::to_string(layer); }
  int64_t Fixed(const Dim& dim, int64_t otherwise) const { return dynamic_ ? otherwise : dim.size; }

  std::string Linear(int64_t layer, const std::string& part, const std::string& input, int64_t in,
                     int64_t out, bool bias, double scale = 1.0) {
    const std::string name = Layer(layer) + part;
    LinearWeight weight{
        name + ".weight", "model." + name + ".weight", in, out, scale, false, layer};
    return b_.Linear(input, name, weight, bias, ar_);
  }

  // [1,AR,heads*D] -> [1,heads,AR,D]
  std::string Heads(const std::string& input, const std::string& prefix, int64_t heads) {
    const std::string split =
        b_.Reshape(input, prefix + "split", {1, ar_, heads, c_.head_dim},
                   "heads_" + std::to_string(heads), {1, Fixed(ar_, -1), heads, c_.head_dim});
    return b_.Emit("Transpose", {split}, prefix + "heads", {1, heads, ar_, c_.head_dim},
                   {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  }

  // Split halves: (x0*cos - x1*sin, x1*cos + x0*sin). arXiv:2104.09864.
  std::string Rope(const std::string& input, const std::string& prefix, int64_t heads) {
    const Dims whole = {1, heads, ar_, c_.head_dim}, half = {1, heads, ar_, c_.head_dim / 2};
    const std::string low = prefix + "low", high = prefix + "high";
    b_.Halve(input, low, high, whole);
    const auto mul = [&](const std::string& part, const std::string& wave) {
      return b_.Emit("Mul", {part, "position_ids_" + wave}, part + "_" + wave, half);
    };
    const std::string low_cos = mul(low, "cos"), high_sin = mul(high, "sin");
    const std::string first = b_.Emit("Sub", {low_cos, high_sin}, prefix + "rope_low", half);
    const std::string high_cos = mul(high, "cos"), low_sin = mul(low, "sin");
    const std::string second = b_.Emit("Add", {high_cos, low_sin}, prefix + "rope_high", half);
    return b_.Emit("Concat", {first, second}, prefix + "rope", whole, {{"axis", int64_t{-1}}});
  }

  // Projection, heads, per-head norm (qk_norm) and RoPE of q or k. `scale` is folded into the last
  // weight.
  std::string Rotated(int64_t layer, char which, const std::string& input, int64_t heads,
                      double scale) {
    const std::string part = std::string("self_attn.") + which, prefix = Layer(layer) + part + "_";
    std::string x = Linear(layer, part + "_proj", input, c_.hidden_size, heads * c_.head_dim,
                           c_.attention_bias, c_.qk_norm ? 1.0 : scale);
    if (c_.qk_norm) {
      // Rank 3: QAIRT 2.51 computes RmsNorm of a transposed rank-4 tensor wrongly from 8 rows on
      // (tests/decoder_golden_test.cc checks the values, tests/emulator_suite.py the emulator).
      const bool dynamic = ar_.size == kDynamicDim;
      const Dim rows =
          dynamic ? Dim(kDynamicDim, std::string("ar_") + which + "_heads") : Dim(ar_.size * heads);
      const Dims dims = {1, rows, c_.head_dim};
      x = b_.Reshape(x, prefix + "rows", dims, prefix + "rows",
                     {1, dynamic ? -1 : ar_.size * heads, c_.head_dim});
      x = b_.Norm(x, prefix + "norm", "model." + prefix + "norm.weight", dims, scale);
    }
    x = Heads(x, prefix, heads);
    return Rope(x, prefix, heads);
  }

  // The new keys [H,1,D,AR] and values [H,1,AR,D] with those of the past before them.
  std::pair<std::string, std::string> Cache(int64_t layer, const std::string& input) {
    const std::string prefix = Layer(layer) + "self_attn.";
    const int64_t kv = c_.num_key_value_heads, d = c_.head_dim;
    const std::string k = Rotated(layer, 'k', input, kv, 1.0);
    const std::string v =
        Heads(Linear(layer, "self_attn.v_proj", input, c_.hidden_size, kv * d, c_.attention_bias),
              prefix + "v_", kv);
    const std::string k_turned = b_.Emit("Transpose", {k}, prefix + "k_cache", {kv, 1, d, ar_},
                                         {{"perm", std::vector<int64_t>{1, 0, 3, 2}}});
    const std::string v_turned = b_.Emit("Transpose", {v}, prefix + "v_cache", {kv, 1, ar_, d},
                                         {{"perm", std::vector<int64_t>{1, 0, 2, 3}}});
    const std::string key = KeyName(layer), value = ValueName(layer);
    b_.Emit("Identity", {k_turned}, key + "_out", {kv, 1, d, ar_});
    b_.Emit("Identity", {v_turned}, value + "_out", {kv, 1, ar_, d});
    return {b_.Emit("Concat", {key + "_in", key + "_out"}, prefix + "keys", {kv, 1, d, cl_},
                    {{"axis", int64_t{3}}}),
            b_.Emit("Concat", {value + "_in", value + "_out"}, prefix + "values", {kv, 1, cl_, d},
                    {{"axis", int64_t{2}}})};
  }

  // Grouped-query attention (arXiv:2305.13245): the heads that share a key are stacked along the
  // rows.
  std::string Attention(int64_t layer, const std::string& input) {
    const std::string prefix = Layer(layer) + "self_attn.";
    const int64_t heads = c_.num_attention_heads, kv = c_.num_key_value_heads, d = c_.head_dim;
    const std::string q =
        Rotated(layer, 'q', input, heads, 1.0 / std::sqrt(static_cast<double>(d)));
    const auto [keys, values] = Cache(layer, input);
    const int64_t group_rows = Fixed(grouped_, -1), rows = Fixed(ar_, -1), columns = Fixed(cl_, 0);
    const std::string grouped = b_.Reshape(q, prefix + "q_grouped", {kv, 1, grouped_, d},
                                           "q_grouped", {kv, 1, group_rows, d});
    const std::string dots =
        b_.Emit("MatMul", {grouped, keys}, prefix + "scores_grouped", {kv, 1, grouped_, cl_});
    const Dims scores = {1, heads, ar_, cl_};
    std::string x =
        b_.Reshape(dots, prefix + "scores", scores, "scores", {1, heads, rows, columns});
    x = b_.Emit("Add", {x, "attention_mask"}, prefix + "masked_scores", scores);
    x = b_.Emit("Softmax", {x}, prefix + "probs", scores, {{"axis", int64_t{-1}}});
    x = b_.Reshape(x, prefix + "probs_grouped", {kv, 1, grouped_, cl_}, "probs_grouped",
                   {kv, 1, group_rows, columns});
    x = b_.Emit("MatMul", {x, values}, prefix + "context_grouped", {kv, 1, grouped_, d});
    x = b_.Reshape(x, prefix + "context_heads", {1, heads, ar_, d}, "context_heads",
                   {1, heads, rows, d});
    x = b_.Emit("Transpose", {x}, prefix + "context_split", {1, ar_, heads, d},
                {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
    x = b_.Reshape(x, prefix + "context", {1, ar_, heads * d}, "context", {1, rows, heads * d});
    return Linear(layer, "self_attn.o_proj", x, heads * d, c_.hidden_size,
                  c_.attention_output_bias);
  }

  // SwiGLU (arXiv:2002.05202): down(silu(gate(x)) * up(x)).
  std::string Mlp(int64_t layer, const std::string& input) {
    const std::string prefix = Layer(layer) + "mlp.";
    const int64_t wide = c_.intermediate_size;
    const Dims dims = {1, ar_, wide};
    const std::string gate =
        Linear(layer, "mlp.gate_proj", input, c_.hidden_size, wide, c_.mlp_bias);
    const std::string sigmoid = b_.Emit("Sigmoid", {gate}, prefix + "gate_sigmoid", dims);
    const std::string silu = b_.Emit("Mul", {gate, sigmoid}, prefix + "silu", dims);
    const std::string up = Linear(layer, "mlp.up_proj", input, c_.hidden_size, wide, c_.mlp_bias);
    const std::string gated = b_.Emit("Mul", {silu, up}, prefix + "gated", dims);
    return Linear(layer, "mlp.down_proj", gated, wide, c_.hidden_size, c_.mlp_bias);
  }

  Builder& b_;
  const ModelConfig& c_;
  const bool dynamic_;
  const Dim ar_, cl_, past_, grouped_;
};

// Final norm and lm_head; a tied model's head is the embedding, transposed.
void AddHead(Builder& builder, const Checkpoint& checkpoint, const std::string& input,
             const LayerBuilder& layers) {
  const ModelConfig& config = builder.config();
  const bool own = !config.tie_word_embeddings && checkpoint.Find("lm_head.weight") != nullptr;
  const std::string normed = builder.Norm(input, "norm", "model.norm.weight", layers.Hidden());
  LinearWeight weight{"lm_head.weight",
                      own ? "lm_head.weight" : "model.embed_tokens.weight",
                      config.hidden_size,
                      config.vocab_size,
                      1.0,
                      true,
                      -1};
  builder.Linear(normed, "logits", weight, false, layers.ar());
}

}  // namespace

std::string ResidualName(const ModelConfig& config, int64_t layer) {
  return layer >= config.num_hidden_layers ? "norm.input" : Layer(layer) + "input";
}

Result<DecoderGraph> BuildDecoder(const Checkpoint& checkpoint, const DecoderOptions& options) {
  const ModelConfig& config = checkpoint.config();
  const int64_t first = options.first_layer;
  const int64_t last = options.last_layer < 0 ? config.num_hidden_layers : options.last_layer;
  HEXPORT_RETURN_IF_ERROR(CheckOptions(config, options, last));
  Builder builder(checkpoint);
  LayerBuilder layers(builder, options);
  // What a residual is called in this graph: hidden_in and hidden_out at its edges.
  const auto residual = [&](int64_t layer) {
    if (layer == last && !options.head) return std::string("hidden_out");
    if (layer == first && !options.embedding) return std::string("hidden_in");
    return ResidualName(config, layer);
  };

  if (options.embedding) {
    builder.Input("input_ids", DType::kInt32, {1, layers.ar()});
  } else {
    builder.Input("hidden_in", DType::kFloat32, layers.Hidden(), ResidualName(config, first));
  }
  if (first < last) layers.StepInputs();
  for (int64_t layer = first; layer < last; ++layer) layers.CacheInputs(layer);

  if (options.embedding)
    builder.Embedding(residual(first), layers.ar(), ResidualName(config, first));
  for (int64_t layer = first; layer < last; ++layer) {
    layers.Add(layer, residual(layer), residual(layer + 1), ResidualName(config, layer + 1));
  }
  if (options.head) AddHead(builder, checkpoint, residual(last), layers);

  builder.Output(options.head ? "logits" : "hidden_out");
  for (int64_t layer = first; layer < last; ++layer) layers.CacheOutputs(layer);
  return builder.Finish("decoder");
}

}  // namespace hexport::decoder
