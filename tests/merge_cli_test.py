#!/usr/bin/env python3
"""`hexport merge`, `build --adapter` and `inspect` of adapters, as a user runs them, on a tiny llama.

Usage: merge_cli_test.py HEXPORT TINY_LLAMA_FOLDER  (registered with ctest, label cli)
"""
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

import safetensors_io
from tiny_text_model import CHATML, copy_with_text, tokenizer_json

HEXPORT, TINY = "", pathlib.Path()
LAYERS, HIDDEN, KEY_VALUE = 2, 32, 16
ROWS = {"q_proj": HIDDEN, "k_proj": KEY_VALUE, "v_proj": KEY_VALUE, "o_proj": HIDDEN}


def run(*arguments):
    return subprocess.run([HEXPORT, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)


class MergeCliTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hexport-merge-"))
        self.base, self.adapter, self.out = (self.folder / n for n in ("base", "adapter", "out"))
        copy_with_text(TINY, self.base)
        self.random = random.Random(7)
        self.config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": list(ROWS)}
        self.tensors = {}
        for layer in range(LAYERS):
            for module, rows in ROWS.items():
                key = f"base_model.model.model.layers.{layer}.self_attn.{module}."
                self.tensors[key + "lora_A.weight"] = ("F32", [4, HIDDEN], self.noise(4 * HIDDEN))
                self.tensors[key + "lora_B.weight"] = ("F32", [rows, 4], self.noise(rows * 4))
        self.samples = self.folder / "samples.jsonl"
        self.samples.write_text("".join(
            json.dumps({"messages": [{"role": "user", "content": f"w{5 + i} w{9 + i} w{20 + i}"},
                                     {"role": "assistant", "content": f"w{30 + i} w{31 + i}"}]}) + "\n"
            for i in range(3)))

    def tearDown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def noise(self, count, scale=0.2):
        return [self.random.uniform(-scale, scale) for _ in range(count)]

    def write_adapter(self):
        self.adapter.mkdir(exist_ok=True)
        (self.adapter / "adapter_config.json").write_text(json.dumps(self.config))
        safetensors_io.write(self.adapter / "adapter_model.safetensors", self.tensors)

    def merge(self, *more):
        self.write_adapter()
        return run("merge", "--base", self.base, "--adapter", self.adapter, "--out", self.out, *more)

    def refused(self, result, code, *words):
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        for word in words:
            self.assertIn(word, result.stderr + result.stdout)
        self.assertFalse(self.out.exists(), "output was left")
        self.assertEqual([p.name for p in self.folder.iterdir() if ".tmp-" in p.name], [])

    # ---- a good merge ----

    def test_merged_weights_and_report(self):
        result = self.merge("--json", "--samples", self.samples)
        self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
        report = json.loads(result.stdout)
        self.assertEqual(report["matched"], len(self.tensors))
        self.assertEqual(report["adapter_tensors"], len(self.tensors))
        self.assertEqual(report["tensors_in"], report["tensors_out"])
        self.assertEqual(report["tensors_changed"], LAYERS * len(ROWS))
        self.assertLess(report["delta_lost_share"], 1e-3)
        self.assertLess(report["max_abs_logit_diff"], 1e-3)
        self.assertEqual(report["warnings"], [])
        # The adapter does something, far above what rounding does.
        self.assertGreater(report["logits"]["base_against_adapted"]["max_abs"],
                           100 * report["max_abs_logit_diff"])
        self.assertEqual(len(report["next_tokens"]), 3)
        before = safetensors_io.read(self.base / "model.safetensors")
        after = safetensors_io.read(self.out / "model.safetensors")
        self.assertEqual(set(before), set(after))
        for layer in range(LAYERS):
            for module, rows in ROWS.items():
                name = f"model.layers.{layer}.self_attn.{module}.weight"
                a = self.tensors[f"base_model.model.{name[:-7]}.lora_A.weight"][2]
                b = self.tensors[f"base_model.model.{name[:-7]}.lora_B.weight"][2]
                for row in (0, rows - 1):
                    for column in (0, 7, HIDDEN - 1):
                        delta = 2 * sum(b[row * 4 + k] * a[k * HIDDEN + column] for k in range(4))
                        self.assertAlmostEqual(after[name][2][row * HIDDEN + column],
                                               before[name][2][row * HIDDEN + column] + delta, places=5)
        untouched = "model.layers.0.mlp.up_proj.weight"
        self.assertEqual(before[untouched], after[untouched])

    def test_record_states_the_dtype_of_every_tensor(self):  # L21
        self.assertEqual(self.merge("--dtype", "bfloat16").returncode, 0)
        record = json.loads((self.out / "hexport_merge.json").read_text())
        written = safetensors_io.read(self.out / "model.safetensors")
        self.assertEqual(set(record["dtypes"]), set(written))
        names = {"BF16": "bfloat16", "F32": "float32"}
        for name, (dtype, _, _) in written.items():
            self.assertIn(record["dtypes"][name], (dtype, names[dtype]))
            self.assertEqual(dtype, "BF16")
        self.assertIn(json.loads((self.out / "config.json").read_text()).get("dtype"), ("bfloat16",))

    def test_tokenizer_and_template_come_along(self):
        self.assertEqual(self.merge().returncode, 0)
        self.assertEqual((self.out / "tokenizer.json").read_text(), tokenizer_json())
        self.assertEqual((self.out / "chat_template.jinja").read_text(), CHATML)
        self.assertEqual(run("inspect", self.out, "--json").returncode, 0)

    def test_two_adapters_with_weights(self):
        self.write_adapter()
        second = self.folder / "second"
        shutil.copytree(self.adapter, second)
        result = run("merge", "--base", self.base, "--adapter", self.adapter, "--adapter", second, "--weight", "0.5",
                     "--out", self.out, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        name = "model.layers.0.self_attn.q_proj.weight"
        both = safetensors_io.read(self.out / "model.safetensors")[name][2]
        before = safetensors_io.read(self.base / "model.safetensors")[name][2]
        shutil.rmtree(self.out)
        self.assertEqual(self.merge().returncode, 0)
        one = safetensors_io.read(self.out / "model.safetensors")[name][2]
        for i in (0, 100, 999):
            self.assertAlmostEqual(both[i] - before[i], 1.5 * (one[i] - before[i]), places=5)

    # ---- failed checks: exit 1 and nothing written ----

    def test_keys_that_match_nothing(self):  # L12
        self.tensors = {k.replace("model.layers", "model.language_model.layers"): v for k, v in self.tensors.items()}
        self.refused(self.merge(), 1, f"0 of {len(self.tensors)}", "--rename")
        result = self.merge("--rename", "model.language_model.=model.", "--json")
        self.assertEqual(result.returncode, 0, result.stderr + result.stdout)

    def test_one_key_without_a_module(self):  # L12
        self.tensors["base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight"] = ("F32", [4, 32], self.noise(128))
        self.tensors["base_model.model.model.layers.9.self_attn.q_proj.lora_B.weight"] = ("F32", [32, 4], self.noise(128))
        self.refused(self.merge(), 1, "layers.9")
        self.assertEqual(self.merge("--allow-partial").returncode, 0)

    def test_untrained_adapter_is_an_identity(self):  # L14
        for key, (dtype, shape, values) in self.tensors.items():
            if "lora_B" in key:
                self.tensors[key] = (dtype, shape, [0.0] * len(values))
        self.refused(self.merge(), 1, "identity")

    def test_not_a_number(self):
        key = next(k for k in self.tensors if "lora_B" in k)
        self.tensors[key][2][5] = float("nan")
        self.refused(self.merge(), 1, "NaN")

    def test_change_lost_to_rounding(self):  # L05
        for key, (dtype, shape, values) in self.tensors.items():
            self.tensors[key] = (dtype, shape, [v * 1e-3 for v in values])
        self.refused(self.merge("--dtype", "bfloat16"), 1, "float32")

    def test_template_is_not_the_trainings(self):  # C08
        self.write_adapter()
        ids = [0, 2, 5, 9, 1]
        (self.adapter / "hexport_training_sample.json").write_text(json.dumps(
            {"messages": [{"role": "user", "content": "w5 w8"}], "input_ids": ids}))
        self.refused(self.merge(), 1, "first differing token 3", "w9", "w8")

    # ---- refused: exit 2 ----

    def test_merge_does_not_quantize(self):  # L21
        self.refused(self.merge("--dtype", "int4"), 2, "--dtype", "int4", "hexport build")

    def test_empty_placeholders(self):  # L11
        self.config["modules_to_save"] = ["lm_head"]
        self.tensors["base_model.model.lm_head.weight"] = ("F32", [0], [])
        self.refused(self.merge(), 2, "lm_head")

    def test_other_method(self):
        self.config["peft_type"] = "IA3"
        self.refused(self.merge(), 2, "IA3")

    def test_quantized_base(self):  # L16
        tensors = safetensors_io.read(self.base / "model.safetensors")
        name = "model.layers.0.self_attn.q_proj.weight"
        tensors[name] = ("U8", [512, 1], [0] * 512)
        tensors[name + ".absmax"] = ("F32", [16], [0.0] * 16)
        tensors[name + ".quant_map"] = ("F32", [16], [0.0] * 16)
        safetensors_io.write(self.base / "model.safetensors", tensors)
        self.refused(self.merge(), 2, "bitsandbytes")

    def test_output_exists(self):
        self.assertEqual(self.merge().returncode, 0)
        result = self.merge()
        self.assertEqual(result.returncode, 2)
        self.assertIn("--force", result.stderr)
        self.assertEqual(self.merge("--force").returncode, 0)

    def test_force_replaces_merged_models_only(self):
        self.out.mkdir()
        (self.out / "thesis.txt").write_text("mine")
        self.assertEqual(self.merge("--force").returncode, 2)
        self.assertEqual((self.out / "thesis.txt").read_text(), "mine")

    def test_merging_twice(self):  # L14
        self.assertEqual(self.merge().returncode, 0)
        again = self.folder / "again"
        result = run("merge", "--base", self.out, "--adapter", self.adapter, "--out", again)
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertFalse(again.exists())

    def test_tokenizer_with_ids_beyond_the_rows(self):  # L10, T09
        (self.base / "tokenizer.json").write_text(tokenizer_json(words=70))
        self.refused(self.merge(), 2, "64")

    def test_trainers_template_differs(self):
        self.write_adapter()
        (self.adapter / "tokenizer.json").write_text(tokenizer_json())
        other = CHATML.replace("m.role + ' '", "m.role + ' w7 '")
        (self.adapter / "chat_template.jinja").write_text(other)
        self.refused(self.merge(), 2, "first differing token 2", "--template")
        self.assertEqual(self.merge("--template", "adapter").returncode, 0)
        self.assertEqual((self.out / "chat_template.jinja").read_text(), other)
        self.assertEqual(self.merge("--template", "base", "--force").returncode, 0)
        self.assertEqual((self.out / "chat_template.jinja").read_text(), CHATML)

    def test_folder_of_checkpoints(self):
        self.write_adapter()
        runs = self.folder / "runs"
        runs.mkdir()
        shutil.move(self.adapter, runs / "checkpoint-200")
        shutil.copytree(runs / "checkpoint-200", runs / "checkpoint-30")
        result = run("merge", "--base", self.base, "--adapter", runs, "--out", self.out)
        self.refused(result, 2, "checkpoint-200")

    # ---- LLaMA-Factory, inspect, build ----

    def test_llama_factory_folder(self):
        self.write_adapter()
        (self.adapter / "training_args.yaml").write_text("template: qwen\nfinetuning_type: lora\ndataset: mine\n")
        (self.adapter / "trainer_state.json").write_text(json.dumps({"global_step": 12, "log_history": [{"loss": 0.5}]}))
        result = self.merge("--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["adapters"][0]["trainer"]["trainer"], "LLaMA-Factory")
        self.assertEqual(report["adapters"][0]["trainer"]["template"], "qwen")
        self.assertTrue(any("qwen" in w for w in report["warnings"]), report["warnings"])

    def test_inspect_an_adapter(self):
        self.config.update(use_rslora=True, rank_pattern={"q_proj": 4}, base_model_name_or_path="some/base")
        self.write_adapter()
        result = run("inspect", self.adapter, "--base", self.base, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["kind"], "adapter")
        self.assertTrue(report["use_rslora"])
        self.assertEqual(report["fit"]["matched"], len(self.tensors))
        self.assertIn("hexport merge", report["plan"])
        screen = run("inspect", self.adapter).stdout
        for word in ("rsLoRA", "some/base", "r 4"):
            self.assertIn(word, screen)
        self.assertLess(len(screen.splitlines()), 24)

    def test_build_merges_on_the_way(self):
        self.write_adapter()
        bundle = self.folder / "bundle"
        arguments = ["build", "--model", self.base, "--adapter", self.adapter, "--calibration", self.samples,
                     "--context", "32", "--ar", "8", "--no-weight-shared", "--weights", "lpbq", "--block", "16",
                     "--out", bundle]
        result = run(*arguments, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["stages"][0]["name"], "merge")
        manifest = json.loads((bundle / "manifest.json").read_text())
        self.assertEqual(manifest["weights"], "lpbq")  # L21: what was asked for is what is stated
        self.assertTrue((self.folder / "bundle-merged" / "hexport_merge.json").exists())
        # Not merged again, and verify finds the merged model.
        result = run(*arguments, "--force", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(json.loads(result.stdout)["stages"][0]["reused"])
        self.assertIn(run("verify", bundle, "--no-emulator", "--json").returncode, (0, 1))

    def test_build_stops_at_a_failed_merge(self):
        self.tensors = {k.replace("model.layers", "other.layers"): v for k, v in self.tensors.items()}
        self.write_adapter()
        result = run("build", "--model", self.base, "--adapter", self.adapter, "--out", self.folder / "bundle",
                     "--context", "32", "--ar", "8")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertFalse((self.folder / "bundle").exists())


if __name__ == "__main__":
    HEXPORT, TINY = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=1)
