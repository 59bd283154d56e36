#include "decoder/decoder.h"

#include <cmath>
#include <cstdint>
#include <set>
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
                          : options.ar * (c_.num_attention_heads / c_.num_key_value_heads)),
        windowed_(c_.WindowIsShorterThan(dynamic_ ? ContextOf(options) : options.cl)) {}

  // The masks and tables that layers [first, last) read.
  void StepInputs(int64_t first, int64_t last) {
    std::set<std::string> read;
    for (int64_t layer = first; layer < last; ++layer) {
      read.insert(MaskOf(layer));
      if (c_.UsesRope(layer)) read.insert(TableOf(layer, "cos"));
    }
    for (const char* mask : {"attention_mask", "sliding_attention_mask"}) {
      if (read.contains(mask)) b_.Input(mask, DType::kFloat32, {1, 1, ar_, cl_});
    }
    for (const std::string prefix : {"", "local_"}) {
      if (!read.contains(prefix + "position_ids_cos")) continue;
      const RopeParameters& rope = prefix.empty() ? c_.rope : *c_.local_rope;
      for (const char* wave : {"cos", "sin"}) {
        b_.Input(prefix + "position_ids_" + wave, DType::kFloat32,
                 {1, 1, ar_, rope.rotary_dim / 2});
      }
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
    const std::string normed = LayerNorm(layer, "input_layernorm", input);
    std::string branch = Attention(layer, normed);
    if (c_.branch_norms) branch = LayerNorm(layer, "post_attention_layernorm", branch);
    const std::string attended =
        b_.Emit("Add", {input, branch}, Layer(layer) + "attn_residual", Hidden());
    branch = Mlp(
        layer,
        LayerNorm(layer, c_.branch_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm",
                  attended));
    if (c_.branch_norms) branch = LayerNorm(layer, "post_feedforward_layernorm", branch);
    b_.Emit("Add", {attended, branch}, output, Hidden(), {}, full_name);
  }

  Dims Hidden() const { return {1, ar_, c_.hidden_size}; }
  const Dim& ar() const { return ar_; }

 private:
  static std::string KeyName(int64_t layer) { return "past_key_" + std::to_string(layer); }
  static std::string ValueName(int64_t layer) { return "past_value_" + std::to_string(layer); }
  int64_t Fixed(const Dim& dim, int64_t otherwise) const { return dynamic_ ? otherwise : dim.size; }

  static int64_t ContextOf(const DecoderOptions& options) {
    return options.context_length > 0 ? options.context_length : INT64_MAX;
  }
  std::string MaskOf(int64_t layer) const {
    return windowed_ && c_.IsSliding(layer) ? "sliding_attention_mask" : "attention_mask";
  }
  std::string TableOf(int64_t layer, const std::string& wave) const {
    const bool local = c_.local_rope.has_value() && c_.IsSliding(layer);
    return (local ? "local_position_ids_" : "position_ids_") + wave;
  }
  const RopeParameters& RopeOf(int64_t layer) const {
    return c_.local_rope.has_value() && c_.IsSliding(layer) ? *c_.local_rope : c_.rope;
  }

  std::string LayerNorm(int64_t layer, const std::string& part, const std::string& input) {
    const std::string name = Layer(layer) + part;
    return b_.Norm(input, name, "model." + name + ".weight", Hidden());
  }

  std::string Linear(int64_t layer, const std::string& part, const std::string& input, int64_t in,
                     int64_t out, bool bias, double scale = 1.0) {
    const std::string name = Layer(layer) + part;
    LinearWeight weight{
        name + ".weight", "model." + name + ".weight", in, out, scale, false, layer};
    return b_.Linear(input, name, weight, bias, ar_);
  }

  // A linear of hidden_size inputs, which fused checkpoints keep in rows [first_row, first_row +
  // out) of `fused` ([fused_rows, hidden_size]).
  struct Fused {
    const char* part;
    int64_t first_row, rows;
  };
  std::string Projection(int64_t layer, const std::string& part, const Fused& fused,
                         const std::string& input, int64_t out, bool bias, double scale = 1.0) {
    if (!c_.fused_projections) return Linear(layer, part, input, c_.hidden_size, out, bias, scale);
    const std::string name = Layer(layer) + part;
    LinearWeight weight;
    weight.name = name + ".weight";
    weight.tensor = "model." + Layer(layer) + fused.part + ".weight";
    weight.in_features = c_.hidden_size;
    weight.out_features = out;
    weight.scale = scale;
    weight.layer = layer;
    weight.first_row = fused.first_row;
    return b_.Linear(input, name, weight, /*bias=*/false, ar_, fused.rows);
  }
  std::string QueryKeyOrValue(int64_t layer, char which, const std::string& input, double scale) {
    const int64_t d = c_.head_dim, query = c_.num_attention_heads * d,
                  key = c_.num_key_value_heads * d;
    const Fused fused{"self_attn.qkv_proj",
                      which == 'q'   ? 0
                      : which == 'k' ? query
                                     : query + key,
                      query + 2 * key};
    return Projection(layer, std::string("self_attn.") + which + "_proj", fused, input,
                      which == 'q' ? query : key, c_.attention_bias, scale);
  }

  // [1,AR,heads*D] -> [1,heads,AR,D]
  std::string Heads(const std::string& input, const std::string& prefix, int64_t heads) {
    const std::string split =
        b_.Reshape(input, prefix + "split", {1, ar_, heads, c_.head_dim},
                   "heads_" + std::to_string(heads), {1, Fixed(ar_, -1), heads, c_.head_dim});
    return b_.Emit("Transpose", {split}, prefix + "heads", {1, heads, ar_, c_.head_dim},
                   {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  }

  // Split halves: (x0*cos - x1*sin, x1*cos + x0*sin); elements past rotary_dim stay.
  // arXiv:2104.09864.
  std::string Rope(int64_t layer, const std::string& input, const std::string& prefix,
                   int64_t heads) {
    const int64_t rotary = RopeOf(layer).rotary_dim, rest = c_.head_dim - rotary;
    const Dims whole = {1, heads, ar_, c_.head_dim}, half = {1, heads, ar_, rotary / 2};
    const std::string low = prefix + "low", high = prefix + "high", still = prefix + "still";
    if (rest == 0) {
      b_.SplitLast(input, {low, high}, {rotary / 2, rotary / 2}, whole);
    } else {
      b_.SplitLast(input, {low, high, still}, {rotary / 2, rotary / 2, rest}, whole);
    }
    const auto mul = [&](const std::string& part, const std::string& wave) {
      return b_.Emit("Mul", {part, TableOf(layer, wave)}, part + "_" + wave, half);
    };
    const std::string low_cos = mul(low, "cos"), high_sin = mul(high, "sin");
    const std::string first = b_.Emit("Sub", {low_cos, high_sin}, prefix + "rope_low", half);
    const std::string high_cos = mul(high, "cos"), low_sin = mul(low, "sin");
    const std::string second = b_.Emit("Add", {high_cos, low_sin}, prefix + "rope_high", half);
    std::vector<std::string> parts = {first, second};
    if (rest > 0) parts.push_back(still);
    return b_.Emit("Concat", parts, prefix + "rope", whole, {{"axis", int64_t{-1}}});
  }

  // Projection, heads, per-head norm (qk_norm) and RoPE of q or k. `scale` is folded into the last
  // weight.
  std::string Rotated(int64_t layer, char which, const std::string& input, int64_t heads,
                      double scale) {
    const std::string part = std::string("self_attn.") + which, prefix = Layer(layer) + part + "_";
    std::string x = QueryKeyOrValue(layer, which, input, c_.qk_norm ? 1.0 : scale);
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
    return c_.UsesRope(layer) ? Rope(layer, x, prefix, heads) : x;
  }

  // The new keys [H,1,D,AR] and values [H,1,AR,D] with those of the past before them.
  std::pair<std::string, std::string> Cache(int64_t layer, const std::string& input) {
    const std::string prefix = Layer(layer) + "self_attn.";
    const int64_t kv = c_.num_key_value_heads, d = c_.head_dim;
    const std::string k = Rotated(layer, 'k', input, kv, 1.0);
    const std::string v = Heads(QueryKeyOrValue(layer, 'v', input, 1.0), prefix + "v_", kv);
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
    const double scalar =
        c_.query_pre_attn_scalar > 0 ? c_.query_pre_attn_scalar : static_cast<double>(d);
    const std::string q = Rotated(layer, 'q', input, heads, 1.0 / std::sqrt(scalar));
    const auto [keys, values] = Cache(layer, input);
    const int64_t group_rows = Fixed(grouped_, -1), rows = Fixed(ar_, -1), columns = Fixed(cl_, 0);
    const std::string grouped = b_.Reshape(q, prefix + "q_grouped", {kv, 1, grouped_, d},
                                           "q_grouped", {kv, 1, group_rows, d});
    const std::string dots =
        b_.Emit("MatMul", {grouped, keys}, prefix + "scores_grouped", {kv, 1, grouped_, cl_});
    const Dims scores = {1, heads, ar_, cl_};
    std::string x =
        b_.Reshape(dots, prefix + "scores", scores, "scores", {1, heads, rows, columns});
    x = b_.Emit("Add", {x, MaskOf(layer)}, prefix + "masked_scores", scores);
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

  // Gated linear units (arXiv:2002.05202): down(act(gate(x)) * up(x)).
  std::string Mlp(int64_t layer, const std::string& input) {
    const std::string prefix = Layer(layer) + "mlp.";
    const int64_t wide = c_.intermediate_size;
    const Dims dims = {1, ar_, wide};
    const auto projection = [&](const char* part, int64_t first_row) {
      return Projection(layer, part, {"mlp.gate_up_proj", first_row, 2 * wide}, input, wide,
                        c_.mlp_bias);
    };
    const std::string gate = projection("mlp.gate_proj", 0);
    std::string active;
    if (c_.hidden_act == HiddenAct::kGeluTanh) {
      active =
          b_.Emit("Gelu", {gate}, prefix + "gelu", dims, {{"approximate", std::string("tanh")}});
    } else {
      const std::string sigmoid = b_.Emit("Sigmoid", {gate}, prefix + "gate_sigmoid", dims);
      active = b_.Emit("Mul", {gate, sigmoid}, prefix + "silu", dims);
    }
    const std::string up = projection("mlp.up_proj", wide);
    const std::string gated = b_.Emit("Mul", {active, up}, prefix + "gated", dims);
    return Linear(layer, "mlp.down_proj", gated, wide, c_.hidden_size, c_.mlp_bias);
  }

  Builder& b_;
  const ModelConfig& c_;
  const bool dynamic_;
  const Dim ar_, cl_, past_, grouped_;
  const bool windowed_;  // some window is shorter than the context
};

// Final norm and lm_head; a tied model's head is the embedding, transposed.
void AddHead(Builder& builder, const Checkpoint& checkpoint, const std::string& input,
             const LayerBuilder& layers, bool share_embedding) {
  const ModelConfig& config = builder.config();
  const bool own = !config.tie_word_embeddings && checkpoint.Find("lm_head.weight") != nullptr;
  const std::string normed = builder.Norm(input, "norm", "model.norm.weight", layers.Hidden());
  if (share_embedding && !own) {
    builder.TiedHead(normed, "logits", layers.ar());
    return;
  }
  LinearWeight weight{"lm_head.weight",
                      own ? "lm_head.weight" : "model.embed_tokens.weight",
                      config.hidden_size,
                      config.vocab_size,
                      1.0,
                      true,
                      -1,
                      0};
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
  layers.StepInputs(first, last);
  for (int64_t layer = first; layer < last; ++layer) layers.CacheInputs(layer);

  if (options.embedding)
    builder.Embedding(residual(first), layers.ar(), ResidualName(config, first));
  for (int64_t layer = first; layer < last; ++layer) {
    layers.Add(layer, residual(layer), residual(layer + 1), ResidualName(config, layer + 1));
  }
  if (options.head) {
    AddHead(builder, checkpoint, residual(last), layers,
            options.share_tied_embedding && options.embedding);
  }

  builder.Output(options.head ? "logits" : "hidden_out");
  for (int64_t layer = first; layer < last; ++layer) layers.CacheOutputs(layer);
  return builder.Finish("decoder");
}

}  // namespace hexport::decoder
