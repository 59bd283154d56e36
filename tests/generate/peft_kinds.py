"""Random adapter configurations for peft_cases.py, by kind. Each draw returns (base, LoraConfig arguments,
options); options tell peft_cases.py what else the trainer did:
  resize: rows of the embeddings when the adapter was made      dtype: of the adapter file
  key_name: an adapter name written into every key              rebuilt: hexport decomposes the base itself
  zero_bias: the base got biases of zero before training
  shuffle: alpha_pattern has another order in the file          initial: "folder": the untrained adapter
      is given; "converted": PEFT subtracted it and saved a plain adapter of twice the rank
"""
from peft_models import SPLIT, VOCAB, layers, linears

ALL = ["llama", "llama_bias", "llama_bf16", "qwen2", "qwen3", "phi3", "gemma3"]
UNTIED = ["llama", "llama_bias", "qwen2", "phi3"]
TIED = ["qwen3", "gemma3"]


def some(rng, items):
    return sorted(rng.sample(items, rng.randint(1, len(items))))


def rank(rng):
    return dict(r=rng.choice([1, 2, 3, 4]), lora_alpha=rng.choice([1, 2, 3, 4, 8, 16]))


def plain(rng):
    base = rng.choice(ALL)
    return base, dict(rank(rng), target_modules=some(rng, linears(base))), {}


def rslora(rng):
    base, config, options = plain(rng)
    return base, dict(config, use_rslora=True), options


def patterns(rng):
    base = rng.choice(ALL)
    names = linears(base)
    a, b, c = (rng.choice(names) for _ in range(3))
    layer = rng.randrange(layers(base))
    block = {"q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn", "o_proj": "self_attn",
             "qkv_proj": "self_attn"}
    keys = [a, f"layers.{layer}.{block.get(b, 'mlp')}.{b}", rf".*\.{layer}\..*{c}",
            rf"model\.layers\.\d+\.(self_attn|mlp)\.{a[0]}.*", "self_attn.*", "proj", f"^{a}",
            f"^model.layers.{layer}.{block.get(b, 'mlp')}.{b}", f"({a}|{b})"]
    config = dict(rank(rng), target_modules=sorted(names), use_rslora=rng.random() < 0.4)
    config["rank_pattern"] = {key: rng.randint(1, 5) for key in rng.sample(keys, rng.randint(0, 4))}
    config["alpha_pattern"] = {key: rng.choice([1, 2.5, 6, 12, 20])
                               for key in rng.sample(keys, rng.randint(1, 4))}
    for key in ("rank_pattern", "alpha_pattern"):  # save_pretrained sorts them
        config[key] = dict(sorted(config[key].items()))
    return base, config, dict(shuffle=rng.random() < 0.4)


def dora(rng):
    base, config, options = rng.choice([plain, rslora, patterns])(rng)
    return base, dict(config, use_dora=True), options


def targets(rng):
    base = rng.choice(ALL)
    a, b = rng.choice(linears(base)), rng.choice(linears(base))
    layer = rng.randrange(layers(base))
    forms = [
        "all-linear",
        rf".*\.(?:{a}|{b})$",
        rf"model\.layers\.[0-{layer}]\.(self_attn|mlp)\.(?!down).*_proj",
        rf"(?i).*{a.upper()}",
        [f"self_attn.{'qkv_proj' if base == 'phi3' else 'q_proj'}", f"layers.{layer}.mlp.down_proj"],
        [f"model.layers.{layer}.self_attn.o_proj"],
    ]
    config = dict(rank(rng), target_modules=rng.choice(forms))
    other = [name for name in linears(base) if name not in (a, "down_proj", "o_proj", "q_proj", "qkv_proj")]
    if rng.random() < 0.4:
        config["exclude_modules"] = rng.choice([[rng.choice(other)], rf".*{rng.choice(other)}"])
    return base, config, {}


def some_layers(rng):
    base = rng.choice(["llama", "qwen2", "qwen3", "phi3", "gemma3"])
    config = dict(rank(rng), target_modules=some(rng, linears(base)),
                  layers_to_transform=rng.choice([0, 1, [1], [0], [0, 1]]))
    if rng.random() < 0.5:
        config["layers_pattern"] = rng.choice(["layers", ["layers"], ["h", "layers"]])
    return base, config, {}


def bias(rng):
    base = rng.choice(["llama_bias", "qwen2", "llama"])
    return base, dict(rank(rng), target_modules=some(rng, SPLIT), bias=rng.choice(["all", "lora_only"])), {}


def lora_bias(rng):
    base = rng.choice(["llama_bias", "qwen2", "llama"])
    names = SPLIT if base == "llama_bias" else ["q_proj", "k_proj", "v_proj"]
    return base, dict(rank(rng), target_modules=some(rng, names), lora_bias=True,
                      use_rslora=rng.random() < 0.5,
                      bias="none" if base == "llama" else rng.choice(["none", "none", "lora_only"])), dict(
        zero_bias=base == "llama")


def saved(rng):
    base = rng.choice(UNTIED)
    norms = ["input_layernorm", "post_attention_layernorm", "model.norm"]
    modules = rng.sample(["lm_head", "embed_tokens", "mlp"] + norms, rng.randint(1, 3))
    targets_left = [name for name in linears(base) if "mlp" not in modules or name in
                    ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj")]
    return base, dict(rank(rng), target_modules=some(rng, targets_left), modules_to_save=modules,
                      use_dora=rng.random() < 0.2), {}


def saved_tied(rng):
    modules = rng.choice([["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"],
                          ["embed_tokens", "lm_head"], ["q_norm", "k_norm"], ["norm"]])
    config = dict(rank(rng), target_modules=some(rng, SPLIT), modules_to_save=modules)
    if len(modules) == 2 and modules[0] == "embed_tokens" and rng.random() < 0.5:
        config["ensure_weight_tying"] = True
    return rng.choice(TIED), config, {}


def resized(rng):
    base = rng.choice(UNTIED + TIED)
    config = dict(rank(rng), target_modules=some(rng, linears(base)))
    if rng.random() < 0.6:
        config["modules_to_save"] = ["embed_tokens", "lm_head"]
        if base in TIED and rng.random() < 0.5:
            config["ensure_weight_tying"] = True
    return base, config, dict(resize=rng.choice([VOCAB - 3, VOCAB + 1, VOCAB + 6]))


def embedding(rng):
    base = rng.choice(ALL)
    names = some(rng, linears(base)) + rng.choice([["embed_tokens"], ["lm_head"],
                                                   ["embed_tokens", "lm_head"]])
    config = dict(rank(rng), target_modules=names, use_rslora=rng.random() < 0.3,
                  use_dora=rng.random() < 0.35)
    if rng.random() < 0.4:
        config["rank_pattern"] = {"embed_tokens": 5, "lm_head": 1}
        config["alpha_pattern"] = {"model.embed_tokens": 3}
    return base, config, {}


def embedding_resized(rng):
    base, config, options = embedding(rng)
    while base in UNTIED + ["llama_bf16"] and not {"embed_tokens", "lm_head"} <= set(config["target_modules"]):
        base, config, options = embedding(rng)
    return base, config, dict(options, resize=VOCAB + 4)


def init(rng):
    base, config, options = plain(rng)
    kind = rng.choice(["gaussian", "orthogonal", "mica", False])
    if kind == "orthogonal":
        config["r"] = rng.choice([2, 4])
    if kind == "mica":
        config["r"] = rng.choice([1, 2, 3])
    return base, dict(config, init_lora_weights=kind), options


def rebuilt(rng):
    base, config, options = rng.choice([plain, plain, rslora])(rng)
    config["r"] = rng.choice([1, 2, 3])
    return base, dict(config, init_lora_weights=rng.choice(["pissa", "pissa", "olora"])), dict(
        options, rebuilt=True)


def initial_given(rng):
    base, config, options = plain(rng)
    config["r"] = rng.choice([1, 2, 3])
    kind = rng.choice(["pissa_niter_4", "pissa_niter_16", "pissa", "olora"])
    return base, dict(config, init_lora_weights=kind), dict(
        options, initial=rng.choice(["folder", "folder", "converted"]))


def tokens(rng):
    base = rng.choice(ALL)
    rows = sorted(rng.sample(range(VOCAB), rng.randint(1, 5)))
    indices = rng.choice([rows, {"embed_tokens": rows}])
    if base in UNTIED and rng.random() < 0.4:
        indices = {"embed_tokens": rows, "lm_head": sorted(rng.sample(range(VOCAB), 2))}
    return base, dict(rank(rng), target_modules=some(rng, linears(base)),
                      trainable_token_indices=indices), {}


def key_names(rng):
    base, config, options = rng.choice([plain, dora, saved, embedding, lora_bias])(rng)
    return base, config, dict(options, key_name=rng.choice(["default", "lora", "my-adapter", "v1_2"]))


def half(rng):
    base, config, options = rng.choice([plain, rslora, patterns, dora, saved, embedding, bias])(rng)
    return base, config, dict(options, dtype=rng.choice(["float16", "bfloat16", "mixed"]))


# Kind, how many; with the 19 refused ones of peft_refused.py there are 200.
EQUAL = [(plain, 10), (rslora, 8), (patterns, 22), (dora, 18), (targets, 18), (some_layers, 10),
         (bias, 8), (lora_bias, 6), (saved, 11), (saved_tied, 8), (resized, 10), (embedding, 11),
         (embedding_resized, 3), (init, 5), (rebuilt, 8), (initial_given, 4), (tokens, 6),
         (key_names, 6), (half, 9)]
