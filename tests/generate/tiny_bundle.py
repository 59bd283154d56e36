#!/usr/bin/env python3
"""Writes tests/data/tiny_bundle: a one-layer llama of random weights as a bundle, and its logits by numpy.

Float model with symbolic dimensions (cpu/model.onnx), two static graphs with coded inputs and outputs
(qdq/*.onnx: uint16 mask, positions and logits, uint8 caches; float inside), tokenizer.json with 61 of the
64 rows, manifest.json, expected.json (37 ids, their logits [37, 64] computed without ONNX, in float64).
Rows 61..63 of the output layer are padding with the highest logits, which no answer may hold.

Written with onnx 1.23 and numpy 2; seed 11. Usage: tiny_bundle.py OUT_FOLDER
"""
import hashlib
import json
import pathlib
import sys

import numpy as np
from onnx import TensorProto as T
from onnx import helper as H
from onnx import numpy_helper as NH

HIDDEN, INTER, HEADS, KV, DIM, VOCAB, TOKENS, CL = 16, 24, 4, 2, 8, 64, 61, 64
EPS, THETA, FLOOR = 1e-5, 10000.0, -1000.0
SCALING = dict(factor=8.0, low=1.0, high=4.0, original=32)


def make_weights(rng):
    w = {"embed": rng.normal(0, 1, (VOCAB, HIDDEN)), "norm1": rng.uniform(0.5, 1.5, HIDDEN),
         "norm2": rng.uniform(0.5, 1.5, HIDDEN), "norm": rng.uniform(0.5, 1.5, HIDDEN)}
    for name, shape in dict(q=(HIDDEN, HEADS * DIM), k=(HIDDEN, KV * DIM), v=(HIDDEN, KV * DIM),
                            o=(HEADS * DIM, HIDDEN), gate=(HIDDEN, INTER), up=(HIDDEN, INTER),
                            down=(INTER, HIDDEN), head=(HIDDEN, VOCAB)).items():
        w[name] = rng.normal(0, 1.5 / np.sqrt(shape[0]), shape)
    w["head"][:, TOKENS:] *= 6  # padding that would win
    w["q"] /= np.sqrt(DIM)
    return {k: v.astype(np.float32) for k, v in w.items()}


def frequencies():
    """llama3 scaling of the RoPE frequencies, as transformers' _compute_llama3_parameters describes it."""
    out = []
    for i in range(DIM // 2):
        f = THETA ** (-2 * i / DIM)
        wave, s = 2 * np.pi / f, SCALING
        if wave > s["original"] / s["low"]:
            f /= s["factor"]
        elif wave >= s["original"] / s["high"]:
            mix = (s["original"] / wave - s["low"]) / (s["high"] - s["low"])
            f = (1 - mix) * f / s["factor"] + mix * f
        out.append(f)
    return np.array(out)


def reference(w, ids):
    """Plain causal attention over the whole text, no cache, no chunks."""
    w = {k: v.astype(np.float64) for k, v in w.items()}
    n = len(ids)
    norm = lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * g
    angle = np.arange(n)[:, None] * frequencies()[None]
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def rope(x):
        a, b = x[..., :DIM // 2], x[..., DIM // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    x = w["embed"][ids]
    h = norm(x, w["norm1"])
    q, k = rope((h @ w["q"]).reshape(n, HEADS, DIM)), rope((h @ w["k"]).reshape(n, KV, DIM))
    v = (h @ w["v"]).reshape(n, KV, DIM)
    rows = np.zeros((n, HEADS, DIM))
    for head in range(HEADS):
        of = head // (HEADS // KV)
        for t in range(n):
            s = k[:t + 1, of] @ q[t, head]
            p = np.exp(s - s.max())
            rows[t, head] = (p / p.sum()) @ v[:t + 1, of]
    x = x + rows.reshape(n, -1) @ w["o"]
    h = norm(x, w["norm2"])
    g = h @ w["gate"]
    x = x + (g / (1 + np.exp(-g)) * (h @ w["up"])) @ w["down"]
    keys, values = k, v
    return norm(x, w["norm"]) @ w["head"], max(np.abs(keys).max(), np.abs(values).max())


def decoder(w, ar, cl, encodings):
    """ar, cl: numbers, or symbols; encodings: name -> (scale, zero point, bits), for coded inputs and outputs."""
    nodes, inits, inputs, outputs = [], [NH.from_array(v, k) for k, v in w.items()], [], []
    symbolic = isinstance(ar, str)
    past = "past" if symbolic else cl - ar
    n = "?" if symbolic else ar

    def const(a, dtype=np.int64):
        name = f"c{len(inits)}"
        inits.append(NH.from_array(np.array(a, dtype), name))
        return name

    def op(kind, ins, name, outs=1, **attr):
        names = [name] if outs == 1 else [f"{name}_{i}" for i in range(outs)]
        nodes.append(H.make_node(kind, ins, names, name=name, **attr))
        return names[0] if outs == 1 else names

    def qparams(name):
        scale, zero, bits = encodings[name]
        return const(scale, np.float32), const(zero, np.uint8 if bits == 8 else np.uint16)

    def take(name, shape):
        if name not in encodings:
            inputs.append(H.make_tensor_value_info(name, T.FLOAT, shape))
            return name
        inputs.append(H.make_tensor_value_info(name, T.UINT8 if encodings[name][2] == 8 else T.UINT16, shape))
        return op("DequantizeLinear", [name, *qparams(name)], name + "_real")

    def give(value, name, shape):
        dtype = T.FLOAT if name not in encodings else T.UINT8 if encodings[name][2] == 8 else T.UINT16
        outputs.append(H.make_tensor_value_info(name, dtype, shape))
        if name in encodings:
            op("QuantizeLinear", [value, *qparams(name)], name)
            return op("DequantizeLinear", [name, *qparams(name)], name + "_real")
        return op("Identity", [value], name)

    inputs.append(H.make_tensor_value_info("input_ids", T.INT32, [1, ar]))
    mask = take("attention_mask", [1, 1, ar, cl])
    cos, sin = (take("position_ids_" + x, [1, 1, ar, DIM // 2]) for x in ("cos", "sin"))
    past_key, past_value = take("past_key_0_in", [KV, 1, DIM, past]), take("past_value_0_in", [KV, 1, past, DIM])

    def heads(x, count, name):  # [1, ar, count * DIM] -> [1, count, ar, DIM]
        x = op("Reshape", [x, const([1, -1, count, DIM])], name + "_split")
        return op("Transpose", [x], name + "_heads", perm=[0, 2, 1, 3])

    def rope(x, name):
        a, b = op("Split", [x], name + "_half", outs=2, axis=-1, num_outputs=2)
        mul = lambda p, q, tag: op("Mul", [p, q], name + tag)
        return op("Concat", [op("Sub", [mul(a, cos, "_ac"), mul(b, sin, "_bs")], name + "_left"),
                             op("Add", [mul(b, cos, "_bc"), mul(a, sin, "_as")], name + "_right")], name + "_rope", axis=-1)
    norm = lambda x, g, name: op("RMSNormalization", [x, g], name, axis=-1, epsilon=EPS)
    x = op("Gather", ["embed", "input_ids"], "x0", axis=0)
    h = norm(x, "norm1", "h1")
    q = rope(heads(op("MatMul", [h, "q"], "q_proj"), HEADS, "q"), "q")
    k = rope(heads(op("MatMul", [h, "k"], "k_proj"), KV, "k"), "k")
    v = heads(op("MatMul", [h, "v"], "v_proj"), KV, "v")
    k = give(op("Transpose", [k], "k_turned", perm=[1, 0, 3, 2]), "past_key_0_out", [KV, 1, DIM, ar])
    v = give(op("Transpose", [v], "v_turned", perm=[1, 0, 2, 3]), "past_value_0_out", [KV, 1, ar, DIM])
    k, v = op("Concat", [past_key, k], "keys", axis=3), op("Concat", [past_value, v], "values", axis=2)
    group = HEADS // KV  # query heads of one key head, [KV, group, ar, DIM]
    grouped = op("Reshape", [q, const([KV, group, -1, DIM])], "q_grouped")
    p = op("Softmax", [op("Add", [op("MatMul", [grouped, k], "scores"), mask], "masked")], "p", axis=-1)
    o = op("Reshape", [op("MatMul", [p, v], "mixed"), const([1, HEADS, -1, DIM])], "o_heads")
    o = op("Reshape", [op("Transpose", [o], "o_turned", perm=[0, 2, 1, 3]), const([1, -1, HEADS * DIM])], "o_rows")
    x = op("Add", [x, op("MatMul", [o, "o"], "o_proj")], "x1")
    h = norm(x, "norm2", "h2")
    g = op("MatMul", [h, "gate"], "gate_proj")
    g = op("Mul", [op("Mul", [g, op("Sigmoid", [g], "sigmoid")], "silu"), op("MatMul", [h, "up"], "up_proj")], "gated")
    x = op("Add", [x, op("MatMul", [g, "down"], "down_proj")], "x2")
    give(op("MatMul", [norm(x, "norm", "h3"), "head"], "lm_head"), "logits", [1, ar, VOCAB])
    outputs.insert(0, outputs.pop())
    graph = H.make_graph(nodes, f"decoder_{n}", inputs, outputs, inits)
    model = H.make_model(graph, opset_imports=[H.make_opsetid("", 23)], ir_version=10, producer_name="tiny_bundle.py")
    return model.SerializeToString(deterministic=True)


def describe(ar, encodings):
    def io(name, shape):
        scale, zero, bits = encodings.get(name, (0, 0, 0))
        dtype = "int32" if name == "input_ids" else "uint8" if bits == 8 else "uint16"
        return dict(name=name, dtype=dtype, shape=shape, scale=float(scale), zero_point=int(zero))
    ins = [io("input_ids", [1, ar]), io("attention_mask", [1, 1, ar, CL]),
           io("position_ids_cos", [1, 1, ar, DIM // 2]), io("position_ids_sin", [1, 1, ar, DIM // 2]),
           io("past_key_0_in", [KV, 1, DIM, CL - ar]), io("past_value_0_in", [KV, 1, CL - ar, DIM])]
    outs = [io("logits", [1, ar, VOCAB]), io("past_key_0_out", [KV, 1, DIM, ar]), io("past_value_0_out", [KV, 1, ar, DIM])]
    name = f"{'token' if ar == 1 else 'prompt'}_ar{ar}_cl{CL}_1_of_1"
    return dict(name=name, ar=ar, cl=CL, qdq_model=f"qdq/{name}.onnx", emulator_model="", emulator_binary="",
                inputs=ins, outputs=outs)


def main():
    out = pathlib.Path(sys.argv[1])
    for folder in ("cpu", "qdq"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(11)
    w = make_weights(rng)
    ids = rng.integers(0, TOKENS, 37)
    logits, largest = reference(w, ids)
    top = float(np.abs(logits).max()) * 1.5
    cache = (np.float32(largest * 1.5 / 127), 128, 8)
    encodings = {"attention_mask": (np.float32(-FLOOR / 65535), 65535, 16), "logits": (np.float32(top / 32767), 32768, 16)}
    for name in ("position_ids_cos", "position_ids_sin"):
        encodings[name] = (np.float32(1.0001 / 32767), 32768, 16)
    for name in ("past_key_0_in", "past_key_0_out", "past_value_0_in", "past_value_0_out"):
        encodings[name] = cache
    graphs = [describe(ar, encodings) for ar in (16, 1)]
    (out / "cpu/model.onnx").write_bytes(decoder(w, "ar", "cl", {}))
    for graph in graphs:
        (out / graph["qdq_model"]).write_bytes(decoder(w, graph["ar"], CL, encodings))
    vocabulary = {f"t{i}": i for i in range(TOKENS)}
    tokenizer = dict(version="1.0", truncation=None, padding=None, added_tokens=[], normalizer=None, pre_tokenizer=None,
                     post_processor=None, decoder=None, model=dict(type="WordLevel", vocab=vocabulary, unk_token="t0"))
    (out / "tokenizer.json").write_text(json.dumps(tokenizer) + "\n")
    (out / "expected.json").write_text(json.dumps(dict(ids=ids.tolist(), logits=[[round(x, 6) for x in r] for r in logits.tolist()])) + "\n")
    model = dict(architecture="LlamaForCausalLM", name="tiny", hidden_size=HIDDEN, intermediate_size=INTER,
                 num_hidden_layers=1, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=DIM, vocab_size=VOCAB,
                 max_position_embeddings=256, rms_norm_eps=EPS, rope_theta=THETA, rope_scaling="llama3",
                 rope_factor=SCALING["factor"], rope_low_freq_factor=SCALING["low"], rope_high_freq_factor=SCALING["high"],
                 rope_original_max_position_embeddings=SCALING["original"], bos_token_id=-1, eos_token_ids=[], bos_token="",
                 eos_token="")
    files = []
    for path in sorted(p for p in out.rglob("*") if p.is_file() and p.name != "manifest.json"):
        data = path.read_bytes()
        files.append(dict(path=path.relative_to(out).as_posix(), bytes=len(data), sha256=hashlib.sha256(data).hexdigest()))
    manifest = dict(schema_version=1, hexport_version="0.1.0", ort_version="", qnn_version="", build_key="", model=model,
                    source_path="tiny_bundle.py", source_sha256="", soc="sm8650", soc_model=57, htp_arch=75, weights="float32",
                    block_size=0, activation_bits=16, kv_bits=8, mask_floor=FLOOR, context_length=CL,
                    cpu_model="cpu/model.onnx", context_binaries=[], tokenizer="tokenizer.json", chat_template="",
                    genie_config="", backend_config="", calibration="", graphs=graphs, files=files)
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


main()
