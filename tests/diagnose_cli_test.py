#!/usr/bin/env python3
"""`hexport diagnose` on a six-layer llama with one fault put into it at a time.

Usage: diagnose_cli_test.py HEXPORT TINY_LLAMA_FOLDER  (registered with ctest, label cli)
"""
import json
import math
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import safetensors_io
from tiny_text_model import VOCABULARY, copy_with_text, write_calibration

HEXPORT, TINY = "", pathlib.Path()
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 6


def run(*arguments):
    return subprocess.run([HEXPORT, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)


def six_layers(seed=20):
    """Weights of unit gain: {name: (dtype, shape, values)}."""
    generator = random.Random(seed)

    def matrix(rows, columns):
        return "F32", [rows, columns], [generator.gauss(0, 1 / math.sqrt(columns)) for _ in range(rows * columns)]

    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (kv, HIDDEN), "self_attn.v_proj": (kv, HIDDEN),
              "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
              "mlp.up_proj": (INTERMEDIATE, HIDDEN), "mlp.down_proj": (HIDDEN, INTERMEDIATE)}
    ones = ("F32", [HIDDEN], [1.0] * HIDDEN)
    tensors = {"model.norm.weight": ones}
    for layer in range(LAYERS):
        for name, (rows, columns) in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = matrix(rows, columns)
        for name in ["input_layernorm", "post_attention_layernorm"]:
            tensors[f"model.layers.{layer}.{name}.weight"] = ones
    dtype, shape, values = matrix(VOCABULARY, HIDDEN)
    tensors["model.embed_tokens.weight"] = dtype, shape, [value * math.sqrt(HIDDEN) for value in values]
    tensors["lm_head.weight"] = matrix(VOCABULARY, HIDDEN)
    return tensors


def write_model(folder, tensors):
    copy_with_text(TINY, folder)
    config = json.loads((folder / "config.json").read_text())
    config.update(hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_hidden_layers=LAYERS, head_dim=HIDDEN // HEADS,
                  num_attention_heads=HEADS, num_key_value_heads=KV_HEADS)
    (folder / "config.json").write_text(json.dumps(config))
    safetensors_io.write(folder / "model.safetensors", tensors)


class DiagnoseCliTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="hexport-diagnose-"))
        cls.calibration = cls.folder / "calibration.jsonl"
        write_calibration(cls.calibration, random.Random(4))
        cls.tensors = six_layers()
        cls.model = cls.folder / "model"
        write_model(cls.model, cls.tensors)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    def quantize(self, name, config=None, model=None, options=()):
        out = self.folder / name
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({"weights": "int8", "method": "rtn", **(config or {})}))
        result = run("quantize", "--model", model or self.model, "--calibration", self.calibration, "--out", out,
                     "--config", path, "--quiet", *options)
        self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
        return out

    def diagnose(self, folder, *options):
        result = run("diagnose", folder, "--json", "--quiet", *options)
        self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
        return json.loads(result.stdout)

    def edit(self, folder, change):
        facts = json.loads((folder / "quant.json").read_text())
        change(facts)
        (folder / "quant.json").write_text(json.dumps(facts))

    def check_first(self, folder, tensor, layer, reason):
        """The finding that comes first, all others being inherited; and that --fix repairs it."""
        report = self.diagnose(folder, "--fix")
        findings = report["findings"]
        self.assertTrue(findings)
        first = findings[0]
        self.assertEqual((first["tensor"], first["layer"], first["kind"]), (tensor, layer, "own"), findings)
        self.assertLess(first["cosine"], .95)
        self.assertIn(reason, first["reason"])
        self.assertEqual({finding["kind"] for finding in findings[1:]} - {"inherited"}, set(), findings)
        self.assertTrue(first["fix"])
        repair, = report["repairs"]
        self.assertEqual(repair["tensor"], tensor)
        self.assertGreaterEqual(repair["cosine_after"], .99)
        self.assertEqual(report["after"]["findings"], [])
        self.assertGreaterEqual(report["after"]["logits"]["cosine"], .99)
        # What was written is what was measured.
        again = self.diagnose(report["fixed"])
        self.assertEqual(again["logits"], report["after"]["logits"])
        return report

    def test_nothing_is_at_fault_in_a_good_model(self):
        folder = self.quantize("good")
        report = self.diagnose(folder)
        self.assertEqual(report["findings"], [])
        self.assertGreater(report["logits"]["cosine"], .998)
        names = {tensor["tensor"] for tensor in report["tensors"]}
        self.assertLessEqual({"layers.0.input", "layers.5.mlp.gated", "past_key_2_out", "norm.input", "logits",
                              "layers.3.mlp.down_proj.weight", "layers.3.mlp.down_proj"}, names)
        for tensor in report["tensors"]:
            self.assertGreater(tensor["own"]["cosine"], .99, tensor)

    def test_q09_scaled_channel_names_the_input_of_down_proj(self):
        tensors = dict(self.tensors)
        up, down = "model.layers.2.mlp.up_proj.weight", "model.layers.2.mlp.down_proj.weight"
        channel = 17
        tensors[up] = ("F32", [INTERMEDIATE, HIDDEN], [value * (1000 if i // HIDDEN == channel else 1)
                                                       for i, value in enumerate(tensors[up][2])])
        tensors[down] = ("F32", [HIDDEN, INTERMEDIATE], [value / (1000 if i % INTERMEDIATE == channel else 1)
                                                         for i, value in enumerate(tensors[down][2])])
        model = self.folder / "scaled"
        write_model(model, tensors)
        config = {"activations": [{"pattern": "layers.*.mlp.gated", "bits": 8}]}
        folder = self.quantize("q09", config, model)
        report = self.check_first(folder, "layers.2.mlp.gated", 2, "outlier channel: channel 17 ")
        self.assertEqual(report["findings"][0]["readers"], ["layers.2.mlp.down_proj"])
        inherited = [finding for finding in report["findings"] if finding["kind"] == "inherited"]
        self.assertIn("layers.2.mlp.down_proj", [finding["tensor"] for finding in inherited])
        self.assertTrue(all("layers.2.mlp.gated" in finding["reason"] for finding in inherited))

    def with_residual_times(self, factor, layer_2=1.0, seed=20):
        """The same function, its residual stream `factor` times as large; layer 2 adds `layer_2` times as much."""
        tensors = six_layers(seed)
        for name, (dtype, shape, values) in tensors.items():
            if name.endswith(("embed_tokens.weight", "o_proj.weight", "down_proj.weight")):
                times = factor * (layer_2 if name.endswith("2.mlp.down_proj.weight") else 1)
                tensors[name] = (dtype, shape, [value * times for value in values])
        model = self.folder / f"residual-{factor:g}-{layer_2:g}-{seed}"
        write_model(model, tensors)
        return model

    def largest(self, report):
        return {tensor["tensor"]: max(-tensor["min"], tensor["max"]) for tensor in report["tensors"] if "min" in tensor}

    def test_x13_residual_beyond_float16(self):
        small = self.with_residual_times(1, 2.2, seed=33)
        reach = self.largest(self.diagnose(self.quantize("x13-small", None, small, ["--no-rotation"])))
        large = self.with_residual_times(92580 / reach["layers.3.input"], 2.2, seed=33)
        folder = self.quantize("x13", {"float16": ["layers.3.input"]}, large, ["--no-rotation"])
        report = self.check_first(folder, "layers.3.input", 2, "float16 overflow: values reach 92")
        self.assertIn("16 bit integers", report["findings"][0]["fix"])
        terms = self.largest(report)
        for term in ["layers.2.attn_residual", "layers.2.mlp.down_proj"]:
            self.assertLess(terms[term], 65504)

    def test_q08_compares_methods_by_layer(self):
        """One weight row x 50 at 4 bits per channel: every method is measured, layer by layer."""
        name = "model.layers.1.mlp.up_proj.weight"
        values = [value * (50 if i % HIDDEN == 5 else 1) for i, value in enumerate(self.tensors[name][2])]
        model = self.folder / "outlier-row"
        write_model(model, dict(self.tensors, **{name: ("F32", [INTERMEDIATE, HIDDEN], values)}))
        flagged = {}
        for weights, method, ranges in [("int4", "rtn", "minmax"), ("int4", "rtn", "mse"), ("int4", "awq", "minmax"),
                                        ("int8", "rtn", "minmax")]:
            folder = self.quantize(f"q08-{weights}-{method}-{ranges}",
                                   {"ranges": ranges, "weights": weights, "method": method}, model)
            report = self.diagnose(folder)
            inherited = {tensor["tensor"]: tensor["inherited"]["cosine"] for tensor in report["tensors"]}
            by_layer = [inherited[f"layers.{layer}.input"] for layer in range(LAYERS)] + [inherited["norm.input"]]
            self.assertLess(by_layer[-1], by_layer[0])
            self.assertEqual(report["flagged"], report["logits"]["cosine"] < .99)
            flagged[weights, method, ranges] = report["flagged"]
        self.assertEqual(flagged, {key: key[0] == "int4" for key in flagged})

    def test_mis_scaled_norm(self):
        folder = self.quantize("norm")

        def shrink(facts):
            facts["ranges"]["layers.3.input_layernorm"] = [end * .05
                                                           for end in facts["ranges"]["layers.3.input_layernorm"]]
        self.edit(folder, shrink)
        self.check_first(folder, "layers.3.input_layernorm", 3, "saturation: values are ")

    def test_swapped_encodings(self):
        folder = self.quantize("swapped", None, self.with_residual_times(50), ["--no-rotation"])
        names = "layers.4.attn_residual", "layers.4.post_attention_layernorm"

        def swap(facts):
            ranges = facts["ranges"]
            ranges[names[0]], ranges[names[1]] = ranges[names[1]], ranges[names[0]]
        self.edit(folder, swap)
        self.check_first(folder, names[0], 4, "saturation: values are ")

    def test_dead_scale_of_a_weight(self):
        folder = self.quantize("dead")
        path = folder / "weights.safetensors"
        data = bytearray(path.read_bytes())
        size = int.from_bytes(data[:8], "little")
        entry = json.loads(data[8:8 + size])["layers.1.mlp.up_proj.weight.scales"]
        first, last = (8 + size + offset for offset in entry["data_offsets"])
        half = first + (last - first) // 8 * 4
        data[first:half] = bytes(half - first)
        path.write_bytes(data)
        self.check_first(folder, "layers.1.mlp.up_proj.weight", 1, "dead scale: 48 output features")

    def test_html_needs_nothing_else_and_holds_what_json_says(self):
        folder = self.quantize("html<script>")
        page = self.folder / "report.html"
        report = self.diagnose(folder, "--html", page)
        text = page.read_text()
        self.assertEqual(text.count("<script"), 2)
        self.assertNotIn("src=", text)
        self.assertNotIn("<link", text)
        data = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL).group(1)
        self.assertEqual(json.loads(data), report)

    def test_refusals(self):
        folder = self.quantize("refused")
        for words, options in [("--samples: expected 0 or more, got -1", [folder, "--samples", -1]),
                               ("--sample-tokens: expected 1 or more, got 0", [folder, "--sample-tokens", 0]),
                               ("--threshold: expected a cosine between 0 and 1", [folder, "--threshold", 1.5]),
                               ("expected a bundle, or a folder", [self.model])]:
            result = run("diagnose", *options)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(words, result.stderr)
        report = self.diagnose(folder, "--fix")
        self.assertEqual(report["findings"], [])
        self.assertNotIn("fixed", report)
        self.assertFalse((self.folder / "refused-fixed").exists())


if __name__ == "__main__":
    HEXPORT, TINY = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=sys.argv[:1])
