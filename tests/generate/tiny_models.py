#!/usr/bin/env python3
"""Makes tests/data/tiny/{llama,qwen2,qwen3}: random models of two layers for golden tests.

Made with torch 2.15 and transformers 5.24 (CPU); every model has its own fixed seed. Run from any folder:
    python3 tests/generate/tiny_models.py
Each folder holds config.json and model.safetensors (float32). Weights have a standard deviation of 0.3 so
that logits differ clearly; norm weights are around 1, so that forgetting one of them shows.
  llama: grouped heads (4 query, 2 key/value), its own lm_head
  qwen2: q/k/v biases, tied lm_head
  qwen3: head_dim 16 while hidden_size / heads is 8, RMSNorm on q and k, tied lm_head
"""
import pathlib

import torch
from transformers import (LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM)

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "tiny"
COMMON = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
              bos_token_id=1, eos_token_id=2, pad_token_id=None)
MODELS = {
    "llama": (1, LlamaForCausalLM,
              LlamaConfig(**COMMON, rms_norm_eps=1e-5, tie_word_embeddings=False)),
    "qwen2": (2, Qwen2ForCausalLM,
              Qwen2Config(**COMMON, rms_norm_eps=1e-6, tie_word_embeddings=True,
                          rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
    "qwen3": (3, Qwen3ForCausalLM,
              Qwen3Config(**COMMON, rms_norm_eps=1e-6, tie_word_embeddings=True, head_dim=16,
                          rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
}


def randomize(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1.0 + 0.2 * noise if "norm" in name else 0.3 * noise)


def main():
    for folder, (seed, kind, config) in MODELS.items():
        torch.manual_seed(seed)
        model = kind(config).float()
        randomize(model, seed)
        model.save_pretrained(OUT / folder, safe_serialization=True)
        extra = OUT / folder / "generation_config.json"
        if extra.exists():
            extra.unlink()


if __name__ == "__main__":
    main()
