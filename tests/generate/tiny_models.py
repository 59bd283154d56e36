#!/usr/bin/env python3
"""Makes tests/data/tiny/: random models of two or three layers for golden tests, one an architecture.

Made with torch 2.15 and transformers 5.24 (CPU); every model has its own fixed seed. Run from any folder:
    python3 tests/generate/tiny_models.py [NAME...]
Each folder holds config.json and model.safetensors (float32). Weights have a standard deviation of 0.3 so
that logits differ clearly; norm weights are around 1 (around 0 where the code adds 1), so that forgetting one
of them shows.
  llama         grouped heads (4 query, 2 key/value), its own lm_head
  mistral       head_dim 16 while hidden_size / heads is 8, a sliding window of 6 in every layer
  qwen2         q/k/v biases, tied lm_head
  qwen3         head_dim 16 while hidden_size / heads is 8, RMSNorm on q and k, tied lm_head
  phi3          fused qkv_proj and gate_up_proj, 12 of 16 elements of a head turn, longrope with 24 original positions
  smollm3       the last of four layers without RoPE, tied lm_head
  gemma3_text   four norms a layer, weights 1 + w, q/k norm, scores by query_pre_attn_scalar, scaled embedding, GELU;
                every second layer full with RoPE of its own, the others with a window of 6
"""
import pathlib
import sys

import torch
from transformers import (Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM, SmolLM3Config, SmolLM3ForCausalLM)

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
    "mistral": (4, MistralForCausalLM,
                MistralConfig(**COMMON, rms_norm_eps=1e-5, tie_word_embeddings=False, head_dim=16, sliding_window=6,
                              rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
    "phi3": (5, Phi3ForCausalLM,
             Phi3Config(**dict(COMMON, hidden_size=64), rms_norm_eps=1e-5, tie_word_embeddings=True,
                        original_max_position_embeddings=24, sliding_window=None,
                        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0,
                                         "partial_rotary_factor": 0.75,
                                         "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 2.0],
                                         "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 16.0]})),
    "smollm3": (6, SmolLM3ForCausalLM,
                SmolLM3Config(**dict(COMMON, num_hidden_layers=4), rms_norm_eps=1e-6, tie_word_embeddings=True,
                              rope_parameters={"rope_type": "default", "rope_theta": 2000000.0})),
    "gemma3_text": (7, Gemma3ForCausalLM,
                    Gemma3TextConfig(**dict(COMMON, num_hidden_layers=3), rms_norm_eps=1e-6, tie_word_embeddings=True,
                                     head_dim=16, query_pre_attn_scalar=24, sliding_window=6,
                                     layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                     rope_parameters={
                                         "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0,
                                                            "factor": 2.0},
                                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})),
}


def randomize(model, seed):
    generator = torch.Generator().manual_seed(seed)
    centre = 0.0 if "Gemma3" in type(model).__name__ else 1.0  # its code adds 1
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(centre + 0.2 * noise if "norm" in name else 0.3 * noise)


def main():
    for folder, (seed, kind, config) in MODELS.items():
        if sys.argv[1:] and folder not in sys.argv[1:]:
            continue
        torch.manual_seed(seed)
        model = kind(config).float()
        randomize(model, seed)
        model.save_pretrained(OUT / folder, safe_serialization=True)
        extra = OUT / folder / "generation_config.json"
        if extra.exists():
            extra.unlink()


if __name__ == "__main__":
    main()
