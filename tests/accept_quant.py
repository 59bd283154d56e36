#!/usr/bin/env python3
"""The accuracy table: every method x weight format x model, and llama.cpp's formats on the same tokens.

Usage: accept_quant.py [--models A,B] [--methods A,B] [--formats A,B] [--llama-cpp FORMATS | none]
                       [--samples N] [--max-tokens N] [--engine cpu|qdq] [--write FILE] [--table]

  --models     smollm2, qwen2.5 (default: both)
  --methods    rtn, gptq, awq, smoothquant, seqmse (default: all)
  --formats    int8, int4, lpbq16, lpbq32, lpbq64; auto4.60, auto5.25: this many bits a weight on average, spent where
               they count most (default: all)
  --llama-cpp  q4_0, q4_0-imatrix, q4_k_m, q4_k_m-imatrix (default: all; none leaves them out)
  --engine     what hexport's rows are measured on: cpu (weights alone) or qdq (16-bit activations, 8-bit cache, as
               on the NPU; the default). llama.cpp's rows are weights alone, run by hexport's float engine.
  --write      put the table into this file, between <!-- accept-quant --> and <!-- /accept-quant -->
  --table      measure nothing, only show what has been measured

Needs `make setup-quant`. A measured row is kept in out/accept-quant/*.json and not measured again; remove the file to
do so. Weights come from models/text/calibration.jsonl, figures from models/text/heldout.txt, which share nothing.
Seconds and peak memory are the quantizing process's own, on this computer. A row that fails is named at the end, and
the exit code is then 1.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEXPORT = ROOT / "build/release/hexport"
LLAMA = ROOT / "deps/llama-cpp"
OUT = ROOT / "out/accept-quant"
CALIBRATION, HELD_OUT = ROOT / "models/text/calibration.jsonl", ROOT / "models/text/heldout.txt"
MODELS = {"smollm2": ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf",
          "qwen2.5": ROOT / "models/Qwen2.5-Coder-0.5B-Instruct.q4_k_m.gguf"}
METHODS = ["rtn", "gptq", "awq", "smoothquant", "seqmse"]
FORMATS = ["int8", "int4", "lpbq16", "lpbq32", "lpbq64", "auto4.60", "auto5.25"]
LLAMA_FORMATS = ["q4_0", "q4_0-imatrix", "q4_k_m", "q4_k_m-imatrix"]
BEGIN, END = "<!-- accept-quant -->", "<!-- /accept-quant -->"


class RowFailed(Exception):
    """A program of this row ended badly; the message holds its last words."""


def run(*command):
    """Runs to the end; (stdout, seconds, peak MiB)."""
    start = time.monotonic()
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:
        output, errors = drain(process)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        last = (errors or output).strip().splitlines()[-3:]
        raise RowFailed(f"{pathlib.Path(command[0]).name} ended with {process.returncode}: " + " | ".join(last))
    return output, time.monotonic() - start, usage.ru_maxrss / 1024


def drain(process):
    """Both streams to their ends, without waiting for the process: its resource usage is still to be read."""
    import threading  # pylint: disable=import-outside-toplevel
    errors = []
    reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))
    reader.start()
    output = process.stdout.read()
    reader.join()
    return output, errors[0]


def evaluate(options, target, engine, *more):
    output, seconds, _ = run(HEXPORT, "eval", target, "--engine", engine, "--text", HELD_OUT, "--max-tokens",
                             options.max_tokens, "--json", "--quiet", *more)
    row = json.loads(output)
    row["eval_seconds"] = round(seconds, 1)
    return row


def measure_hexport(options, model, method, weights):
    block = weights.removeprefix("lpbq") if weights.startswith("lpbq") else None
    budget = weights.removeprefix("auto") if weights.startswith("auto") else None
    folder = OUT / "work" / f"{model}-{method}-{weights}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    arguments = ["--model", MODELS[model], "--method", method, "--weights", "lpbq" if block or budget else weights,
                 "--calibration", CALIBRATION, "--samples", options.samples, "--out", folder, "--json"]
    if block:
        arguments += ["--block", block]
    if budget:
        arguments += ["--auto", budget]
    try:
        _, seconds, peak = run(HEXPORT, "quantize", *arguments)
        row = evaluate(options, folder, options.engine)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {**row, "seconds": round(seconds, 1), "peak_mib": round(peak)}


def importance_matrix(options, model):
    """llama.cpp's importance matrix from the calibration samples; (file, seconds, peak MiB)."""
    path, about = OUT / f"{model}.imatrix.gguf", OUT / f"{model}.imatrix.txt"
    if not (path.exists() and about.exists()):
        text = OUT / "calibration.txt"
        samples = [json.loads(line)["text"] for line in CALIBRATION.read_text(encoding="utf-8").splitlines()]
        text.write_text("\n\n".join(samples[:options.samples]), encoding="utf-8")
        _, seconds, peak = run(LLAMA / "llama-imatrix", "-m", MODELS[model], "-f", text, "-o", path, "-c", 512,
                               "--chunks", options.samples, "-t", os.cpu_count(), "-ngl", 0)
        about.write_text(f"{seconds} {peak}")
    seconds, peak = about.read_text().split()
    return path, float(seconds), float(peak)


def measure_llama(options, model, name):
    kind, _, matrix = name.partition("-")
    target = OUT / "work" / f"{model}-{name}.gguf"
    target.parent.mkdir(parents=True, exist_ok=True)
    more, seconds, peak = [], 0.0, 0.0
    if matrix:
        path, seconds, peak = importance_matrix(options, model)
        more = ["--imatrix", path]
    try:
        _, own_seconds, own_peak = run(LLAMA / "llama-quantize", "--allow-requantize", *more, MODELS[model], target,
                                       kind.upper())
        row = evaluate(options, target, "float", "--reference", MODELS[model])
    finally:
        target.unlink(missing_ok=True)
    return {**row, "seconds": round(seconds + own_seconds, 1), "peak_mib": round(max(peak, own_peak))}


def rows_of(options):
    """(model, method, format, function) of each row wanted."""
    for model in options.models:
        for method in options.methods:
            for weights in options.formats:
                yield model, method, weights, measure_hexport
        for name in options.llama_cpp:
            yield model, "llama.cpp", name, lambda o, m, _, n: measure_llama(o, m, n)


def measure(options):
    failures = []
    for model, method, weights, function in rows_of(options):
        engine = "float" if method == "llama.cpp" else options.engine
        name = f"{model} {method} {weights}"
        path = OUT / f"{model}.{method}.{weights}.{engine}.json"
        if path.exists():
            continue
        print(f"accept-quant: {name}", flush=True)
        try:
            row = function(options, model, method, weights)
        except RowFailed as e:
            failures.append(f"{name}: {e}")
            print(f"accept-quant: FAILED {failures[-1]}", flush=True)
            continue
        row.update(model=model, method=method, format=weights, samples=options.samples)
        path.with_suffix(".tmp").write_text(json.dumps(row, indent=1) + "\n")
        path.with_suffix(".tmp").rename(path)
    return failures


def table():
    """What has been measured, as a Markdown table."""
    rows = [json.loads(path.read_text()) for path in OUT.glob("*.json")]
    order = {name: i for i, name in enumerate([*MODELS, *METHODS, "llama.cpp", *FORMATS, *LLAMA_FORMATS])}
    rows.sort(key=lambda r: (order[r["model"]], order[r["method"]], order[r["format"]], r["engine"]))
    lines = ["| model | method | weights | engine | bits per weight | perplexity ratio | top-1 | KL (nats) | tokens "
             "| seconds | peak MiB |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row['model']} | {row['method']} | {row['format']} | {row['engine']} "
                     f"| {row['bits_per_weight']:.2f} | {row['perplexity_ratio']:.4f} | {row['top1_vs_float']:.3f} "
                     f"| {row['kl_vs_float']:.4f} | {row['tokens']} | {row['seconds']:.0f} | {row['peak_mib']} |")
    return "\n".join(lines)


def write_table(path, text):
    old = path.read_text(encoding="utf-8")
    if BEGIN not in old or END not in old:
        raise SystemExit(f"accept-quant: {path}: expected {BEGIN} and {END}, found none")
    path.write_text(old[:old.index(BEGIN)] + BEGIN + "\n" + text + "\n" + old[old.index(END):], encoding="utf-8")


def parse(arguments):
    def names(known):
        def split(text):
            wanted = [] if text == "none" else text.split(",")
            wrong = [name for name in wanted if name not in known]
            if wrong:
                raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}, got {wrong[0]}")
            return wanted
        return split
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--models", type=names(MODELS), default=list(MODELS))
    parser.add_argument("--methods", type=names(METHODS), default=METHODS)
    parser.add_argument("--formats", type=names(FORMATS), default=FORMATS)
    parser.add_argument("--llama-cpp", type=names(LLAMA_FORMATS), default=LLAMA_FORMATS)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=8192)
    parser.add_argument("--engine", choices=["cpu", "qdq"], default="qdq")
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--table", action="store_true")
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    OUT.mkdir(parents=True, exist_ok=True)
    failures = [] if options.table else measure(options)
    text = table()
    print(text)
    if options.write:
        write_table(options.write, text)
    for failure in failures:
        print(f"accept-quant: FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
