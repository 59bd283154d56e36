#!/usr/bin/env python3
"""`hexport quantize` as a user runs it, on a tiny llama.

Usage: quantize_cli_test.py HEXPORT TINY_LLAMA_FOLDER  (registered with ctest, label cli)
"""
import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from tiny_text_model import copy_with_text, words, write_calibration

HEXPORT, TINY = "", pathlib.Path()


def run(*arguments):
    return subprocess.run([HEXPORT, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)


class QuantizeCliTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="hexport-quantize-"))
        cls.model = cls.folder / "model"
        copy_with_text(TINY, cls.model)
        generator = random.Random(4)
        cls.calibration = cls.folder / "calibration.jsonl"
        write_calibration(cls.calibration, generator)
        cls.text = cls.folder / "heldout.txt"
        cls.text.write_text("\n".join(words(generator, 40) for _ in range(10)))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    def quantize(self, name, *options, model=None):
        out = self.folder / name
        result = run("quantize", "--model", model or self.model, "--calibration", self.calibration, "--out", out, "--json",
                     "--quiet", *options)
        self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
        return out, json.loads(result.stdout)

    def test_folds_of_every_method(self):
        config = self.folder / "folds.json"
        config.write_text('{"fold_channels": true}')
        for method in ["awq", "smoothquant", "rtn"]:
            out, report = self.quantize(f"folded-{method}", "--method", method, "--weights", "int8", "--config", config)
            self.assertEqual([stage["name"] for stage in report["stages"]], ["channels", "weights", "ranges"])
            self.assertTrue((out / "folds.safetensors").exists())
            folded = self.evaluate(out, "cpu")
            self.assertGreater(folded["cosine_vs_float"], .998)
        out, report = self.quantize("not-folded", "--method", "rtn")
        self.assertEqual([stage["name"] for stage in report["stages"]], ["weights", "ranges"])
        self.assertFalse((out / "folds.safetensors").exists())

    def evaluate(self, out, engine):
        result = run("eval", out, "--text", self.text, "--engine", engine, "--json", "--quiet")
        self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
        return json.loads(result.stdout)

    def refused(self, code, words, *options, model=None):
        out = self.folder / "refused"
        result = run("quantize", "--model", model or self.model, "--out", out, *options)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        self.assertIn(words, result.stderr)
        self.assertFalse(out.exists())

    def test_methods_lose_less_one_after_the_other(self):
        kl = {}
        for method in ("rtn", "gptq"):
            out, _ = self.quantize(method, "--method", method, "--weights", "lpbq", "--block", "16")
            kl[method] = self.evaluate(out, "cpu")["kl_vs_float"]
        self.assertGreater(kl["gptq"], 0)
        self.assertLess(kl["gptq"], kl["rtn"])

    def test_eval_knows_the_bits_and_the_engines(self):
        out, report = self.quantize("int8", "--weights", "int8")
        cpu, qdq, floats = (self.evaluate(out, engine) for engine in ("cpu", "qdq", "float"))
        self.assertAlmostEqual(cpu["bits_per_weight"], report["bits_per_weight"], 9)
        self.assertGreater(report["bits_per_weight"], 8)
        self.assertLess(cpu["kl_vs_float"], 5e-3)
        self.assertGreater(qdq["kl_vs_float"], 0)
        self.assertLess(qdq["kl_vs_float"], 1e-2)
        self.assertEqual(floats["perplexity"], cpu["perplexity_float"])

    def packed(self, name):
        """One of tests/data/packed, with a tokenizer."""
        folder = self.folder / f"packed-{name}"
        if not folder.exists():
            copy_with_text(TINY.parent.parent / "packed" / name, folder)
        return folder

    def test_import_takes_codes_over(self):
        for name, bits in (("gptq_lpbq", 4), ("gptq_int4", 4), ("gptq_int8", 8)):
            out, report = self.quantize(f"imported-{name}", "--method", "import", model=self.packed(name))
            self.assertEqual(report["import"], {"held": 14, "rounded": 0, "requantized": 0})
            self.assertEqual([stage["name"] for stage in report["stages"]], ["import", "weights", "ranges"])
            self.assertFalse([warning for warning in report["warnings"] if "anew" in warning])
            self.assertGreaterEqual(report["bits_per_weight"], bits)
            self.assertLess(report["bits_per_weight"], bits + 1.6)
            self.assertGreater(self.evaluate(out, "cpu")["cosine_vs_float"], .9999)  # lm_head is int8

    def test_import_quantizes_anew_what_the_npu_cannot_hold(self):
        out, report = self.quantize("imported-awq", "--method", "import", "--weights", "lpbq", "--block", "16",
                                    model=self.packed("awq"))
        self.assertEqual(report["import"], {"held": 0, "rounded": 0, "requantized": 14})
        losses = json.loads((out / "quant.json").read_text())["linears"]
        self.assertEqual({linear["method"] for linear in losses}, {"gptq"})
        self.assertIn("zero points", " ".join(report["warnings"]))
        self.assertGreater(self.evaluate(out, "cpu")["cosine_vs_float"], .93)
        self.refused(2, "layers.0.self_attn.q_proj as F32", "--method", "import")
        self.refused(2, "--auto", "--method", "import", "--weights", "lpbq", "--auto", "6",
                     model=self.packed("gptq_int4"))

    def test_auto_spends_at_most_the_budget(self):
        plain, small = self.quantize("int4", "--weights", "lpbq", "--block", "16")
        budget = small["bits_per_weight"] + 1.0
        out, large = self.quantize("auto", "--weights", "lpbq", "--block", "16", "--auto", budget)
        self.assertGreater(large["bits_per_weight"], small["bits_per_weight"] + 0.5)
        self.assertLessEqual(large["bits_per_weight"], budget)
        self.assertLess(self.evaluate(out, "cpu")["kl_vs_float"], self.evaluate(plain, "cpu")["kl_vs_float"])
        self.refused(2, "--auto", "--weights", "lpbq", "--auto", "3", "--calibration", self.calibration)

    def test_config_file_and_its_faults(self):
        config = self.folder / "config.json"
        config.write_text(json.dumps({"weights": "lpbq", "block_size": 16, "exclude": ["layers.0.*"],
                                      "linears": [{"pattern": "*.v_proj", "weights": "int8"}]}))
        out, _ = self.quantize("config", "--config", config)
        linears = {l["name"]: l["weights"] for l in json.loads((out / "quant.json").read_text())["linears"]}
        self.assertEqual(linears["layers.0.mlp.up_proj.weight"], "int8")
        self.assertEqual(linears["layers.1.self_attn.v_proj.weight"], "int8")
        self.assertEqual(linears["layers.1.mlp.up_proj.weight"], "lpbq")
        config.write_text(json.dumps({"linears": [{"pattern": "layers.*.mlp.dwn_proj", "weights": "int8"}]}))
        self.refused(2, "dwn_proj", "--config", config)

    def test_an_interrupted_run_goes_on(self):
        out = self.folder / "resumed"
        command = [HEXPORT, "quantize", "--model", self.model, "--calibration", self.calibration, "--out", out,
                   "--quiet"]
        child = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        work = self.folder / ".resumed.hexport-work"
        end = time.monotonic() + 60
        while child.poll() is None and not list(work.glob("layer_0_*")) and time.monotonic() < end:
            time.sleep(0.002)
        child.send_signal(signal.SIGKILL)
        child.wait()
        self.quantize("resumed")
        whole, _ = self.quantize("whole")
        self.assertEqual((out / "weights.safetensors").read_bytes(), (whole / "weights.safetensors").read_bytes())
        self.assertFalse(work.exists())

    def test_bad_options_are_named(self):
        self.refused(2, "--block: expected 16, 32 or 64, got 5", "--weights", "lpbq", "--block", "5")
        self.refused(2, "--method", "--method", "magic")
        self.refused(2, "--kv-bits", "--kv-bits", "4")
        self.refused(2, "--samples", "--samples", "-1")
        occupied = self.folder / "occupied"
        occupied.mkdir()
        (occupied / "mine.txt").write_text("keep")
        result = run("quantize", "--model", self.model, "--out", occupied, "--force")
        self.assertEqual(result.returncode, 2)
        self.assertEqual((occupied / "mine.txt").read_text(), "keep")


if __name__ == "__main__":
    HEXPORT, TINY = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0]], verbosity=2)
