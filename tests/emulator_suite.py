#!/usr/bin/env python3
"""SmolLM2 through Qualcomm's real compiler, emulator and Genie, as small as it stays meaningful.

Usage: emulator_suite.py HEXPORT MODEL.gguf  (registered with ctest, label emulator)
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HEXPORT, MODEL = "", ""
TINY = pathlib.Path(__file__).parent / "data" / "tiny"
QUESTION = "What is the capital of France?"


def run(*arguments, code=0):
    result = subprocess.run([HEXPORT, *map(str, arguments)], capture_output=True, text=True, timeout=1500, check=False)
    assert result.returncode == code, f"{arguments}: exit {result.returncode}\n{result.stderr}"
    return result.stdout


class EmulatorSuite(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="hexport-emulator-"))
        cls.bundle = cls.folder / "w8"
        cls.build = json.loads(run("build", "--model", MODEL, "--out", cls.bundle, "--soc", "sm8650", "--context", 192,
                                   "--ar", 64, "--json", "--quiet"))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    def ask(self, engine):
        return json.loads(run("run", self.bundle, "--engine", engine, "--prompt", QUESTION, "--max-tokens", 6,
                              "--temperature", 0, "--json", "--quiet"))

    def test_report_holds_memory_and_time_of_each_stage(self):
        report = json.loads((self.bundle / "report.json").read_text())
        names = [stage["name"] for stage in report["stages"]]
        for part in ("checkpoint", "calibrate", "quantize", "graphs", "compile weight-shared", "bundle"):
            self.assertIn(part, names)
        for stage in report["stages"]:
            self.assertGreater(stage["peak_rss_mb"], 0)
            self.assertLessEqual(stage["peak_rss_mb"], 1500)
            if stage["name"].startswith("compile"):
                self.assertGreater(stage["child_peak_rss_mb"], 500)

    def test_bundle_is_whole_and_nothing_else_is_left(self):
        facts = json.loads(run("inspect", self.bundle, "--hash", "--json"))
        self.assertEqual(facts["architecture"], "llama")
        self.assertEqual(facts["soc"], "sm8650")
        self.assertEqual([g["name"] for g in facts["graphs"]], ["prompt_ar64_cl192_1_of_1", "token_ar1_cl192_1_of_1"])
        listed = {f["path"] for f in facts["files"]} | {"manifest.json"}
        there = {str(p.relative_to(self.bundle)) for p in self.bundle.rglob("*") if p.is_file()}
        self.assertEqual(listed, there)
        self.assertEqual([p.name for p in self.folder.iterdir()], ["w8"])

    def test_same_build_again_is_up_to_date(self):
        again = json.loads(run("build", "--model", MODEL, "--out", self.bundle, "--soc", "sm8650", "--context", 192,
                               "--ar", 64, "--json", "--quiet"))
        self.assertTrue(again["up_to_date"])
        run("build", "--model", MODEL, "--out", self.bundle, "--soc", "sm8550", "--context", 192, "--ar", 64, code=2)

    def test_verify_meets_the_thresholds(self):
        # One of 169 tokens is .006; the bound of .95 is that of the whole text (tests/accept.sh).
        result = json.loads(run("verify", self.bundle, "--samples", 2, "--json", "--quiet",
                                "--min-top1", 0.94))
        self.assertGreaterEqual(result["cosine_float_qdq"], 0.997)
        self.assertGreaterEqual(result["cosine_qdq_emulator"], 0.995)
        self.assertGreaterEqual(result["top1_float_emulator"], 0.94)
        # The same codes and encodings, a layer at a time.
        report = json.loads(run("diagnose", self.bundle, "--samples", 2, "--json", "--quiet"))
        self.assertEqual(report["findings"], [])
        self.assertAlmostEqual(report["logits"]["cosine"], result["cosine_float_qdq"], delta=0.002)

    def test_engines_begin_alike(self):
        answers = {engine: self.ask(engine) for engine in ("cpu", "emulator", "genie")}
        for engine, answer in answers.items():
            self.assertIn("capital of France", answer["text"], engine)
            self.assertEqual(answer["generated_tokens"], len(answer["token_ids"]))
        self.assertEqual(answers["cpu"]["text"][:15], answers["emulator"]["text"][:15])
        self.assertEqual(answers["cpu"]["text"][:15], answers["genie"]["text"][:15])
        check = answers["emulator"]["qdq_check"]
        self.assertTrue(check["equal"] or check["first_difference"]["qdq_margin"] < 2.0, check)

    def test_prompt_that_does_not_fit_is_refused(self):
        for engine in ("cpu", "emulator", "genie"):
            run("run", self.bundle, "--engine", engine, "--prompt", "word " * 400, code=2)

    def test_damaged_bundle_is_noticed(self):
        copy = self.folder.parent / (self.folder.name + "-damaged")
        shutil.copytree(self.bundle, copy)
        try:
            path = copy / "qdq" / "weights.data"
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
            run("verify", copy, code=2)
        finally:
            shutil.rmtree(copy)


class TinyArchitectures(unittest.TestCase):
    """Random models of every architecture: the emulator computes what the quantized graph says."""

    def build_and_verify(self, architecture, *options, quantized=False, **changes):
        """`changes`: fields of config.json. The result holds the manifest's notes and files too. `quantized`: `options`
        are for `hexport quantize`, and what that writes is built."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="hexport-tiny-"))
        try:
            model = folder / "model"
            shutil.copytree(TINY / architecture, model)
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps(config | changes))
            letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,?"
            (model / "tokenizer.json").write_text(json.dumps({
                "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None,
                "decoder": None, "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(letters)}, "merges": []}}))
            calibration = folder / "text.txt"
            calibration.write_text("The quick brown fox jumps.\n\nPack my box, five dozen jugs?\n")
            given = ["--calibration", calibration, *options]
            if quantized:
                run("quantize", "--model", model, "--out", folder / "quantized", "--quiet", *given)
                model, given = folder / "quantized", []
            run("build", "--model", model, "--out", folder / "out", "--soc", "sm8750", "--context", 64, "--ar", 16,
                "--quiet", *given)
            result = json.loads(run("verify", folder / "out", "--json", "--quiet", "--min-cosine-float-qdq", 0,
                                    "--min-top1", 0))
            self.assertGreaterEqual(result["cosine_qdq_emulator"], 0.999, architecture)
            if "--weights" not in options:
                self.assertGreaterEqual(result["cosine_float_cpu"], 0.999, architecture)
            few = json.loads(run("verify", folder / "out", "--json", "--quiet", "--tokens", 10, "--no-emulator",
                                 "--min-cosine-float-qdq", 0, "--min-top1", 0))
            self.assertEqual(few["tokens"], 10)
            report = json.loads(run("diagnose", folder / "out", "--json", "--quiet"))
            self.assertAlmostEqual(report["logits"]["cosine"], result["cosine_float_qdq"], delta=0.002)
            if quantized:
                self.assertEqual(json.loads(run("diagnose", model, "--json", "--quiet"))["logits"], report["logits"])
            result["notes"] = json.loads((folder / "out" / "manifest.json").read_text())["notes"]
            result["genie"] = (folder / "out" / "genie_config.json").exists()
            return result
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def test_llama_lpbq(self):
        self.build_and_verify("llama", "--weights", "lpbq", "--block", 16)

    def test_llama_with_channel_folds(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
            config.write('{"fold_channels": true}')
            config.flush()
            self.build_and_verify("llama", "--config", config.name)

    def test_llama_built_from_what_quantize_wrote(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
            config.write('{"fold_channels": true, "weights": "lpbq", "block_size": 16}')
            config.flush()
            self.build_and_verify("llama", "--weights", "lpbq", "--config", config.name, quantized=True)

    def test_qwen2(self):
        self.assertGreaterEqual(self.build_and_verify("qwen2")["cosine_float_qdq"], 0.995)

    def test_mistral(self):
        # Its window of 6 is shorter than the context: a second mask instead of Genie's.
        result = self.build_and_verify("mistral")
        self.assertGreaterEqual(result["cosine_float_qdq"], 0.995)
        self.assertIn("sliding_attention_mask", result["notes"][0])
        self.assertFalse(result["genie"])

    def test_mistral_within_its_window(self):
        result = self.build_and_verify("mistral", sliding_window=64)
        self.assertGreaterEqual(result["cosine_float_qdq"], 0.995)
        self.assertEqual(result["notes"], [])
        self.assertTrue(result["genie"])

    def test_phi3(self):
        # Fused projections, RoPE over 12 of 16 elements, longrope's long factors (64 > 24).
        self.assertGreaterEqual(self.build_and_verify("phi3")["cosine_float_qdq"], 0.995)

    def test_smollm3(self):
        self.assertGreaterEqual(self.build_and_verify("smollm3")["cosine_float_qdq"], 0.995)

    def test_gemma3_text(self):
        # Two masks, two RoPEs, GELU, four norms a layer.
        self.assertGreaterEqual(self.build_and_verify("gemma3_text")["cosine_float_qdq"], 0.995)

    def test_qwen3(self):
        # Its per-head norm was computed wrongly for rank 4 by QAIRT 2.51 (cosine .54).
        self.assertGreaterEqual(self.build_and_verify("qwen3")["cosine_float_qdq"], 0.995)


if __name__ == "__main__":
    HEXPORT, MODEL = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=1)
