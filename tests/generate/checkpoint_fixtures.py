#!/usr/bin/env python3
"""Makes tests/data/checkpoint: GGUF files, a sharded folder and block goldens for src/checkpoint's tests.

Made with torch 2.15, transformers 5.24, safetensors 0.8, gguf 0.19 and numpy 2 (CPU); seeds are fixed
below. Needs tests/data/tiny (tests/generate/tiny_models.py). Run from any folder:
    python3 tests/generate/checkpoint_fixtures.py
  <name>.gguf                          the models of tests/data/tiny in float32; q and k rows of llama and smollm3 are
                                       interleaved as llama.cpp's converter does, gemma3's norms hold the 1 of its code
  llama_bias/ and llama_bias.gguf      a llama with attention and MLP biases and Llama 3 RoPE scaling
  qwen2_sharded/                       tests/data/tiny/qwen2 in bfloat16, two shards, tokenizer files
  blocks/<type>.bin, <type>.f32        eight blocks of each quantized type and their values by gguf-py
"""
import json
import math
import pathlib
import shutil

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tiny_models import COMMON, randomize

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
OUT = DATA / "checkpoint"
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down"}


OWN_NAMES = {
    "phi3": {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    "gemma3": {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm"}}
ARCHITECTURES = {"gemma3_text": "gemma3"}  # others are called as in config.json


def gguf_name(name, arch):
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
           "lm_head.weight": "output.weight"}
    if name in top:
        return top[name]
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{(LAYER_NAMES | OWN_NAMES.get(arch, {}))[part]}.{kind}"


def interleave(rows, heads):
    """[heads, 2 halves, head_dim / 2] -> [heads, head_dim / 2, 2]."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def rope_factors(config):
    rope = config["rope_parameters"]
    half = config["head_dim"] // 2
    frequency = rope["rope_theta"] ** -(np.arange(half) / half)
    turns = rope["original_max_position_embeddings"] * frequency / (2 * np.pi)
    smooth = np.clip((turns - rope["low_freq_factor"]) /
                     (rope["high_freq_factor"] - rope["low_freq_factor"]), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def add_rope(writer, arch, config):
    """Keys, and factors as tensors, as llama.cpp's converter writes them."""
    rope = config["rope_parameters"]
    full = rope.get("full_attention", rope)
    if full["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(full["factor"])
    if full["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(config))
    if arch == "phi3":
        original, longest = config["original_max_position_embeddings"], config["max_position_embeddings"]
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        writer.add_rope_dimension_count(int(head_dim * full["partial_rotary_factor"]))
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(longest / original) / math.log(original)))
        writer.add_sliding_window(config["sliding_window"] or 0)
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(full[f"{kind}_factor"], np.float32))
    if arch == "gemma3":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 2)


def write_gguf(folder, path):
    config = json.loads((folder / "config.json").read_text())
    arch = ARCHITECTURES.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(f"Tiny {arch}")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if arch in ("qwen3", "gemma3"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    writer.add_uint32("tokenizer.ggml.bos_token_id", 1)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        values = tensor.float().numpy()
        if arch in ("llama", "smollm3") and ".q_proj." in name:
            values = interleave(values, config["num_attention_heads"])
        if arch in ("llama", "smollm3") and ".k_proj." in name:
            values = interleave(values, config["num_key_value_heads"])
        if arch == "gemma3" and name.endswith("norm.weight"):
            values = values + 1
        writer.add_tensor(gguf_name(name, arch), np.ascontiguousarray(values))
    add_rope(writer, arch, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_llama_bias(folder):
    torch.manual_seed(4)
    config = LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                         rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0,
                                          "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                          "original_max_position_embeddings": 8192})
    model = LlamaForCausalLM(config).float()
    randomize(model, 4)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def write_sharded(source, folder):
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "config.json", folder)
    tensors = {name: tensor.to(torch.bfloat16)
               for name, tensor in sorted(load_file(source / "model.safetensors").items())}
    names = list(tensors)
    shards = [names[:len(names) // 2], names[len(names) // 2:]]
    weight_map = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in shard}, folder / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in shard})
    size = sum(tensor.numel() * 2 for tensor in tensors.values())
    files = {
        "model.safetensors.index.json": {"metadata": {"total_size": size}, "weight_map": weight_map},
        "generation_config.json": {"eos_token_id": [2, 3], "do_sample": True},
        "tokenizer.json": {"version": "1.0", "added_tokens": [
            {"id": 4, "content": "<|im_end|>", "special": True}],
            "model": {"type": "BPE", "vocab": {"a": 5}, "merges": []}},
        "tokenizer_config.json": {"bos_token": None, "eos_token": {"content": "<|im_end|>"},
                                  "add_bos_token": False,
                                  "chat_template": [{"name": "tool_use", "template": "tools"},
                                                    {"name": "default", "template": "{{ messages }}"}]},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def write_blocks(folder):
    """Random codes; scales are finite halves of ordinary size, so that no value is NaN."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(5)
    half_offsets = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
                    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
    for name, offsets in half_offsets.items():
        kind = gguf.GGMLQuantizationType[name]
        _, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (8, size), dtype=np.uint8)
        for offset in offsets:
            scale = rng.normal(0, 0.05, 8).astype(np.float16)
            blocks[:, offset:offset + 2] = scale.view(np.uint8).reshape(8, 2)
        values = gguf.quants.dequantize(blocks, kind).astype(np.float32)
        (folder / f"{name}.bin").write_bytes(blocks.tobytes())
        (folder / f"{name}.f32").write_bytes(values.tobytes())


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    write_llama_bias(OUT / "llama_bias")
    write_gguf(OUT / "llama_bias", OUT / "llama_bias.gguf")
    for name in ("llama", "qwen2", "qwen3", "phi3", "smollm3", "gemma3_text"):
        write_gguf(DATA / "tiny" / name, OUT / f"{name}.gguf")
    write_sharded(DATA / "tiny" / "qwen2", OUT / "qwen2_sharded")
    write_blocks(OUT / "blocks")


if __name__ == "__main__":
    main()
