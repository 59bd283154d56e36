#!/usr/bin/env python3
"""Makes tests/data/golden/: token ids and logits of the float model as transformers computes it in double.

Made with torch 2.15, transformers 5.24, gguf and safetensors (CPU); every random part has the fixed seed below.
    python3 tests/generate/decoder_golden.py [models/SmolLM2-135M-Instruct.Q4_1.gguf]
Files: NAME.ids.bin (int32), NAME.logits.bin (float32 [tokens, vocab_size], rounded once from double). Names:
  llama, mistral, ...      tests/data/tiny/NAME (made by tiny_models.py)
  all of VARIANTS          the weights of tiny/BASE under golden/NAME/config.json: RoPE scaling, sliding windows
  llama_bias               golden/llama_bias: biases everywhere, one key/value head
  smollm2                  the GGUF file given, 8 tokens; only with that argument
"""
import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

SEED = 7
DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
TINY, GOLDEN = DATA / "tiny", DATA / "golden"
# NAME: (BASE, what differs from its config).
VARIANTS = {
    "llama3_rope": ("llama", {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}}),
    "linear_rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}}),
    "yarn_rope": ("qwen3", {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32,
        "beta_fast": 8.0, "beta_slow": 0.5}}),
    "yarn_mscale": ("llama", {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 16,
        "beta_fast": 4.0, "beta_slow": 0.25, "truncate": False, "mscale": 0.7, "mscale_all_dim": 0.4}}),
    "dynamic_rope": ("qwen2", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1000000.0, "factor": 4.0}}),
    "mistral_full": ("mistral", {"sliding_window": None}),
    "phi3_long": ("phi3", {"original_max_position_embeddings": 8}),
    "phi3_window": ("phi3", {"sliding_window": 5, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}}),
    "qwen2_window": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1,
                               "layer_types": ["full_attention", "sliding_attention"]}),
    "qwen3_window": ("qwen3", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0,
                               "layer_types": ["sliding_attention", "sliding_attention"]}),
    "smollm3_window": ("smollm3", {"no_rope_layers": [1, 0, 1, 0], "use_sliding_window": True, "sliding_window": 4, "layer_types": [
        "full_attention", "sliding_attention", "full_attention", "sliding_attention"]}),
}
# "<|im_start|>user\nWhat is the" as SmolLM2's tokenizer has it.
SMOLLM2_IDS = [1, 4093, 198, 1780, 314, 260, 3575, 282]


def save(name, model, ids):
    model = model.double().eval()
    model.set_attn_implementation("sdpa")  # eager attention rounds its softmax to float32
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    np.asarray(ids, "<i4").tofile(GOLDEN / f"{name}.ids.bin")
    logits.numpy().astype("<f4").tofile(GOLDEN / f"{name}.logits.bin")
    print(f"{name}: {len(ids)} tokens, logits {logits.min():.3f} .. {logits.max():.3f}")


def random_ids(vocab_size, count=15):
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(0, vocab_size, (count,), generator=generator).tolist()


def save_tiny():
    for name in sorted(path.name for path in TINY.iterdir()):
        model = AutoModelForCausalLM.from_pretrained(TINY / name, dtype=torch.float32)
        save(name, model, random_ids(model.config.vocab_size))


def save_variants():
    for name, (base, changes) in VARIANTS.items():
        config = json.loads((TINY / base / "config.json").read_text())
        config.update(changes)
        (GOLDEN / name).mkdir(exist_ok=True)
        (GOLDEN / name / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        read = AutoConfig.from_pretrained(GOLDEN / name)
        model = AutoModelForCausalLM.from_config(read, dtype=torch.float32)
        weights = load_file(TINY / base / "model.safetensors")
        missing, unexpected = model.load_state_dict(weights, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (name, missing, unexpected)
        model.tie_weights()
        save(name, model, random_ids(read.vocab_size))


def save_bias():
    config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
                         attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
                         bos_token_id=1, eos_token_id=2, pad_token_id=None)
    model = LlamaForCausalLM(config).float()
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1.0 + 0.2 * noise if "norm" in name else 0.3 * noise)
    model.save_pretrained(GOLDEN / "llama_bias")
    (GOLDEN / "llama_bias" / "generation_config.json").unlink(missing_ok=True)
    save("llama_bias", model, random_ids(config.vocab_size))


def save_gguf(path):
    import gguf
    reader = gguf.GGUFReader(path)
    field = lambda key: reader.fields["llama." + key].contents()
    heads, kv = field("attention.head_count"), field("attention.head_count_kv")
    raw = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}

    def unpermute(w, n):  # GGUF interleaves the two halves of each rotated head
        return w.reshape(n, w.shape[0] // n // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)

    parts = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    state = {"model.embed_tokens.weight": raw["token_embd.weight"], "model.norm.weight": raw["output_norm.weight"],
             "lm_head.weight": raw.get("output.weight", raw["token_embd.weight"])}
    layers = field("block_count")
    for layer in range(layers):
        for theirs, ours in parts.items():
            w = raw[f"blk.{layer}.{theirs}.weight"]
            w = unpermute(w, heads) if theirs == "attn_q" else unpermute(w, kv) if theirs == "attn_k" else w
            state[f"model.layers.{layer}.{ours}.weight"] = w
    config = LlamaConfig(vocab_size=state["lm_head.weight"].shape[0], hidden_size=field("embedding_length"),
                         intermediate_size=field("feed_forward_length"), num_hidden_layers=layers,
                         num_attention_heads=heads, num_key_value_heads=kv,
                         rms_norm_eps=float(field("attention.layer_norm_rms_epsilon")),
                         rope_parameters={"rope_type": "default", "rope_theta": float(field("rope.freq_base"))},
                         tie_word_embeddings=False)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model.load_state_dict({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in state.items()})
    save("smollm2", model, SMOLLM2_IDS)


def main():
    GOLDEN.mkdir(parents=True, exist_ok=True)
    save_tiny()
    save_variants()
    save_bias()
    if len(sys.argv) > 1:
        save_gguf(sys.argv[1])


if __name__ == "__main__":
    main()
