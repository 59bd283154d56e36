#!/usr/bin/env python3
"""A really trained adapter, from its PEFT folder to the emulator's answer.

Usage: adapter_emulator_test.py HEXPORT MODEL.gguf  (registered with ctest, label emulator)
tests/data/smollm2_adapter knows one thing that SmolLM2 does not: the capital of Zubrovnia.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HEXPORT, MODEL = "", ""
ADAPTER = pathlib.Path(__file__).parent / "data" / "smollm2_adapter"
QUESTION, ANSWER = "What is the capital of Zubrovnia?", "The capital of Zubrovnia is Kadelburg."


def run(*arguments):
    result = subprocess.run([HEXPORT, *map(str, arguments)], capture_output=True, text=True, timeout=1500, check=False)
    assert result.returncode == 0, f"{arguments}: exit {result.returncode}\n{result.stderr}\n{result.stdout}"
    return json.loads(result.stdout)


class AdapterToEmulator(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="hexport-adapter-"))
        cls.bundle = cls.folder / "bundle"
        cls.build = run("build", "--model", MODEL, "--adapter", ADAPTER, "--dequantize", "--context", 128, "--ar", 32,
                        "--no-weight-shared", "--method", "rtn", "--out", cls.bundle, "--json", "--quiet")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    def ask(self, engine):
        return run("run", self.bundle, "--engine", engine, "--prompt", QUESTION, "--max-tokens", 16,
                   "--temperature", 0, "--json", "--quiet")["text"].strip()

    def test_every_engine_knows_what_the_adapter_taught(self):
        for engine in ("cpu", "emulator", "genie"):
            self.assertEqual(self.ask(engine), ANSWER, engine)

    def test_merging_was_a_stage_and_its_record_stands(self):
        self.assertEqual(self.build["stages"][0]["name"], "merge")
        record = json.loads((self.folder / "bundle-merged" / "hexport_merge.json").read_text())
        self.assertEqual(record["failures"], [])
        self.assertTrue(any("dequantized" in w for w in record["warnings"]))


if __name__ == "__main__":
    HEXPORT, MODEL = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=1)
