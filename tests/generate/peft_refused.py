"""Adapters that hexport must refuse: (name, base, make() -> peft config, word in the reason, options)."""
from peft import (AdaLoraConfig, BOFTConfig, IA3Config, LNTuningConfig, LoHaConfig, LoKrConfig, LoraConfig,
                  OFTConfig, VeraConfig)
from peft.tuners.lora.config import BdLoraConfig, KasaConfig, MontecloraConfig

QV = ["q_proj", "v_proj"]


def lora(**changes):
    return LoraConfig(**dict(dict(r=2, lora_alpha=4, target_modules=QV, task_type="CAUSAL_LM"), **changes))


REFUSED = [
    ("ia3", "llama", lambda: IA3Config(target_modules=QV, feedforward_modules=[], task_type="CAUSAL_LM"), "IA3", {}),
    ("loha", "llama", lambda: LoHaConfig(r=2, target_modules=QV, task_type="CAUSAL_LM"), "LOHA", {}),
    ("lokr", "qwen2", lambda: LoKrConfig(r=2, target_modules=QV, task_type="CAUSAL_LM"), "LOKR", {}),
    ("adalora", "llama", lambda: AdaLoraConfig(init_r=3, target_r=2, total_step=10, tinit=1, tfinal=1,
                                               target_modules=QV, task_type="CAUSAL_LM"), "ADALORA", {}),
    ("oft", "llama", lambda: OFTConfig(r=0, oft_block_size=4, target_modules=QV, task_type="CAUSAL_LM"), "OFT", {}),
    ("boft", "llama", lambda: BOFTConfig(boft_block_size=4, target_modules=["q_proj"], task_type="CAUSAL_LM"),
     "BOFT", {}),
    ("vera", "llama", lambda: VeraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"), "VERA", {}),
    ("ln_tuning", "llama", lambda: LNTuningConfig(target_modules=["input_layernorm"], task_type="CAUSAL_LM"),
     "LN_TUNING", {}),
    ("alora", "llama", lambda: lora(alora_invocation_tokens=[3, 4]), "alora_invocation_tokens", {}),
    ("target_parameters", "llama",
     lambda: lora(target_modules=None, target_parameters=["self_attn.o_proj.weight"]), "target_parameters", {}),
    ("layer_replication", "llama", lambda: lora(layer_replication=[[0, 2], [1, 2]]), "layer_replication", {}),
    ("kasa", "llama", lambda: lora(kasa_config=KasaConfig()), "kasa_config", {}),
    ("monteclora", "llama", lambda: lora(monteclora_config=MontecloraConfig()), "monteclora_config", {}),
    ("bdlora", "llama", lambda: lora(use_bdlora=BdLoraConfig(target_modules_bd_b=QV, nblocks=2)), "use_bdlora", {}),
    ("pissa_niter", "llama", lambda: lora(init_lora_weights="pissa_niter_4"), "pissa_niter_4", {}),
    ("lora_bias_fused", "phi3", lambda: lora(target_modules=["qkv_proj"], lora_bias=True), "bias", {}),
    ("lora_bias_o_proj", "qwen2", lambda: lora(target_modules=["q_proj", "o_proj"], lora_bias=True), "bias", {}),
    # Only the embedding's new rows are in the file; the output head keeps its old size.
    ("resized_head_missing", "llama", lambda: lora(target_modules=QV + ["embed_tokens"]), "lm_head",
     {"resize": 30}),
    # Made for another model: every key is of a size that does not fit.
    ("other_shape", "qwen3", lambda: lora(), "q_proj", {"test_base": "qwen2"}),
]
