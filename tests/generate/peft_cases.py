#!/usr/bin/env python3
"""Makes tests/data/peft: adapters written by PEFT, and what PEFT merges them to.

Made with peft 0.21.2, transformers 5.24.0 and torch 2.15.0 on CPU; every case has its own seed. Run from any
folder:
    OMP_NUM_THREADS=1 python3 tests/generate/peft_cases.py
  base_<name>/  base models: config.json and model.safetensors
  cases.json    200 single adapters (some to be refused) and weighted combinations; configs as PEFT wrote them
  pack.bin      adapter files and files of the expected changed tensors, one after another; cases.json has
                [offset, bytes] of each
What is expected is the float32 state dict of merge_and_unload() on the base with the saved folder loaded.
Two rules where that call has no right answer:
- LoRA on one end of tied embeddings: the shared table is copied before merging (as PEFT's own warning
  advises), because the other end was not changed in training.
- PiSSA, OLoRA: the base given to hexport is the one before PEFT subtracted the initial adapter.
"""
import collections
import contextlib
import json
import os
import pathlib
import random
import shutil
import tempfile
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save, save_file

import peft_kinds
import peft_models
from peft_refused import REFUSED

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "peft"
TOLERANCE = 1e-6


class Pack:
    def __init__(self):
        self.bytes = bytearray()

    def add(self, data):
        place = [len(self.bytes), len(data)]
        self.bytes += data
        return place


def open_base(bases, name, resize=None, zero_bias=False, **_):
    model = peft_models.load_base(bases, name, **(dict(attention_bias=True) if zero_bias else {}))
    if resize:
        model.resize_token_embeddings(resize)
    return model


def train(model, seed):
    """Gives every trainable parameter values that no initialization has."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if not parameter.requires_grad:
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if "magnitude" in name:
                parameter.mul_(1.0 + 0.3 * noise.tanh())
            elif "lora_A" in name or "lora_B" in name or "lora_embedding" in name:
                parameter.mul_(0.5).add_(0.15 * noise)
            else:
                parameter.add_(0.3 * noise)


def merged_tensors(model, **arguments):
    core = model.get_base_model()
    ends = [core.get_input_embeddings(), core.get_output_embeddings()]
    tables = [end.get_base_layer() if isinstance(end, LoraLayer) else end for end in ends]
    if any(isinstance(end, LoraLayer) for end in ends) and tables[0].weight is tables[1].weight:
        tables[1].weight = torch.nn.Parameter(tables[1].weight.detach().clone())
    merged = model.merge_and_unload(**arguments)
    return {name: value.detach().float().contiguous() for name, value in merged.state_dict().items()}


def exactly_rebuilt(model, before, method):
    """What PiSSA or OLoRA adapters merge to when the base is decomposed in float64. PEFT does it in float32,
    where the error is the rounding error over the gap between singular values; a case's tolerance comes from
    the difference between the two."""
    tensors = {}
    for name, layer in model.get_base_model().named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        weight, rank = before[f"{name}.weight"].double(), layer.r["default"]
        if method == "pissa":
            left, values, right = torch.linalg.svd(weight, full_matrices=False)
            taken = left[:, :rank] @ torch.diag(values[:rank]) @ right[:rank]
        else:
            q, r = torch.linalg.qr(weight)
            taken = layer.scaling["default"] * q[:, :rank] @ r[:rank]
        a, b = layer.lora_A["default"].weight.double(), layer.lora_B["default"].weight.double()
        tensors[f"{name}.weight"] = (weight - taken + layer.scaling["default"] * b @ a).detach()
    return tensors


def rename_keys(path, adapter_name):
    """Keys as trainers write them that save the state dict by themselves."""
    renamed = {}
    for key, value in load_file(path).items():
        parts = key.split(".")
        for part in ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"):
            if part in parts:
                parts.insert(parts.index(part) + 1, adapter_name)
                break
        else:
            if parts[-2:] == ["base_layer", "weight"] or parts[-1] == "bias":
                pass
            else:
                parts[-1:-1] = ["modules_to_save", adapter_name]
        renamed[".".join(parts)] = value
    save_file(renamed, path)


def cast_file(path, dtype):
    types = {"float16": [torch.float16], "bfloat16": [torch.bfloat16],
             "mixed": [torch.float16, torch.bfloat16, torch.float32]}[dtype]
    cast = {key: value.to(types[index % len(types)]) for index, (key, value) in
            enumerate(sorted(load_file(path).items()))}
    save_file(cast, path)


def shuffle_alphas(folder, rng):
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    items = list(config["alpha_pattern"].items())
    rng.shuffle(items)
    config["alpha_pattern"] = dict(items)
    path.write_text(json.dumps(config))


def record_adapter(pack, folder, base):
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = f"base_{base}"
    for key in ("target_modules", "exclude_modules", "modules_to_save"):
        if isinstance(config.get(key), list):
            config[key].sort()  # PEFT keeps sets
    return dict(config=json.dumps(config),
                weights=pack.add((folder / "adapter_model.safetensors").read_bytes()))


def record_expected(pack, before, after):
    """The changed tensors, and the facts that config.json must tell."""
    tied = "lm_head.weight" not in before
    embedding, head = after["model.embed_tokens.weight"], after["lm_head.weight"]
    if tied and torch.equal(embedding, head):
        after = {name: value for name, value in after.items() if name != "lm_head.weight"}
    else:
        tied = False
    missing = set(before) - set(after)
    assert not missing, missing
    changed = {name: value for name, value in after.items()
               if name not in before or value.shape != before[name].shape or
               not torch.equal(value, before[name].float())}
    return dict(expected=pack.add(save(changed)), changed=len(changed), tied=tied,
                vocab_size=embedding.shape[0])


def make_case(bases, work, pack, name, kind, rng, seed):
    base, arguments, options = kind(rng)
    torch.manual_seed(seed)
    config = LoraConfig(**arguments, task_type="CAUSAL_LM")
    model = get_peft_model(open_base(bases, base, **options), config)
    case = dict(name=name, kind=kind.__name__, base=base, tolerance=TOLERANCE)
    case.update({key: value for key, value in options.items() if value})
    initial = options.get("initial")
    if initial:
        method = config.init_lora_weights
        model.peft_config["default"].init_lora_weights = True
        model.save_pretrained(work / "initial")
        model.peft_config["default"].init_lora_weights = method
    train(model, seed)
    folder = work / "adapter"
    if initial == "converted":
        model.save_pretrained(folder, path_initial_model_for_weight_conversion=str(work / "initial"))
    else:
        model.save_pretrained(folder)
    if initial == "folder":
        case["initial_adapter"] = record_adapter(pack, work / "initial", base)
    if options.get("shuffle"):
        shuffle_alphas(folder, rng)
    if "dtype" in options:
        cast_file(folder / "adapter_model.safetensors", options["dtype"])
    before = load_file(bases / base / "model.safetensors")
    exact = exactly_rebuilt(model, before, config.init_lora_weights) if options.get("rebuilt") else {}
    trained = merged_tensors(model)
    for key, value in exact.items():
        error = (trained[key].double() - value).abs().max().item()
        assert error < 1e-4, (name, key, error)
        case["tolerance"] = max(case["tolerance"], TOLERANCE + 2 * error)
    reread = trained
    if not initial and config.init_lora_weights in (True, False):
        # What the folder says, not what memory held: types and the order of patterns.
        torch.manual_seed(seed)
        again = open_base(bases, base, **options)
        reread = merged_tensors(PeftModel.from_pretrained(again, folder))
        if "dtype" not in options and not options.get("shuffle"):
            for key, value in trained.items():
                assert torch.allclose(value, reread[key], atol=1e-6), (name, key)
    if "key_name" in options:
        rename_keys(folder / "adapter_model.safetensors", options["key_name"])
    case["adapters"] = [record_adapter(pack, folder, base)]
    case.update(record_expected(pack, before, reread))
    assert case["changed"] > 0, name
    return case


def make_refused(bases, work, pack, entry, seed):
    name, base, make_config, word, options = entry
    torch.manual_seed(seed)
    model = get_peft_model(open_base(bases, base, **options), make_config())
    train(model, seed)
    model.save_pretrained(work / "adapter")
    return dict(name=f"refused_{name}", kind="refused", base=options.get("test_base", base), refused=word,
                adapters=[record_adapter(pack, work / "adapter", base)])


def make_weighted(bases, work, pack, index, seed):
    """Several adapters: PEFT's exact combination ("cat"), one by "linear", or merged one after another."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    base = rng.choice(["llama", "qwen2", "qwen3", "phi3", "gemma3"])
    how = ["cat", "cat", "linear", "sequence"][index % 4]
    names = ["a", "b", "c"][:1 if how == "linear" else rng.randint(2, 3)]
    weights = [1.0 if how == "sequence" else rng.choice([0.25, 0.5, 1.0, 1.5, 2.0]) for _ in names]
    model = None
    for name in names:
        config = LoraConfig(r=rng.randint(1, 4), lora_alpha=rng.choice([2, 4, 8]), task_type="CAUSAL_LM",
                            # PEFT scales the sum by sqrt(r) when the first one is rank-stabilized.
                            use_rslora=model is not None and rng.random() < 0.5,
                            target_modules=peft_kinds.some(rng, peft_models.linears(base)))
        if model is None:
            model = get_peft_model(open_base(bases, base), config, adapter_name=name)
        else:
            model.add_adapter(name, config)
        model.set_adapter(name)
        train(model, seed + ord(name))
    model.save_pretrained(work)
    adapters = [dict(record_adapter(pack, work / name, base), weight=weight)
                for name, weight in zip(names, weights)]
    if how == "sequence":
        after = merged_tensors(model, adapter_names=names)
    else:
        model.add_weighted_adapter(names, weights, "sum", combination_type=how)
        model.set_adapter("sum")
        after = merged_tensors(model)
    case = dict(name=f"weighted_{index}_{how}", kind=f"weighted_{how}", base=base, tolerance=TOLERANCE,
                adapters=adapters)
    case.update(record_expected(pack, load_file(bases / base / "model.safetensors"), after))
    return case


def make_pair(bases, work, pack, name, base, weights, configs, word=None):
    """Two adapters beyond PEFT's combinations. Expected: W + sum of weight * (merged alone - W)."""
    before = load_file(bases / base / "model.safetensors")
    adapters, after = [], {key: value.double() for key, value in before.items()}
    for index, (weight, arguments) in enumerate(zip(weights, configs)):
        torch.manual_seed(index)
        model = get_peft_model(open_base(bases, base), LoraConfig(**arguments, task_type="CAUSAL_LM"))
        train(model, 77 + index)
        model.save_pretrained(work / str(index))
        adapters.append(dict(record_adapter(pack, work / str(index), base), weight=weight))
        for key, value in merged_tensors(model).items():
            after[key] += weight * (value.double() - before[key].double())
    case = dict(name=f"weighted_{name}", kind="weighted_refused" if word else "weighted_computed", base=base,
                tolerance=TOLERANCE, adapters=adapters)
    if word:
        return dict(case, refused=word)
    after = {key: value.float().contiguous() for key, value in after.items()}
    return dict(case, **record_expected(pack, before, after))


@contextlib.contextmanager
def temporary():
    folder = pathlib.Path(tempfile.mkdtemp())
    yield folder
    shutil.rmtree(folder)


def all_cases(bases, pack):
    kinds = [kind for kind, count in peft_kinds.EQUAL for _ in range(count)]
    for index, kind in enumerate(kinds):
        with temporary() as work:
            seed = 4000 + index
            yield make_case(bases, work, pack, f"{index:03}_{kind.__name__}", kind, random.Random(seed), seed)
    for index, entry in enumerate(REFUSED):
        with temporary() as work:
            yield make_refused(bases, work, pack, entry, 5000 + index)
    for index in range(12):
        with temporary() as work:
            yield make_weighted(bases, work, pack, index, 6000 + index)
    q, v = dict(r=2, lora_alpha=4, target_modules=["q_proj"]), dict(r=3, lora_alpha=4, target_modules=["v_proj"])
    pairs = [
        ("dora_half", "llama", [0.5], [dict(q, use_dora=True)], None),
        ("dora_and_plain", "qwen2", [1.5, 0.5], [dict(v, use_dora=True), q], "DoRA"),
        ("two_dora", "llama", [0.5, 0.5], [dict(q, use_dora=True)] * 2, "DoRA"),
        ("saved_disagree", "llama", [1.0, 1.0], [dict(q, modules_to_save=["lm_head"])] * 2, "lm_head"),
    ]
    for name, base, weights, configs, word in pairs:
        with temporary() as work:
            yield make_pair(bases, work, pack, name, base, weights, configs, word)


def main():
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    pack = Pack()
    with temporary() as bases:
        peft_models.save_bases(bases)
        for name in peft_models.MODELS:
            shutil.copytree(bases / name, OUT / f"base_{name}")
        cases = list(all_cases(bases, pack))
    versions = dict(peft=peft.__version__, transformers=transformers.__version__, torch=torch.__version__)
    lines = ",\n".join(json.dumps(case) for case in cases)
    (OUT / "cases.json").write_text(
        f'{{"versions": {json.dumps(versions)},\n "cases": [\n{lines}\n]}}\n')
    (OUT / "pack.bin").write_bytes(pack.bytes)
    print(versions)
    print(collections.Counter(case["kind"] for case in cases), len(pack.bytes), "bytes")


if __name__ == "__main__":
    main()
