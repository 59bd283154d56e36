#!/usr/bin/env python3
"""What the docs name must exist: paths, links, make targets, CMake presets, hexport commands and options.

Usage: docs_test.py [BUILD_FOLDER]   commands are checked against BUILD_FOLDER/hexport, or any build/*/hexport
       docs_test.py --self-test      check that wrong names are caught
"""
import functools
import json
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Made by set-up, builds and runs; not in the repository.
GENERATED = {"build", "out", "deps", "models"}
PATH = re.compile(r"(?<![\w./<>{}*-])(\.?[\w-]+(?:/[\w.*-]+)+/?|[\w-]+/(?=[\s`,;)]|$))")
CODE = re.compile(r"```\w*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
HEXPORT = re.compile(r"(?:^|[\s/])hexport ((?:[a-z_]+)(?: [^#\n]*)?)")


def top_level():
    """Names at the top of the repository that may begin a path."""
    return {p.name for p in ROOT.iterdir()} - GENERATED - {".git"}


def code_of(text):
    return [block or inline for block, inline in CODE.findall(text)]


def path_faults(code):
    names = top_level()
    for snippet in code:
        for path in PATH.findall(snippet):
            first = path.split("/", 1)[0]
            if first in names and not list(ROOT.glob(path.rstrip("/"))):
                yield f"no such path: {path}"


def link_faults(text, folder):
    for target in LINK.findall(text):
        if "://" not in target and not (folder / target).exists():
            yield f"no such file behind a link: {target}"


def make_faults(code):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for snippet in code:
        for target in re.findall(r"(?:^|\n)make ([\w-]+)", snippet):
            if target not in targets:
                yield f"no such make target: {target}"


def preset_faults(code):
    presets = json.loads((ROOT / "CMakePresets.json").read_text(encoding="utf-8"))
    names = {p["name"] for kind in presets.values() if isinstance(kind, list) for p in kind}
    for snippet in code:
        for name in re.findall(r"--preset[ =]([\w-]+)", snippet):
            if name not in names:
                yield f"no such CMake preset: {name}"


@functools.lru_cache(maxsize=None)
def help_of(program, *command):
    result = subprocess.run([program, *command, "--help"], capture_output=True, text=True, timeout=60, check=False)
    return result.stdout if result.returncode == 0 else None


def subcommands(program, *command):
    listed = (help_of(program, *command) or "").partition("Subcommands:")[2]
    return set(re.findall(r"^  ([a-z]+)\s", listed, re.MULTILINE))


def command_faults(code, program):
    for snippet in code:
        for words in HEXPORT.findall(snippet.replace("\\\n", " ")):
            command, _, rest = words.partition(" ")
            if command == "__worker":
                continue
            if command not in subcommands(program):
                yield f"no such command: hexport {command}"
                continue
            path = [command]
            while rest and rest.split()[0] in subcommands(program, *path):
                path.append(rest.split()[0])
                rest = rest.partition(" ")[2]
            known = set(re.findall(r"--[a-z][\w-]*", help_of(program, *path)))
            for option in re.findall(r"(?<!\S)(--[a-z][\w-]*)", re.sub(r'"[^"]*"', '""', rest)):
                if option not in known:
                    yield f"hexport {' '.join(path)} has no option {option}"


def faults_of(text, folder, program):
    code = code_of(text)
    yield from path_faults(code)
    yield from link_faults(text, folder)
    yield from make_faults(code)
    yield from preset_faults(code)
    if program:
        yield from command_faults(code, program)


def find_program(arguments):
    candidates = [pathlib.Path(arguments[0], "hexport")] if arguments else sorted(ROOT.glob("build/*/hexport"))
    return next((str(p) for p in candidates if p.is_file()), None)


class SelfTest(unittest.TestCase):
    """One wrong name each; the program is played by a table of help texts."""

    def faults(self, text):
        return list(faults_of(text, ROOT, None))

    def test_accepts_what_exists(self):
        self.assertEqual(self.faults("`make demo`, `src/base/status.h`, `tests/`, `build/x/y`, [l](LICENSE)\n"
                                     "```\nmake test  # all\ncmake --preset dev\n```"), [])

    def test_catches_missing_path(self):
        self.assertEqual(self.faults("see `src/base/no_such.h`"), ["no such path: src/base/no_such.h"])

    def test_catches_missing_path_in_a_block(self):
        self.assertEqual(self.faults("```\ncat docs/no_such.md\n```"), ["no such path: docs/no_such.md"])

    def test_catches_dead_link(self):
        self.assertEqual(self.faults("[x](docs/gone.md)"), ["no such file behind a link: docs/gone.md"])

    def test_catches_make_target(self):
        self.assertEqual(self.faults("`make coffee`"), ["no such make target: coffee"])

    def test_catches_preset(self):
        self.assertEqual(self.faults("`cmake --preset tsan9`"), ["no such CMake preset: tsan9"])

    def test_catches_command_and_option(self):
        real = globals()["help_of"]
        pages = {(): "Subcommands:\n  run   Ask\n  codes   Files\n", ("run",): "  --prompt TEXT\n",
                 ("codes",): "Subcommands:\n  export   Write\n", ("codes", "export"): "  --schema TEXT\n"}
        globals()["help_of"] = lambda program, *command: pages.get(command)
        try:
            found = list(command_faults(['build/release/hexport run b --prompt "--x" --fast', "hexport fly",
                                        "hexport codes export a --schema 1 --slow"], "p"))
        finally:
            globals()["help_of"] = real
        self.assertEqual(found, ["hexport run has no option --fast", "no such command: hexport fly",
                                 "hexport codes export has no option --slow"])


def main():
    if sys.argv[1:] == ["--self-test"]:
        unittest.main(argv=sys.argv[:1])
    program = find_program(sys.argv[1:])
    if program and not subcommands(program):
        print(f"{program} --help lists no subcommands")
        return 1
    files = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    faults = [f"{path.relative_to(ROOT)}: {fault}" for path in files
              for fault in faults_of(path.read_text(encoding="utf-8"), path.parent, program)]
    print("\n".join(faults) if faults else f"{len(files)} files, every name exists")
    if not program:
        print("hexport is not built: its commands were not checked")
    return 1 if faults or not files else 0


if __name__ == "__main__":
    sys.exit(main())
