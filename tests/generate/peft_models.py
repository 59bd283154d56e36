"""Tiny base models for peft_cases.py: every linear layout hexport merges into, float32 unless said."""
import torch
from transformers import (Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM,
                          Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM)

VOCAB = 24
COMMON = dict(vocab_size=VOCAB, hidden_size=8, intermediate_size=12, num_hidden_layers=2,
              num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
              bos_token_id=1, eos_token_id=2, pad_token_id=0)
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**COMMON, tie_word_embeddings=False)),
    "llama_bias": (LlamaForCausalLM, LlamaConfig(**dict(COMMON, num_hidden_layers=1),
                                                 attention_bias=True, mlp_bias=True,
                                                 tie_word_embeddings=False)),
    # bfloat16 in the file; merged in float32.
    "llama_bf16": (LlamaForCausalLM, LlamaConfig(**dict(COMMON, num_hidden_layers=1),
                                                 tie_word_embeddings=False)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**COMMON, tie_word_embeddings=False)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**dict(COMMON, head_dim=8), tie_word_embeddings=True)),
    "phi3": (Phi3ForCausalLM, Phi3Config(**COMMON, tie_word_embeddings=False)),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(**COMMON, head_dim=4, sliding_window=16,
                                                   query_pre_attn_scalar=4,
                                                   tie_word_embeddings=True)),
}
FUSED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
SPLIT = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def linears(base):
    return FUSED if base == "phi3" else SPLIT


def layers(base):
    return MODELS[base][1].num_hidden_layers


def save_bases(folder):
    """Writes folder/<name>/{config.json,model.safetensors}."""
    for seed, (name, (kind, config)) in enumerate(MODELS.items()):
        generator = torch.Generator().manual_seed(1000 + seed)
        model = kind(config).float()
        with torch.no_grad():
            for parameter_name, parameter in sorted(model.named_parameters()):
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(1.0 + 0.2 * noise if "norm" in parameter_name else 0.3 * noise)
        if name == "llama_bf16":
            model = model.bfloat16()
        model.save_pretrained(folder / name)
        (folder / name / "generation_config.json").unlink(missing_ok=True)


def load_base(folder, name, **changes):
    """changes: of the configuration; new biases are zero."""
    kind = MODELS[name][0]
    model = kind.from_pretrained(folder / name, dtype=torch.float32, **changes).eval()
    for parameter_name, parameter in model.named_parameters():
        if changes.get("attention_bias") and parameter_name.endswith(".bias"):
            torch.nn.init.zeros_(parameter)
    return model
