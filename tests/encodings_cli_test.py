#!/usr/bin/env python3
"""`hexport encodings` as a user runs it, on a tiny llama.

Usage: encodings_cli_test.py HEXPORT TINY_LLAMA_FOLDER  (registered with ctest, label cli)
"""
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

from tiny_text_model import copy_with_text, write_calibration

HEXPORT, TINY = "", pathlib.Path()
WEIGHT, ACTIVATION = "layers.0.mlp.down_proj.weight", "layers.1.mlp.gated"


def run(*arguments):
    return subprocess.run([HEXPORT, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)


def entry(entries, name):
    return next(e for e in entries if e["name"] == name)


class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="hexport-encodings-"))
        cls.model = cls.folder / "model"
        copy_with_text(TINY, cls.model)
        cls.calibration = cls.folder / "calibration.jsonl"
        write_calibration(cls.calibration, random.Random(4))
        cls.int8 = cls.quantize("int8")
        cls.lpbq = cls.quantize("lpbq", "--weights", "lpbq", "--block", "16")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    @classmethod
    def quantize(cls, name, *options):
        out = cls.folder / name
        result = run("quantize", "--model", cls.model, "--calibration", cls.calibration, "--out", out, "--quiet",
                     *options)
        assert result.returncode == 0, result.stderr + result.stdout
        return out

    def export(self, quantized, name, *options):
        out = self.folder / name
        result = run("encodings", "export", quantized, "-o", out, "--force", "--json", "--quiet", *options)
        self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
        return out, json.loads(result.stdout)

    def check(self, file, *options, code):
        result = run("encodings", "check", file, *options, "--json")
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return json.loads(result.stdout)

    def write(self, name, value):
        path = self.folder / name
        path.write_text(json.dumps(value))
        return path


class EncodingsCliTest(Models):
    def test_export_of_both_schemas_says_the_same(self):
        old, report = self.export(self.int8, "old.encodings", "--schema", "0.6.1")
        new, _ = self.export(self.int8, "new.encodings", "--schema", "1.0.0")
        old, new = json.loads(old.read_text()), json.loads(new.read_text())
        self.assertEqual((old["version"], new["version"]), ("0.6.1", "1.0.0"))
        self.assertEqual(report["activations"], len(old["activation_encodings"]))
        for group in ("activation_encodings", "param_encodings"):
            self.assertEqual(sorted(e["name"] for e in new[group]), sorted(old[group]))
            for e in new[group]:
                channels = old[group][e["name"]]
                self.assertEqual([c["scale"] for c in channels], e["scale"])
                self.assertEqual([c["offset"] for c in channels], e["offset"])
                self.assertEqual({c["bitwidth"] for c in channels}, {e["bw"]})
                self.assertEqual({c["is_symmetric"] for c in channels}, {str(e["is_sym"])})
                for c in channels:
                    self.assertAlmostEqual(c["min"], c["offset"] * c["scale"])
                    self.assertAlmostEqual(c["max"], (2 ** c["bitwidth"] - 1 + c["offset"]) * c["scale"])
        self.assertEqual(entry(new["param_encodings"], WEIGHT)["enc_type"], "PER_CHANNEL")

    def test_lpbq_needs_schema_1(self):
        file, _ = self.export(self.lpbq, "lpbq.encodings")
        weight = entry(json.loads(file.read_text())["param_encodings"], WEIGHT)
        self.assertEqual((weight["enc_type"], weight["bw"], weight["compressed_bw"], weight["block_size"]),
                         ("LPBQ", 8, 4, 16))
        self.assertTrue(all(1 <= i <= 16 for i in weight["per_block_int_scale"]))
        self.assertEqual(set(weight["offset"]), {-128})
        out = self.folder / "none.encodings"
        result = run("encodings", "export", self.lpbq, "--schema", "0.6.1", "-o", out)
        self.assertEqual(result.returncode, 2)
        self.assertIn("schema 0.6.1 has no LPBQ; write 1.0.0", result.stderr)
        self.assertFalse(out.exists())

    def test_the_graph_has_the_names(self):
        onnx = self.folder / "graph.onnx"
        file, _ = self.export(self.int8, "with_graph.encodings", "--onnx", onnx, "--ar", 8, "--context", 32)
        graph = onnx.read_bytes()
        encodings = json.loads(file.read_text())
        for e in encodings["activation_encodings"] + encodings["param_encodings"]:
            self.assertIn(e["name"].encode(), graph)

    def test_what_is_exported_fits(self):
        for quantized in (self.int8, self.lpbq):
            file, _ = self.export(quantized, "whole.encodings")
            for target in ([quantized], ["--model", self.model]):
                report = self.check(file, *target, code=0)
                self.assertEqual((report["errors"], report["findings"], report["warnings"]), (0, [], []))

    def test_Q10_four_faults_are_four_findings(self):
        file, _ = self.export(self.int8, "faults.encodings", "--schema", "0.6.1")
        value = json.loads(file.read_text())
        activations, params = value["activation_encodings"], value["param_encodings"]
        del params["layers.0.self_attn.v_proj.weight"]
        activations[WEIGHT] = params.pop(WEIGHT)
        params[ACTIVATION] = activations.pop(ACTIVATION)
        activations["layers.0.mlp.gatd"] = activations.pop("layers.0.mlp.gated")
        report = self.check(self.write("faults.encodings", value), self.int8, code=1)
        self.assertEqual({f["fault"]: f["tensor"] for f in report["findings"]},
                         {"missing": "layers.0.self_attn.v_proj.weight", "weight_among_activations": WEIGHT,
                          "activation_among_params": ACTIVATION, "unknown_name": "layers.0.mlp.gatd"})
        self.assertEqual(report["errors"], 4)
        plain = run("encodings", "check", self.folder / "faults.encodings", self.int8)
        self.assertEqual(plain.returncode, 1)
        self.assertIn('did you mean "layers.0.mlp.gated"?', plain.stdout)

    def test_Q13_absurd_ranges_are_named(self):
        file, _ = self.export(self.int8, "absurd.encodings")
        value = json.loads(file.read_text())
        entry(value["activation_encodings"], ACTIVATION).update(scale=[2.7e34 / 65535], offset=[0])
        report = self.check(self.write("absurd.encodings", value), self.int8, code=1)
        self.assertEqual([(f["fault"], f["tensor"]) for f in report["findings"]], [("absurd", ACTIVATION)])

    def test_bad_files_and_options_are_refused(self):
        def refused(words, *arguments):
            result = run("encodings", *arguments)
            self.assertEqual(result.returncode, 2, result.stderr + result.stdout)
            self.assertIn(words, result.stderr)
        future = self.write("future.encodings", {"version": "2.0.0", "encodings": []})
        refused("2.37", "check", future, self.int8)
        shape = self.write("shape.encodings", {"version": "1.0.0", "activation_encodings": [], "param_encodings": {}})
        refused("param_encodings: schema 1.0.0: expected a list", "check", shape, self.int8)
        refused("either a quantized model or --model, got none", "check", future)
        refused("either a quantized model or --model, got both", "check", future, self.int8, "--model", self.model)
        refused("--schema: expected schema 0.6.1 or 1.0.0", "export", self.int8, "--schema", "7", "-o", self.folder / "x")
        refused("exists; pass --force", "export", self.int8, "-o", self.calibration)
        refused("nowhere", "check", self.folder / "nowhere", self.int8)


class ImportTest(Models):
    """`hexport quantize --encodings`."""

    MIXED = {"weights": "int4", "method": "rtn", "kv_bits": 16, "exclude": ["layers.0.self_attn.q_proj"],
             "linears": [{"pattern": "layers.1.mlp.down_proj", "weights": "lpbq", "block_size": 16}],
             "activations": [{"pattern": "layers.0.mlp.gated", "bits": 8},
                             {"pattern": "layers.1.post_attention_layernorm", "bits": 8}],
             "float16": ["layers.1.input"]}

    def take(self, name, file, *options, code=0):
        out = self.folder / name
        result = run("quantize", "--model", self.model, "--encodings", file, "--calibration", self.calibration, "--out",
                     out, "--json", "--quiet", *options)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return out, result.stderr if code else json.loads(result.stdout)

    def test_round_trip_gives_the_same_file(self):
        config = self.write("mixed.json", self.MIXED)
        mixed = self.quantize("mixed", "--config", config)
        for name, quantized, schema in [("int8", self.int8, "0.6.1"), ("int8", self.int8, "1.0.0"),
                                        ("lpbq", self.lpbq, "1.0.0"), ("mixed", mixed, "1.0.0")]:
            with self.subTest(name=name, schema=schema):
                first, report = self.export(quantized, f"{name}.{schema}", "--schema", schema)
                imported, result = self.take(f"{name}-{schema}-taken", first)
                total = report["activations"] + report["params"]
                self.assertEqual(result["encodings"], {"in": total, "used": total})  # case Q12
                again, _ = self.export(imported, f"{name}.{schema}.again", "--schema", schema)
                self.assertEqual(first.read_text(), again.read_text())

    def test_weights_rounded_to_nearest_come_back_code_for_code(self):
        rounded = self.quantize("rounded", "--method", "rtn", "--weights", "lpbq", "--block", "16")
        file, _ = self.export(rounded, "rounded.encodings")
        imported, _ = self.take("rounded-taken", file)
        self.assertEqual((rounded / "weights.safetensors").read_bytes(), (imported / "weights.safetensors").read_bytes())
        report = json.loads(run("diagnose", imported, "--json", "--quiet").stdout)
        self.assertEqual(report["logits"], json.loads(run("diagnose", rounded, "--json", "--quiet").stdout)["logits"])

    def test_an_encoding_is_taken_as_it_stands(self):
        file, _ = self.export(self.int8, "exact.encodings")
        value = json.loads(file.read_text())
        changed = entry(value["activation_encodings"], ACTIVATION)
        changed["scale"], changed["offset"] = [0.0001234], [-30001]
        imported, _ = self.take("exact", self.write("exact-changed.encodings", value))
        again, _ = self.export(imported, "exact.again")
        got = entry(json.loads(again.read_text())["activation_encodings"], ACTIVATION)
        self.assertAlmostEqual(got["scale"][0], 0.0001234, delta=1e-11)
        self.assertEqual(got["offset"], [-30001])

    def test_q12_a_renamed_tensor_is_refused_with_the_near_name(self):
        file, _ = self.export(self.int8, "renamed.encodings")
        value = json.loads(file.read_text())
        entry(value["activation_encodings"], ACTIVATION)["name"] = "layers.1.mlp.gatedd"
        _, error = self.take("renamed", self.write("renamed-changed.encodings", value), code=2)
        self.assertIn("layers.1.mlp.gatedd", error)
        self.assertIn(ACTIVATION, error)
        self.assertFalse((self.folder / "renamed").exists())

    def test_what_the_graph_cannot_have_is_refused(self):
        file, _ = self.export(self.int8, "refused.encodings")

        def changed(group, name, **fields):
            value = json.loads(file.read_text())
            entry(value[group], name).update(fields)
            return self.write(f"refused-{name}.encodings", value)

        scales = entry(json.loads(file.read_text())["param_encodings"], WEIGHT)["scale"]
        caches = json.loads(file.read_text())
        shared = entry(caches["activation_encodings"], "past_key_0_out")["scale"]
        for encoding in caches["activation_encodings"]:
            if encoding["scale"] == shared:
                encoding.update(is_sym=False, offset=[-100])
        for words, path in [
                ("expected 8 or 16 bits", changed("activation_encodings", ACTIVATION, bw=4, offset=[-3])),
                ("symmetric codes", self.write("refused-cache.encodings", caches)),
                (WEIGHT + ": expected an encoding that holds this weight",
                 changed("param_encodings", WEIGHT, scale=[scale / 20 for scale in scales])),
                ("PER_TENSOR of 16 bits", changed("param_encodings", "norm.weight", bw=8, offset=[-100]))]:
            with self.subTest(words=words):
                _, error = self.take("refused", path, code=2)
                self.assertIn(words, error)
        _, error = self.take("refused", file, "--weights", "int4", code=2)
        self.assertIn("--weights: the encodings file decides that", error)
        _, error = self.take("refused", file, "--config", self.write("folds.json", {"fold_channels": True}), code=2)
        self.assertIn("channel folds", error)


if __name__ == "__main__":
    HEXPORT, TINY = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0]], verbosity=2)
