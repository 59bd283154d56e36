#!/usr/bin/env python3
"""Makes the seeds in fuzz/corpus/{gguf,safetensors,config}: small valid files of every kind.

Made with gguf 0.19, safetensors 0.8 and numpy 2; nothing is random. Run from any folder:
    python3 tests/generate/fuzz_seeds.py
"""
import json
import pathlib

import gguf
import numpy as np
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "fuzz" / "corpus"
HIDDEN = 32


def write_gguf(path, arch, pre):
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("seed")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["<s>", "a", "b", "ab", "</s>", "[PAD]"])
    writer.add_token_types([3, 1, 1, 1, 4, 5])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(4)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("token_embd.weight", np.ones((6, HIDDEN), np.float16))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    writer.add_tensor("rope_freqs.weight", np.ones(HIDDEN // 4, np.float32))
    for kind, name in ((gguf.GGMLQuantizationType.Q4_0, "attn_q"),
                       (gguf.GGMLQuantizationType.Q4_1, "attn_k"),
                       (gguf.GGMLQuantizationType.Q8_0, "attn_v")):
        values = gguf.quants.quantize(np.ones((2, HIDDEN), np.float32), kind)
        writer.add_tensor(f"blk.0.{name}.weight", values, raw_dtype=kind)
    for kind, name in ((gguf.GGMLQuantizationType.Q4_K, "ffn_up"),
                       (gguf.GGMLQuantizationType.Q5_K, "ffn_gate"),
                       (gguf.GGMLQuantizationType.Q6_K, "ffn_down")):
        size = gguf.GGML_QUANT_SIZES[kind][1]
        writer.add_tensor(f"blk.0.{name}.weight", np.full((1, size), 7, np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_configs(folder):
    base = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, vocab_size=100, max_position_embeddings=256,
                rms_norm_eps=1e-5, eos_token_id=[2, 3], bos_token_id=1, hidden_act="silu")
    llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=8192)
    configs = {
        "llama.json": dict(base, model_type="llama", rope_theta=1e4, rope_scaling=llama3,
                           attention_bias=True, mlp_bias=True),
        "qwen2.json": dict(base, model_type="qwen2", use_sliding_window=False, rope_scaling=dict(
            type="linear", factor=2), tie_word_embeddings=True),
        "qwen3.json": dict(base, model_type="qwen3", head_dim=32, layer_types=["full_attention"] * 2,
                           rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    }
    for name, config in configs.items():
        (folder / name).write_text(json.dumps(config) + "\0" + json.dumps({"eos_token_id": 5}))


def main():
    for kind in ("gguf", "safetensors", "config"):
        (OUT / kind).mkdir(parents=True, exist_ok=True)
    for arch, pre in (("llama", "llama-bpe"), ("llama", "smollm"), ("qwen2", "qwen2"),
                      ("qwen3", "default")):
        write_gguf(OUT / "gguf" / f"{arch}-{pre}.gguf", arch, pre)
    save_file({"a": np.zeros((2, 3), np.float32), "b": np.zeros(0, np.int8),
               "c": np.zeros((1, 1, 5), np.float16)},
              OUT / "safetensors" / "three.safetensors", metadata={"format": "pt"})
    save_file({}, OUT / "safetensors" / "empty.safetensors")
    write_configs(OUT / "config")


if __name__ == "__main__":
    main()
