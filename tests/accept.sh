#!/usr/bin/env bash
# The acceptance commands at full size, after `make demo`. Prints every figure; ends non-zero when a bound is missed.
set -euo pipefail
cd "$(dirname "$0")/.."
hexport=build/release/hexport
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
question="What is the capital of France?"
for weights in int8 lpbq; do
  name=$([ $weights = int8 ] && echo w8 || echo lpbq)
  "$hexport" build --model "$model" --soc sm8650 --context 512 --weights $weights --out out/$name
  "$hexport" verify out/$name --json --genie "$question" | tee out/$name.verify.json
done
for engine in cpu emulator genie; do
  "$hexport" run out/w8 --engine $engine --prompt "$question" --max-tokens 8 --temperature 0 --json |
    tee out/w8.$engine.json
done
python3 - <<'EOF'
import json
verify = json.load(open("out/w8.verify.json"))
report = json.load(open("out/w8/report.json"))
answers = {e: json.load(open(f"out/w8.{e}.json")) for e in ("cpu", "emulator", "genie")}
peak = max(s["peak_rss_mb"] for s in report["stages"])
checks = {
    "cosine_float_qdq >= .997": verify["cosine_float_qdq"] >= .997,
    "cosine_qdq_emulator >= .995": verify["cosine_qdq_emulator"] >= .995,
    "top1_float_emulator >= .95": verify["top1_float_emulator"] >= .95,
    "all three answers hold Paris": all("Paris" in a["text"] for a in answers.values()),
    f"own peak {peak:.0f} MiB <= 1500": peak <= 1500,
}
for name, good in checks.items():
    print("pass" if good else "FAIL", name)
raise SystemExit(not all(checks.values()))
EOF
