#!/usr/bin/env python3
"""docs/cases.md: every case has a test, and every file and test that it names exists.

Usage: cases_test.py              check docs/cases.md of this tree
       cases_test.py --self-test  check that wrong tables are caught
"""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The cases that must be there.
CASES = ([f"L{n:02}" for n in (1, 3, 4, 5, 7, *range(9, 23))] + [f"T{n:02}" for n in (1, 2, 3, 5, 6, 7, 8, 9)] +
         [f"C{n:02}" for n in (1, 2, 3, 5, 6, 7, 8, 9)] + ["X01", "X06", "X07", "X11", "X12", "X13"] + [f"Q{n:02}" for n in (1, 2, 4, 6, 7, 8, 9, *range(10, 15))])


def faults_of(text, root, cases):
    found = set()
    for case, tests in re.findall(r"^\| ([A-Z]\d\d) \|[^|]*\|([^|]*)\|$", text, re.MULTILINE):
        places = re.findall(r"`([^`]+)`: ((?:`[^`]+`(?:, )?)+)", tests)
        if places:
            found.add(case)
        for path, names in places:
            file = root / path
            source = file.read_text(encoding="utf-8") if file.is_file() else None
            if source is None:
                yield f"{case}: no such file: {path}"
                continue
            for name in re.findall(r"`([^`]+)`", names):
                if name not in source:
                    yield f"{case}: {path} has no test {name}"
    for case in sorted(set(cases) - found):
        yield f"{case}: no test is named"


class SelfTest(unittest.TestCase):
    def test_a_right_row(self):
        self.assertEqual(list(faults_of("| L01 | x | `tests/cases_test.py`: `test_a_right_row` |", ROOT, ["L01"])), [])

    def test_wrong_rows(self):
        faults = list(faults_of("| L01 | x | `tests/gone.cc`: `A` |\n| L02 | x | `LICENSE`: `no_such_test_name` |\n"
                                "| L03 | x | later |", ROOT, ["L01", "L02", "L03", "L04"]))
        self.assertEqual(faults, ["L01: no such file: tests/gone.cc", "L02: LICENSE has no test no_such_test_name",
                                  "L03: no test is named", "L04: no test is named"])


def main():
    if sys.argv[1:] == ["--self-test"]:
        unittest.main(argv=sys.argv[:1])
    faults = list(faults_of((ROOT / "docs" / "cases.md").read_text(encoding="utf-8"), ROOT, CASES))
    print("\n".join(faults) if faults else f"{len(CASES)} cases, every test exists")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
