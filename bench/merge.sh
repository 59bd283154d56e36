#!/usr/bin/env bash
# Times `hexport merge` of a 0.5B-shaped bf16 checkpoint (bench/make_model.py) against `cp` of the same
# files, alternately in one run, and checks both bounds of the merge:
#   seconds   median of merge <= 1.3 x median of cp + 5
#   memory    peak resident <= two of the largest tensors + 300 MB
#
#   bench/merge.sh [HEXPORT] [RUNS] [FOLDER]
#
# HEXPORT: the program, build/release/hexport. RUNS: 5. FOLDER: for the model and the outputs (3 GB),
# out/bench; it is kept, as the model takes a while to write. Exit code 1: over a bound.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

hexport="${1:-build/release/hexport}"
runs="${2:-5}"
folder="${3:-out/bench}"
largest_bytes=$((151936 * 896 * 2))

[[ -x "$hexport" ]] || { echo "bench/merge.sh: expected the program at $hexport; run make hexport"; exit 2; }
[[ -x /usr/bin/time ]] || { echo "bench/merge.sh: expected GNU time at /usr/bin/time"; exit 2; }
if [[ ! -f "$folder/made" ]]; then
  python3 bench/make_model.py "$folder"
  touch "$folder/made"
fi
results="$(mktemp -d)"
trap 'rm -rf "$results" "$folder/copy" "$folder/merged"' EXIT

# timed NAME COMMAND...: appends "seconds kilobytes" to NAME's results. Earlier writes are flushed first, so
# that no run pays for another's.
timed() {
  local name="$1"
  shift
  rm -rf "$folder/copy" "$folder/merged"
  sync
  /usr/bin/time -q -a -o "$results/$name" -f '%e %M' "$@" >"$results/$name.out" 2>"$results/$name.err" ||
    { cat "$results/$name.out" "$results/$name.err"; echo "bench/merge.sh: $name failed"; exit 1; }
}

cat "$folder"/base/* "$folder"/adapter/* >/dev/null  # both start from the page cache
for ((run = 0; run < runs; ++run)); do
  timed cp cp -r "$folder/base" "$folder/copy"
  timed merge "$hexport" merge --base "$folder/base" --adapter "$folder/adapter" --out "$folder/merged" \
    --no-logits --json
done

python3 - "$results" "$largest_bytes" <<'PYTHON'
import json, pathlib, statistics, sys
results, largest = pathlib.Path(sys.argv[1]), int(sys.argv[2])
def column(name, index):
    return [float(line.split()[index]) for line in (results / name).read_text().splitlines()]
def show(name):
    seconds = column(name, 0)
    print(f"{name:6} median {statistics.median(seconds):6.2f} s of {sorted(seconds)}")
    return statistics.median(seconds)
copy, merge = show("cp"), show("merge")
report = json.loads((results / "merge.out").read_text())
print("merge reports", {key: report.get(key) for key in ("matched", "adapter_tensors", "tensors_in", "tensors_out",
                                                        "delta_lost_share", "peak_rss_mb", "seconds")})
bound, peak, room = 1.3 * copy + 5, max(column("merge", 1)) / 1000, 2 * largest / 1e6 + 300
print(f"ratio  {merge / copy:.2f}; merge {merge:.2f} s, bound {bound:.2f} s (1.3 x cp + 5)")
print(f"memory peak {peak:.0f} MB, bound {room:.0f} MB (two of the largest tensors + 300)")
sys.exit(0 if merge <= bound and peak <= room else 1)
PYTHON
