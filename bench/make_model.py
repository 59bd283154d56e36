#!/usr/bin/env python3
"""Writes a checkpoint with the shapes of Qwen2.5-0.5B, random bf16 weights, and a LoRA adapter for it.

    bench/make_model.py FOLDER [--rank 16]

FOLDER/base holds config.json and model.safetensors (about 1 GB), FOLDER/adapter what PEFT would save for
target_modules "all-linear", in float32. Python's standard library alone; the bytes depend on the seed only.
"""
import argparse
import json
import pathlib
import random
import struct

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, VOCAB = 24, 896, 4864, 14, 2, 151936
CONFIG = dict(
    architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=HIDDEN, intermediate_size=INTERMEDIATE,
    num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, vocab_size=VOCAB,
    max_position_embeddings=32768, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=1000000.0,
    tie_word_embeddings=True, use_sliding_window=False, bos_token_id=151643, eos_token_id=151645,
    torch_dtype="bfloat16")
KV = HIDDEN // HEADS * KV_HEADS
# Rows and columns, as in nn.Linear.
LINEARS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV, HIDDEN), "self_attn.v_proj": (KV, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
    "mlp.up_proj": (INTERMEDIATE, HIDDEN), "mlp.down_proj": (HIDDEN, INTERMEDIATE)}
# The upper byte of a bf16 or float32 is the sign and seven bits of the exponent: +-2^-8 to +-2^-4.
UPPER = bytes((0x3B, 0x3C, 0xBB, 0xBC)[value % 4] for value in range(256))
CHUNK = 1 << 20


def base_tensors():
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (HIDDEN,)
        yield prefix + "post_attention_layernorm.weight", (HIDDEN,)
        for name, shape in LINEARS.items():
            yield f"{prefix}{name}.weight", shape
            if name[-6:] in ("q_proj", "k_proj", "v_proj"):
                yield f"{prefix}{name}.bias", shape[:1]
    yield "model.norm.weight", (HIDDEN,)


def adapter_tensors(rank):
    for layer in range(LAYERS):
        for name, (rows, columns) in LINEARS.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}."
            yield prefix + "lora_A.weight", (rank, columns)
            yield prefix + "lora_B.weight", (rows, rank)


def count(shape):
    product = 1
    for size in shape:
        product *= size
    return product


def write(path, tensors, dtype, width, seed):
    """Random finite values of `width` bytes, none larger than 2^-4 in size."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        end = offset + width * count(shape)
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[offset, end])
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = random.Random(seed)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        values = offset // width
        while values:
            some = min(values, CHUNK)
            data = bytearray(generator.randbytes(some * width))
            data[width - 1::width] = data[width - 1::width].translate(UPPER)
            file.write(data)
            values -= some


def adapter_config(rank):
    return dict(peft_type="LORA", task_type="CAUSAL_LM", base_model_name_or_path="base", r=rank,
                lora_alpha=2 * rank, lora_dropout=0.0, bias="none", inference_mode=True,
                init_lora_weights=True, target_modules=[name.split(".")[1] for name in LINEARS])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rank", type=int, default=16)
    arguments = parser.parse_args()
    for name in ("base", "adapter"):
        (arguments.folder / name).mkdir(parents=True, exist_ok=True)
    base, adapter = arguments.folder / "base", arguments.folder / "adapter"
    (base / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    write(base / "model.safetensors", list(base_tensors()), "BF16", 2, 1)
    (adapter / "adapter_config.json").write_text(json.dumps(adapter_config(arguments.rank), indent=2) + "\n")
    write(adapter / "adapter_model.safetensors", list(adapter_tensors(arguments.rank)), "F32", 4, 2)


if __name__ == "__main__":
    main()
