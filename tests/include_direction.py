#!/usr/bin/env python3
"""Reads the #include lines of src/ and fails on an arrow that the layering does not allow.

Usage: include_direction.py [SOURCE_FOLDER]     check the folder (by default src/ of this tree)
       include_direction.py --self-test         check that wrong arrows are caught

The table is the one of docs/architecture.md. A new folder needs a line in both.
"""
import pathlib
import re
import sys
import tempfile
import unittest

# Folder -> the folders it may include; every folder may include itself and `base`.
ALLOWED = {
    "base": set(),
    "checkpoint": set(),
    "text": set(),
    "graph": set(),
    "ort": set(),
    "device": set(),
    "bundle": set(),
    "decoder": {"checkpoint", "graph"},
    "adapter": {"checkpoint", "text"},
    "quant": {"checkpoint", "graph", "ort", "decoder"},
    "runtime": {"text", "ort", "device", "bundle"},
    "compile": {"checkpoint", "text", "graph", "ort", "device", "bundle", "decoder", "adapter",
                "quant", "runtime"},
    "evaluate": {"checkpoint", "text", "graph", "ort", "device", "bundle", "decoder", "adapter",
                 "quant", "runtime", "compile"},
    "diagnose": {"checkpoint", "text", "graph", "ort", "device", "bundle", "decoder", "adapter",
                 "quant", "runtime", "compile"},
    "cli": {"checkpoint", "text", "graph", "ort", "device", "bundle", "decoder", "adapter", "quant",
            "runtime", "compile", "evaluate", "diagnose"},
}
# Third-party headers that one folder alone may include, so that they stop at its edge.
ONLY_IN = {
    re.compile(r"onnxruntime_\w+\.h"): "ort",
    re.compile(r"onnx-ml\.pb\.h|google/protobuf/.*"): "graph",
    re.compile(r"textkit\.h"): "text",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def check_include(folder, header):
    """What is wrong with `header` in a file of `folder`, or None."""
    name = header.rsplit("/", 1)[-1]
    for pattern, owner in ONLY_IN.items():
        if (pattern.fullmatch(header) or pattern.fullmatch(name)) and folder != owner:
            return f"only {owner} may include {header}"
    target, slash, _ = header.partition("/")
    if not slash or target not in ALLOWED:
        return None  # a system or third-party header
    if target in ALLOWED[folder] | {folder, "base"}:
        return None
    return f"{folder} may not include {target}: {header}"


def check(source):
    """All faults under `source`, as "path:line: fault" lines, and the number of files read."""
    faults, files = [], 0
    for path in sorted(p for p in source.rglob("*") if p.suffix in (".cc", ".h")):
        where = path.relative_to(source)
        if len(where.parts) < 2 or where.parts[0] not in ALLOWED:
            faults.append(f"{where}: expected a file in one of {', '.join(ALLOWED)}")
            continue
        files += 1
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            fault = check_include(where.parts[0], match.group(1))
            if fault:
                faults.append(f"{where}:{number}: {fault}")
    for folder in sorted(p.name for p in source.iterdir() if p.is_dir()):
        if folder not in ALLOWED:
            faults.append(f"{folder}/: unknown folder; give it a line in the layering table first")
    return faults, files


class SelfTest(unittest.TestCase):
    """Small trees with one thing wrong (or nothing)."""

    def faults(self, **files):
        with tempfile.TemporaryDirectory() as name:
            for folder_and_file, text in files.items():
                path = pathlib.Path(name, folder_and_file.replace("__", "/") + ".cc")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return check(pathlib.Path(name))[0]

    def test_allows_arrows_down_and_within(self):
        self.assertEqual(self.faults(
            quant__a='#include "quant/b.h"\n#include "base/status.h"\n#include "decoder/decoder.h"\n',
            ort__a="#include <onnxruntime_c_api.h>\n#include <vector>\n"), [])

    def test_catches_arrow_up(self):
        self.assertEqual(self.faults(base__a='#include "ort/session.h"\n'),
                         ["base/a.cc:1: base may not include ort: ort/session.h"])

    def test_catches_arrow_sideways(self):
        self.assertEqual(self.faults(graph__a='\n  #  include "checkpoint/checkpoint.h"\n'),
                         ["graph/a.cc:2: graph may not include checkpoint: checkpoint/checkpoint.h"])

    def test_catches_wrong_arrow_in_a_test_file(self):
        self.assertEqual(len(self.faults(text__x_test='#include "bundle/manifest.h"\n')), 1)

    def test_catches_runtime_including_compile(self):
        self.assertEqual(len(self.faults(runtime__a='#include "compile/build.h"\n')), 1)

    def test_catches_onnxruntime_outside_ort(self):
        for header in ("onnxruntime_c_api.h", "ort/include/onnxruntime_ep_c_api.h"):
            self.assertEqual(self.faults(compile__a=f"#include <{header}>\n"),
                             [f"compile/a.cc:1: only ort may include {header}"])

    def test_catches_protobuf_outside_graph(self):
        self.assertEqual(len(self.faults(quant__a="#include <google/protobuf/message.h>\n")), 1)

    def test_catches_unknown_folder(self):
        self.assertTrue(any("unknown folder" in f for f in self.faults(helpers__a="int x;\n")))

    def test_table_has_no_cycle(self):
        order = list(ALLOWED)
        for folder, targets in ALLOWED.items():
            for target in targets:
                self.assertLess(order.index(target), order.index(folder), f"{folder} -> {target}")


def main():
    if sys.argv[1:] == ["--self-test"]:
        unittest.main(argv=sys.argv[:1])
    source = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "src"
    faults, files = check(source)
    print("\n".join(faults) if faults else f"{files} files, every include allowed")
    return 1 if faults or not files else 0


if __name__ == "__main__":
    sys.exit(main())
