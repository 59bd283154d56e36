#!/usr/bin/env python3
"""Makes the seeds in fuzz/corpus: small valid files of every kind that a fuzzer reads.

Made with gguf 0.19, safetensors 0.8, tokenizers 0.23 and numpy 2; nothing is random. Run from any folder:
    python3 tests/generate/fuzz_seeds.py
"""
import json
import pathlib

import gguf
import numpy as np
from safetensors.numpy import save, save_file
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors)

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


def write_adapter_configs(folder):
    lora = dict(peft_type="LORA", r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"],
                base_model_name_or_path="base", task_type="CAUSAL_LM", bias="none")
    configs = {
        "list": lora,
        "regex": dict(lora, target_modules=r".*\.(self_attn|mlp)\.(?!up).*_proj", lora_alpha=0.5,
                      exclude_modules="lm_head"),
        "all_linear": dict(lora, target_modules="all-linear", use_rslora=True, use_dora=True,
                           exclude_modules=["down_proj"]),
        "patterns": dict(lora, rank_pattern={r"layers\.[0-3]\..*q_proj": 4, "^model.*": 2},
                         alpha_pattern={"self_attn.q_proj": 3, "(a+)+b": 2.5}),
        "layers": dict(lora, layers_to_transform=[0, 11], layers_pattern=["h", "layers"]),
        "one_layer": dict(lora, layers_to_transform=3, layers_pattern="layers"),
        "saved": dict(lora, modules_to_save=["embed_tokens", "lm_head"], bias="lora_only",
                      lora_bias=True, ensure_weight_tying=True),
        "tokens": dict(lora, trainable_token_indices={"embed_tokens": [1, 5], "lm_head": [2]}),
        "token_list": dict(lora, trainable_token_indices=[1, 5], init_lora_weights="pissa_niter_4"),
        "olora": dict(lora, init_lora_weights="olora", fan_in_fan_out=False, revision=None),
        "refused": dict(lora, layer_replication=[[0, 2], [1, 2]], alora_invocation_tokens=[1],
                        loftq_config={"loftq_bits": 4}, target_parameters=["experts.w1"]),
        "ia3": dict(peft_type="IA3", target_modules=["q_proj"], feedforward_modules=[]),
    }
    for name, config in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(config))


def write_adapters(folder):
    """For tests/data/peft/base_llama: hidden 8, intermediate 12, two layers, vocabulary 24."""
    config = dict(peft_type="LORA", r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"],
                  base_model_name_or_path="base", task_type="CAUSAL_LM", bias="none")
    layer = "base_model.model.model.layers.0."
    q, down = layer + "self_attn.q_proj.", layer + "mlp.down_proj."
    embedding = "base_model.model.model.embed_tokens."
    ones = np.full
    plain = {q + "lora_A.weight": ones((2, 8), 0.5, np.float32),
             q + "lora_B.weight": ones((8, 2), 0.5, np.float32)}
    adapters = {
        "plain": (config, plain),
        "dora": (dict(config, use_dora=True, use_rslora=True),
                 dict(plain, **{q + "lora_magnitude_vector": ones(8, 2, np.float16)})),
        "named": (config, {down + "lora_A.default.weight": ones((2, 12), 0.5, np.float16),
                           down + "lora_B.default.weight": ones((8, 2), 0.5, np.float16)}),
        "lora_bias": (dict(config, lora_bias=True),
                      dict(plain, **{q + "lora_B.bias": ones(8, 0.5, np.float32)})),
        "bias": (dict(config, bias="all"),
                 dict(plain, **{q + "base_layer.bias": ones(8, 0.5, np.float32)})),
        "embedding": (dict(config, target_modules=["embed_tokens"], use_dora=True), {
            embedding + "lora_embedding_A": ones((2, 24), 0.5, np.float16),
            embedding + "lora_embedding_B": ones((8, 2), 0.5, np.float16),
            embedding + "lora_magnitude_vector": ones(8, 0.5, np.float16)}),
        "saved": (dict(config, modules_to_save=["lm_head", "embed_tokens"]),
                  dict(plain, **{"base_model.model.lm_head.weight": ones((26, 8), 0.5, np.float16),
                                 embedding + "weight": ones((26, 8), 0.5, np.float16)})),
        "tokens": (dict(config, trainable_token_indices=[1, 23]),
                   dict(plain, **{embedding + "token_adapter.trainable_tokens_delta":
                                  ones((2, 8), 0.5, np.float32)})),
        "pissa": (dict(config, init_lora_weights="pissa"), plain),
        "olora": (dict(config, init_lora_weights="olora"), plain),
    }
    for name, (settings, tensors) in adapters.items():
        (folder / name).write_bytes(json.dumps(settings).encode() + b"\0" + save(tensors))
    write_gguf_lora(folder / "lora.gguf")


def write_gguf_lora(path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 4.0)
    for name, rows, columns in (("blk.0.attn_q", 8, 8), ("blk.1.ffn_down", 8, 12), ("output", 24, 8)):
        writer.add_tensor(f"{name}.weight.lora_a", np.full((2, columns), 0.5, np.float16))
        writer.add_tensor(f"{name}.weight.lora_b", np.full((rows, 2), 0.5, np.float32))
    writer.add_tensor("token_embd.weight.lora_a", np.full((24, 2), 0.5, np.float32))
    writer.add_tensor("token_embd.weight.lora_b", np.full((8, 2), 0.5, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_indices(folder):
    two = {"metadata": {"total_size": 12}, "weight_map": {
        "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
        "lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "two.json").write_text(json.dumps(two))
    (folder / "empty.json").write_text('{"weight_map": {}}')
    (folder / "outside.json").write_text('{"weight_map": {"a": "../b", "c": "d/e", "f": "g\\u0000h"}}')


def write_tokenizers(folder):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: index for index, piece in enumerate(alphabet + ["ab", "abc", "\u0120a"])}
    bpe = Tokenizer(models.BPE(vocab, [("a", "b"), ("ab", "c"), ("\u0120", "a")]))
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}|\s+(?!\S)|\s+|[^\s\p{N}]+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(["<s>"])
    bpe.add_tokens([AddedToken("<A>", lstrip=True, rstrip=True), AddedToken("cab", single_word=True)])
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[
        ("<s>", bpe.token_to_id("<s>"))])
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = {piece: index for index, piece in enumerate(pieces + ["\u2581", "a", "b", "\u2581a"])}
    llama = Tokenizer(models.BPE(vocab, [("\u2581", "a")], unk_token="<unk>", byte_fallback=True,
                                 fuse_unk=True))
    llama.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"),
                                             normalizers.Replace(" ", "\u2581")])
    llama.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                       decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("\u2581", -1.0), ("a", -2.0), ("ab", -2.5)], 0,
                                       False))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    words = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2, "##c": 3}, unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer()
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.decoder = decoders.WordPiece()
    level = Tokenizer(models.WordLevel({"<unk>": 0, "ab": 1}, unk_token="<unk>"))
    level.pre_tokenizer = pre_tokenizers.Whitespace()
    for name, tokenizer in dict(bpe=bpe, llama=llama, unigram=unigram, words=words, level=level).items():
        (folder / f"{name}.json").write_text(tokenizer.to_str(pretty=False))


def write_templates(folder):
    templates = {
        "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') + '<|im_end|>' }}"
                  "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        "system": "{%- if messages[0]['role'] == 'system' -%}{%- set first = messages[0].content|trim -%}"
                  "{%- set messages = messages[1:] -%}{%- else -%}{%- set first = '' -%}{%- endif -%}"
                  "{{ bos_token ~ first }}{% for m in messages[::-1] %}{{ m['content']|string|upper }}{% endfor %}",
        "namespace": "{% set ns = namespace(last=0, text='') %}{% for m in messages %}{% if m.role == 'user' %}"
                     "{% set ns.last = loop.index0 %}{% endif %}{% if loop.last %}{% break %}{% endif %}"
                     "{% set ns.text = ns.text + m.role %}{% endfor %}{{ ns.last }}{{ ns.text }}",
        "macro": "{% macro show(value, depth=2) -%}{{ value|tojson(indent=depth) }}{%- endmacro %}"
                 "{% for t in tools or [] %}{{ show(t.function) }}{% endfor %}"
                 "{% for k, v in (tools or [{}])[0].items() %}{{ k }}={{ v }}{% endfor %}",
        "think": "{% for m in messages %}{% if m.content is string and '</think>' in m.content %}"
                 "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% endif %}{% endfor %}"
                 "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>{% endif %}",
        "parts": "{% for m in messages %}{% if m.content is iterable and m.content is not string %}"
                 "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}"
                 "{% generation %}{{ m.role }}{% endgeneration %}{% endfor %}",
        "raise": "{% if messages|length > 9 %}{{ raise_exception('too many') }}{% endif %}"
                 "{{ strftime_now('%d %b %Y') }}{{ messages|map(attribute='role')|join(', ') }}",
        "double": "{% set ns = namespace(t='abcdefgh') %}{% for i in range(60) %}{% set ns.t = ns.t + ns.t %}"
                  "{% endfor %}{{ ns.t|length }}",
        "repeat": "{{ 'ab' * 100000000 }}{{ '%0999999999d' % 3 }}{{ 'x'.rjust(999999999) }}",
        "recurse": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "endless": "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "replace": "{% set ns = namespace(t='aa') %}{% for i in range(99) %}"
                   "{% set ns.t = ns.t|replace('a', 'aaaaaaaaaa') %}{% endfor %}{{ ns.t.replace('a', 'b' * 9) }}",
        "lists": "{% set ns = namespace(t=[1]) %}{% for i in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}"
                 "{{ ns.t|length }}",
    }
    for name, source in templates.items():
        (folder / f"{name}.jinja").write_text(source)


def main():
    for kind in ("gguf", "safetensors", "config", "adapter", "adapter_config", "safetensors_index",
                 "tokenizer_json", "chat_template"):
        (OUT / kind).mkdir(parents=True, exist_ok=True)
    write_adapters(OUT / "adapter")
    write_adapter_configs(OUT / "adapter_config")
    write_indices(OUT / "safetensors_index")
    write_tokenizers(OUT / "tokenizer_json")
    write_templates(OUT / "chat_template")
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
