#!/usr/bin/env python3
"""The program on bad input: a clear error, the right exit code, nothing left behind.

Usage: cli_test.py HEXPORT MODEL.gguf TINY_HF_FOLDER  (registered with ctest, label unit)
"""
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

HEXPORT, MODEL, TINY = "", "", ""


def run(*arguments, **options):
    return subprocess.run([HEXPORT, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False, **options)


class CliTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hexport-cli-"))
        self.out = self.folder / "out" / "bundle"

    def tearDown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def refused(self, result, code, *words):
        self.assertEqual(result.returncode, code, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertFalse(self.out.exists(), "a half bundle was left")
        left = [p for p in self.folder.rglob("*") if ".tmp-" in p.name or p.name.endswith(".hexport-work")]
        self.assertEqual(left, [], "temporary files were left")

    def build(self, model=None, *more, **options):
        return run("build", "--model", model or MODEL, "--out", self.out, *more, **options)

    def test_help_has_examples_and_exits_0(self):
        for command in ([], ["build"], ["verify"], ["run"], ["inspect"], ["tokenize"], ["template"]):
            result = run(*command, "--help")
            self.assertEqual(result.returncode, 0)
            self.assertIn("Examples:", result.stdout)

    def test_bad_usage_is_2(self):
        self.assertEqual(run().returncode, 2)
        self.assertEqual(run("build", "--no-such-option").returncode, 2)

    # A chat in a file, rendered by `template`.
    def render(self, messages, *more, model=None):
        path = self.folder / "messages.json"
        path.write_text(json.dumps(messages), encoding="utf-8")
        return run("template", "--model", model or MODEL, "--messages", path, *more)

    # A folder with only tokenizer files, as a trainer leaves beside an adapter.
    def text_folder(self, template, name="text"):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        shutil.copy(pathlib.Path(TINY).parent.parent / "tiny_bundle" / "tokenizer.json", folder)
        config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return folder

    def test_tokenize_prints_ids_tokens_and_offsets(self):
        result = run("tokenize", "--model", MODEL, "--json", "Hello  world")
        self.assertEqual(result.returncode, 0, result.stderr)
        out = json.loads(result.stdout)
        self.assertEqual(len(out["ids"]), len(out["tokens"]))
        self.assertEqual(out["offsets"][0], [0, 5])
        self.assertEqual(out["decoded"], "Hello  world")
        plain = run("tokenize", "--model", MODEL, "Hello  world").stdout.splitlines()
        self.assertEqual([int(word) for word in plain[0].split()], out["ids"])

    def test_tokenize_t08_takes_a_backslash_as_a_backslash(self):
        two = json.loads(run("tokenize", "--model", MODEL, "--json", "a\\nb").stdout)
        line = json.loads(run("tokenize", "--model", MODEL, "--json", "a\nb").stdout)
        self.assertEqual(two["decoded"], "a\\nb")
        self.assertEqual(line["decoded"], "a\nb")
        self.assertNotEqual(two["ids"], line["ids"])

    def test_tokenize_fingerprint_and_bad_usage(self):
        out = json.loads(run("tokenize", "--model", MODEL, "--fingerprint", "--json").stdout)
        self.assertRegex(out["fingerprint"], "^[0-9a-f]{64}$")
        self.assertLess(out["highest_id"], out["vocab_size"])
        self.refused(run("tokenize", "--model", MODEL), 2, "a text or --file")
        self.refused(run("tokenize", "--model", self.folder, "x"), 2, "tokenizer")

    def test_template_prints_text_and_ids(self):
        chat = [{"role": "user", "content": "Hi"}]
        out = json.loads(self.render(chat, "--json").stdout)
        self.assertTrue(out["text"].endswith("<|im_start|>assistant\n"))
        again = json.loads(run("tokenize", "--model", MODEL, "--json", "--no-special", out["text"]).stdout)
        self.assertEqual(out["ids"], again["ids"])
        self.assertEqual(out["warnings"], [])
        closed = self.render(chat, "--no-generation-prompt")
        self.assertTrue(closed.stdout.endswith("Hi<|im_end|>\n\n"), closed.stdout)

    def test_template_c05_sets_json_values_and_says_ignored(self):
        folder = self.text_folder("{{ 'off' if enable_thinking is false else 'on' }}")
        chat = [{"role": "user", "content": "Hi"}]
        self.assertEqual(self.render(chat, model=folder).stdout, "on\n")
        self.assertEqual(self.render(chat, "--set", "enable_thinking=false", model=folder).stdout, "off\n")
        self.assertEqual(self.render(chat, "--set", "enable_thinking=0", model=folder).stdout, "on\n")
        result = self.render(chat, "--set", "thinking=false", "--json", model=folder)
        self.assertIn("thinking: ignored", result.stderr)
        self.assertIn("thinking: ignored", json.loads(result.stdout)["warnings"][0])

    def test_template_c01_where_the_template_lives(self):
        chat = [{"role": "user", "content": "Hi"}]
        tools = self.folder / "tools.json"
        tools.write_text(json.dumps([{"type": "function", "function": {"name": "f"}}]))
        folder = self.text_folder([{"name": "default", "template": "list"},
                                   {"name": "tool_use", "template": "use {{ tools | length }}"}])
        self.assertEqual(self.render(chat, model=folder).stdout, "list\n")
        self.assertEqual(self.render(chat, "--tools", tools, model=folder).stdout, "use 1\n")
        self.assertEqual(self.render(chat, "--tools", tools, "--template", "default", model=folder).stdout, "list\n")
        self.refused(self.render(chat, "--template", "rag", model=folder), 2, "default, tool_use", "rag")
        (folder / "chat_template.jinja").write_text("file")
        self.assertEqual(self.render(chat, "--tools", tools, model=folder).stdout, "file\n")
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("extra")
        self.assertEqual(self.render(chat, "--tools", tools, model=folder).stdout, "extra\n")
        none = self.text_folder(None, "none")
        self.refused(self.render(chat, model=none), 2, "no chat template", "--chat-template")

    def test_template_errors_name_the_file_line_and_column(self):
        path = self.folder / "bad.jinja"
        path.write_text("ok\n{{ x | nope }}")
        chat = [{"role": "user", "content": "Hi"}]
        self.refused(self.render(chat, "--chat-template", path), 2, "bad.jinja: 2:8: no filter named 'nope'")
        self.refused(self.build(None, "--chat-template", path), 2, "bad.jinja: 2:8: no filter named 'nope'")
        path.write_text("{{ raise_exception('System role not supported') }}")
        self.refused(self.render(chat, "--chat-template", path), 2, "System role not supported")
        self.refused(self.render(5, "--chat-template", path), 2, "expected a JSON array")

    def test_unknown_soc_lists_the_known(self):
        self.refused(self.build(None, "--soc", "sm9999"), 2, "sm9999", "sm8650")

    def test_context_not_above_ar(self):
        self.refused(self.build(None, "--context", "64", "--ar", "128"), 2, "--context", "128", "64")

    def test_unknown_weight_format(self):
        self.refused(self.build(None, "--weights", "int3"), 2, "int3", "lpbq")

    def test_missing_model(self):
        self.refused(self.build(self.folder / "no.gguf"), 2, "no.gguf")

    def test_truncated_gguf(self):
        data = pathlib.Path(MODEL).read_bytes()
        for size in (0, 3, 23, 4096, len(data) // 2, len(data) - 1):
            path = self.folder / f"cut{size}.gguf"
            path.write_bytes(data[:size])
            self.refused(self.build(path), 2, path.name)

    def test_lying_gguf_counts(self):
        data = bytearray(pathlib.Path(MODEL).read_bytes()[: 1 << 20])
        for offset in (8, 16):  # tensor count, key-value count
            lie = bytearray(data)
            lie[offset : offset + 8] = (1 << 60).to_bytes(8, "little")
            path = self.folder / "lie.gguf"
            path.write_bytes(lie)
            self.refused(self.build(path), 2, "lie.gguf")

    def copy_tiny(self):
        folder = self.folder / "tiny"
        shutil.copytree(TINY, folder)
        return folder

    def test_lying_safetensors_header(self):
        folder = self.copy_tiny()
        path = folder / "model.safetensors"
        data = bytearray(path.read_bytes())
        data[:8] = (1 << 50).to_bytes(8, "little")
        path.write_bytes(data)
        self.refused(self.build(folder), 2, "model.safetensors")

    def test_missing_tensor_is_named(self):
        folder = self.copy_tiny()
        path = folder / "model.safetensors"
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = data[8 : 8 + size].replace(b"model.layers.1.mlp.up_proj.weight", b"model.layers.1.mlp.up_prox.weight")
        path.write_bytes(data[:8] + header + data[8 + size :])
        self.refused(self.build(folder), 2, "model.layers.1.mlp.up_proj.weight")

    def test_unknown_architecture(self):
        folder = self.copy_tiny()
        config = json.loads((folder / "config.json").read_text())
        config["model_type"] = "mamba9"
        config["architectures"] = ["Mamba9ForCausalLM"]
        (folder / "config.json").write_text(json.dumps(config))
        self.refused(self.build(folder), 2, "mamba9")

    def test_existing_output_is_kept(self):
        self.out.mkdir(parents=True)
        (self.out / "precious").write_text("x")
        result = self.build(None, "--soc", "sm8650", "--context", "512")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual((self.out / "precious").read_text(), "x")

    def test_force_replaces_bundles_only(self):
        self.out.mkdir(parents=True)
        (self.out / "precious").write_text("x")
        result = self.build(None, "--force")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("no bundle", result.stderr)
        self.assertEqual((self.out / "precious").read_text(), "x")

    def test_out_that_is_a_file_or_nothing(self):
        path = self.folder / "file"
        path.write_text("x")
        for out in (path, ""):
            result = run("build", "--model", MODEL, "--out", out, "--force")
            self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(path.read_text(), "x")

    def test_config_that_matches_nothing_is_refused_first(self):
        config = self.folder / "config.json"
        config.write_text('{"linears": [{"pattern": "layers.*.mlp.dwn_proj", "weights": "int8"}]}')
        self.refused(self.build(MODEL, "--config", config), 2, "linears[0].pattern", "down_proj")

    def test_numbers_that_are_none(self):
        self.refused(self.build(None, "--samples", "-1"), 2, "--samples")

    def test_json_error_is_json(self):
        result = self.build(None, "--soc", "sm9999", "--json")
        self.assertEqual(result.returncode, 2)
        self.assertIn("sm9999", json.loads(result.stdout)["error"]["message"])

    def test_no_runtime_is_3(self):
        environment = {**os.environ, "HEXPORT_ORT_ROOT": str(self.folder / "nowhere")}
        self.refused(self.build(None, env=environment), 3, "HEXPORT_ORT_ROOT")

    def test_file_size_limit(self):
        import resource
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        self.refused(self.build(None, "--samples", "1", "--context", "256", preexec_fn=limit), 3)

    @unittest.skipUnless(os.geteuid() == 0, "mounting a small disk needs root")
    def test_disk_full(self):
        disk = self.folder / "disk"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], check=False).returncode != 0:
            self.skipTest("this sandbox does not mount")
        try:
            self.out = disk / "bundle"
            self.refused(self.build(), 3, "disk space")
        finally:
            subprocess.run(["umount", disk], check=True)

    @unittest.skipUnless(shutil.which("setpriv") and os.geteuid() == 0, "needs root to drop it")
    def test_no_write_permission(self):
        closed = self.folder / "closed"
        closed.mkdir()
        closed.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
        self.folder.chmod(0o755)
        self.out = closed / "bundle"
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", HEXPORT]
        probe = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
        if probe.returncode != 0:
            self.skipTest("another user cannot run the program from here")
        result = subprocess.run([*command, "build", "--model", MODEL, "--out", str(self.out)], capture_output=True, text=True, check=False)
        self.refused(result, 3, "closed")

    def test_killed_child_names_the_stage_and_the_next_run_goes_on(self):
        killer = self.folder / "killer.sh"
        killer.write_text("#!/bin/sh\nkill -9 $$\n")
        killer.chmod(0o755)
        environment = {**os.environ, "HEXPORT_WORKER_EXE": str(killer)}
        arguments = ("--samples", "1", "--context", "160", "--ar", "32")
        result = self.build(None, *arguments, env=environment)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("compile prompt_ar32_cl160_1_of_1", result.stderr)
        self.assertIn("signal 9", result.stderr)
        self.assertFalse(self.out.exists(), "a half bundle was left")
        again = self.build(None, *arguments, env=environment)
        self.assertIn("calibrate: reused", again.stderr)

    def test_bundle_that_is_none(self):
        for command in (["verify"], ["run", "--prompt", "x"], ["inspect"]):
            result = run(command[0], self.folder, *command[1:])
            self.assertEqual(result.returncode, 2, result.stderr)


if __name__ == "__main__":
    HEXPORT, MODEL, TINY = sys.argv[1:4]
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=1)
