#!/usr/bin/env python3
"""Makes tests/data/packed: GPTQ and AWQ folders of the tiny llama, and what float64 numpy reads in them.

Written from the formats' descriptions, without hexport's code. Made with numpy 2 and safetensors 0.8; the seed is fixed
below. Run from any folder:
    python3 tests/generate/packed_checkpoints.py
  gptq_v1, gptq_v2   4 bits, groups of 16 behind a shuffled g_idx, any zero point; stored minus one, and as it is
  gptq_8bit          8 bits, otherwise as gptq_v1
  awq                4 bits, groups of 16, any zero point
  gptq_lpbq          zero point 8, groups of 16, scales that are 1 to 16 times one of the channel
  gptq_int4, _int8   zero point 8 (128), one group
Each folder: config.json and model.safetensors, and expected.safetensors with the linears of layer 0 as F32 [out, in].
And fuzz/corpus/packed: a quantization_config, a zero byte, and a linear of 16 inputs and 8 outputs as safetensors.
"""
import json
import pathlib
import shutil

import numpy as np
from safetensors.numpy import load_file, save, save_file

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
SOURCE, OUT = DATA / "tiny" / "llama", DATA / "packed"
SEEDS = DATA.parent.parent / "fuzz" / "corpus" / "packed"
SEED, GROUP = 20261204, 16
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def pack(values, bits, order=None):
    """Integers packed along the last axis into int32, the lowest bits first."""
    per_word = 32 // bits
    order = order or range(per_word)
    words = np.zeros((*values.shape[:-1], values.shape[-1] // per_word), dtype=np.uint64)
    for place, column in enumerate(order):
        words |= values[..., column::per_word].astype(np.uint64) << np.uint64(bits * place)
    return words.astype(np.uint32).view(np.int32)


def quantize(weight, bits, group_of, groups, kind, random):
    """Codes [in, out], scales and zero points [groups, out] near `weight` [in, out]."""
    top = 2**bits - 1
    scales, zeros = [], []
    for group in range(groups):
        rows = weight[group_of == group]
        if kind == "any":
            scales.append((rows.max(axis=0) - rows.min(axis=0)) / top)
            zeros.append(np.rint(-rows.min(axis=0) / scales[-1]))
        else:
            scales.append(np.abs(rows).max(axis=0) / (top // 2))
            zeros.append(np.full(weight.shape[1], 2**(bits - 1)))
    scales, zeros = np.array(scales), np.clip(zeros, 0, top)
    if kind == "any":  # the ends of the range too
        zeros[0, :4] = [0, top, 1, top - 1]
    if kind == "lpbq":
        mantissa, exponent = np.frexp(scales.max(axis=0) / 16)
        channel = np.ldexp(np.rint(mantissa * 64) / 64, exponent)  # so that every multiple is a half
        scales = np.clip(np.rint(scales / channel), 1, 16) * channel
    scales = scales.astype(np.float16)
    wide = scales.astype(np.float64)
    codes = np.clip(np.rint(weight / wide[group_of]) + zeros[group_of], 0, top)
    if kind == "lpbq":
        codes[0, :] = random.integers(0, 16, weight.shape[1])
    return codes.astype(np.int64), scales, zeros.astype(np.int64)


def make(name, config, bits, kind, group_size, shuffled):
    random = np.random.default_rng([SEED, len(name), bits])
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    model = json.loads((SOURCE / "config.json").read_text())
    model["quantization_config"] = {"bits": bits, "group_size": group_size, **config}
    (folder / "config.json").write_text(json.dumps(model, indent=2) + "\n")
    tensors, expected = {}, {}
    for tensor, values in load_file(SOURCE / "model.safetensors").items():
        if "_proj." not in tensor:
            tensors[tensor] = values
            continue
        linear = tensor.removesuffix(".weight")
        weight = values.T.astype(np.float64)
        size = weight.shape[0] if group_size == -1 else group_size
        group_of = np.arange(weight.shape[0]) // size
        if shuffled:
            group_of = random.permutation(group_of)
        codes, scales, zeros = quantize(weight, bits, group_of, weight.shape[0] // size, kind, random)
        tensors[f"{linear}.scales"] = scales
        if config["quant_method"] == "awq":
            tensors[f"{linear}.qweight"] = pack(codes, bits, AWQ_ORDER)
            tensors[f"{linear}.qzeros"] = pack(zeros, bits, AWQ_ORDER)
        else:
            stored = zeros if config.get("checkpoint_format") == "gptq_v2" else (zeros - 1) % 2**bits
            tensors[f"{linear}.qweight"] = np.ascontiguousarray(pack(codes.T, bits).T)
            tensors[f"{linear}.qzeros"] = pack(stored, bits)
            tensors[f"{linear}.g_idx"] = group_of.astype(np.int32)
        if ".layers.0." in linear:
            real = (codes - zeros[group_of]) * scales.astype(np.float64)[group_of]
            expected[tensor] = np.ascontiguousarray(real.T.astype(np.float32))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    save_file(expected, folder / "expected.safetensors")


def write_seed(name, config, tensors):
    SEEDS.mkdir(parents=True, exist_ok=True)
    data = json.dumps({"group_size": 8, **config}).encode() + b"\0" + save(tensors)
    (SEEDS / name).write_bytes(data)


def write_seeds():
    scales = np.full((2, 8), 0.5, np.float16)
    for bits in (4, 8):
        codes = np.arange(128).reshape(8, 16) % 2**bits
        tensors = {"qweight": np.ascontiguousarray(pack(codes, bits).T), "scales": scales,
                   "qzeros": pack(np.full((2, 8), 7), bits), "g_idx": np.tile([1, 0], 8).astype(np.int32)}
        write_seed(f"gptq{bits}", {"quant_method": "gptq", "bits": bits, "desc_act": True}, tensors)
    del tensors["g_idx"]
    write_seed("gptq_v2", {"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"}, tensors)
    codes = np.arange(128).reshape(16, 8) % 16
    write_seed("awq", {"quant_method": "awq", "bits": 4, "version": "gemm"},
               {"qweight": pack(codes, 4, AWQ_ORDER), "qzeros": pack(np.full((2, 8), 8), 4), "scales": scales})


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    act_order = {"quant_method": "gptq", "desc_act": True, "sym": False}
    plain = {"quant_method": "gptq", "desc_act": False, "sym": True}
    make("gptq_v1", {**act_order, "checkpoint_format": "gptq"}, 4, "any", GROUP, True)
    make("gptq_v2", {**act_order, "checkpoint_format": "gptq_v2"}, 4, "any", GROUP, True)
    make("gptq_8bit", act_order, 8, "any", GROUP, True)
    make("awq", {"quant_method": "awq", "version": "gemm", "zero_point": True}, 4, "any", GROUP, False)
    make("gptq_lpbq", plain, 4, "lpbq", GROUP, False)
    make("gptq_int4", plain, 4, "symmetric", -1, False)
    make("gptq_int8", plain, 8, "symmetric", -1, False)
    write_seeds()


if __name__ == "__main__":
    main()
