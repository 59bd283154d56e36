#!/usr/bin/env python3
"""`hexport eval` as a user runs it, on a tiny llama and on a bundle built from it.

Usage: eval_cli_test.py HEXPORT TINY_LLAMA_FOLDER  (registered with ctest, label cli)
"""
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

from tiny_text_model import copy_with_text, tokenizer_json, words

HEXPORT, TINY = "", pathlib.Path()


def run(*arguments):
    return subprocess.run([HEXPORT, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)


class EvalCliTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="hexport-eval-"))
        cls.model = cls.folder / "model"
        copy_with_text(TINY, cls.model)
        generator = random.Random(3)
        cls.text = cls.folder / "text.txt"
        cls.text.write_text("\n\n".join(words(generator, 20) for _ in range(6)))
        cls.bundle = cls.folder / "bundle"
        cls.built = run("build", "--model", cls.model, "--soc", "sm8650", "--context", "64", "--ar", "16",
                        "--weights", "int8", "--calibration", cls.text, "--out", cls.bundle, "--quiet")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    def evaluated(self, *arguments):
        result = run("eval", *arguments, "--json", "--quiet")
        self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
        return json.loads(result.stdout)

    def refused(self, code, words, *arguments):
        result = run("eval", *arguments)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        self.assertIn(words, result.stderr)

    @staticmethod
    def int8_bits():
        """8 a code and 32 a channel, of all linears but lm_head."""
        config = json.loads((TINY / "config.json").read_text())
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        head = config.get("head_dim") or hidden // config["num_attention_heads"]
        query, key = head * config["num_attention_heads"], head * config["num_key_value_heads"]
        shapes = [(hidden, query), (hidden, key), (hidden, key), (query, hidden), (hidden, inner), (hidden, inner),
                  (inner, hidden)]
        return sum(8 * i * o + 32 * o for i, o in shapes) / sum(i * o for i, o in shapes)

    def test_a_checkpoint_agrees_with_itself(self):
        got = self.evaluated(self.model, "--text", self.text)
        self.assertEqual(got["engine"], "float")
        self.assertEqual(got["tokens"], 119)  # 120 words in one window
        self.assertGreater(got["perplexity"], 1)
        self.assertEqual((got["perplexity_ratio"], got["top1_vs_float"], got["kl_vs_float"]), (1, 1, 0))

    def test_a_reference_equal_to_the_model_gives_the_same_figures(self):
        copy = self.folder / "copy"
        shutil.copytree(self.model, copy, dirs_exist_ok=True)
        got = self.evaluated(copy, "--reference", self.model, "--text", self.text)
        alone = self.evaluated(self.model, "--text", self.text)
        self.assertAlmostEqual(got["perplexity"], alone["perplexity"], places=9)
        self.assertAlmostEqual(got["perplexity_ratio"], 1, places=9)
        self.assertEqual(got["top1_vs_float"], 1)
        self.assertLess(got["kl_vs_float"], 1e-9)

    def test_context_and_max_tokens_cut_the_text(self):
        got = self.evaluated(self.model, "--text", self.text, "--context", "16", "--max-tokens", "40")
        self.assertEqual(got["context"], 16)
        self.assertEqual(got["tokens"], 15 + 15 + 7)

    def test_a_bundle_on_both_host_engines(self):
        self.assertEqual(self.built.returncode, 0, self.built.stderr)
        for engine in ("cpu", "qdq"):
            got = self.evaluated(self.bundle, "--engine", engine, "--text", self.text)
            self.assertEqual(got["context"], 64)
            self.assertEqual(got["tokens"], 63 + 55)
            self.assertGreater(got["cosine_vs_float"], .99)
            self.assertLess(abs(got["perplexity_ratio"] - 1), .05)
            self.assertGreater(got["kl_vs_float"], 0)
            self.assertAlmostEqual(got["bits_per_weight"], self.int8_bits(), places=9)

    def test_float_of_a_bundle_is_its_checkpoint(self):
        self.assertEqual(self.built.returncode, 0, self.built.stderr)
        got = self.evaluated(self.bundle, "--text", self.text)
        alone = self.evaluated(self.model, "--text", self.text, "--context", "64")
        self.assertAlmostEqual(got["perplexity"], alone["perplexity"], places=9)

    def test_tasks(self):
        tasks = self.folder / "tasks.jsonl"
        tasks.write_text("".join(json.dumps({"question": f"w{i} w{i + 1}", "choices": [f"w{i + 2}", "w9 w3"],
                                             "answer": 0}) + "\n" for i in range(5, 9)))
        got = self.evaluated(self.model, "--tasks", tasks)
        self.assertEqual(got["tasks"]["questions"], 4)
        self.assertEqual(got["tasks"]["acc"], got["tasks"]["float"]["acc"])
        self.assertNotIn("perplexity", got)

    def test_plain_output_names_the_figures(self):
        result = run("eval", self.model, "--text", self.text, "--quiet")
        self.assertEqual(result.returncode, 0, result.stderr)
        for words in ("perplexity", "top-1 agreement", "KL(float || engine)", "bits per weight"):
            self.assertIn(words, result.stdout)

    def test_refuses_bad_input(self):
        broken = self.folder / "broken.jsonl"
        broken.write_text('{"question": "w5", "choices": ["w6", "w7"], "answer": 2}\n')
        self.refused(2, "pass --text, --tasks or both", self.model)
        self.refused(2, "broken.jsonl:1", self.model, "--tasks", broken)
        self.refused(2, "expected float, the only engine of a checkpoint", self.model, "--engine", "qdq",
                     "--text", self.text)
        self.refused(2, "expected float, cpu, qdq or emulator", self.model, "--engine", "npu", "--text", self.text)
        self.refused(2, "--context: expected 2 or more", self.model, "--text", self.text, "--context", "1")
        self.refused(2, "missing.txt", self.model, "--text", self.folder / "missing.txt")

    def test_refuses_a_context_longer_than_the_bundles(self):
        self.assertEqual(self.built.returncode, 0, self.built.stderr)
        self.refused(2, "at most the bundle's 64", self.bundle, "--engine", "cpu", "--text", self.text,
                     "--context", "65")

    def test_refuses_another_tokenizer(self):
        other = self.folder / "other"
        shutil.copytree(self.model, other, dirs_exist_ok=True)
        swapped = tokenizer_json().replace('"<unk>": 2', '"<unk>": 3').replace('"w3": 3', '"w3": 2')
        (other / "tokenizer.json").write_text(swapped.replace('"id": 2', '"id": 3'))
        self.refused(2, "expected the target's tokenizer", self.model, "--reference", other, "--text", self.text)


if __name__ == "__main__":
    HEXPORT, TINY = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=sys.argv[:1])
