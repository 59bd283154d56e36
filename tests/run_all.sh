#!/usr/bin/env bash
# The whole test run behind `make test`: builds, sanitized unit tests, fuzzers, then the release suite,
# whose ctest summary ends the output. Every step runs even if one before it failed; the exit code is 1
# when any failed. Environment: MAKE, JOBS, FUZZ_SECONDS, FUZZ_AT_ONCE.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

make="${MAKE:-make}"
jobs="${JOBS:-2}"
fuzz_seconds="${FUZZ_SECONDS:-60}"
fuzz_at_once="${FUZZ_AT_ONCE:-2}"
failed=()

# step NAME COMMAND...: runs it and prints one line with its outcome and time.
step() {
  local name="$1" start=$SECONDS outcome=passed
  shift
  printf '== %s\n' "$name"
  "$@" || { outcome=FAILED; failed+=("$name"); }
  printf '== %s: %s in %d s\n' "$name" "$outcome" $((SECONDS - start))
  [[ $outcome == passed ]]
}

# fuzz_one PROGRAM: from its seed corpus fuzz/corpus/<name>; a crash input is kept beside the program.
fuzz_one() {
  local program="$1" seconds="$2" name corpus log
  name="$(basename "$program")"
  corpus="build/fuzz/corpus/$name"
  log="build/fuzz/$name.log"
  mkdir -p "$corpus"
  local seeds=()
  [[ -d "fuzz/corpus/${name%_fuzz}" ]] && seeds=("fuzz/corpus/${name%_fuzz}")
  if "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="build/fuzz/$name-" "$corpus" "${seeds[@]}" >"$log" 2>&1; then
    printf '   %s: %s\n' "$name" "$(grep -a '^Done ' "$log" | tail -n 1)"
  else
    tail -n 40 "$log"
    printf '   %s: FAILED (whole log: %s)\n' "$name" "$log"
    return 1
  fi
}

fuzz_all() {
  local programs
  mapfile -t programs < <(find build/fuzz -maxdepth 1 -type f -name '*_fuzz' -perm -u+x | sort)
  ((${#programs[@]})) || { echo "expected fuzz programs in build/fuzz, found none"; return 1; }
  export -f fuzz_one
  printf '%s\n' "${programs[@]}" |
    xargs -P "$fuzz_at_once" -I{} bash -c 'fuzz_one "$1" "$2"' _ {} "$fuzz_seconds"
}

step "release build" "$make" --no-print-directory release
step "asan build" "$make" --no-print-directory asan &&
  step "asan unit tests" ctest --preset asan -j "$jobs"
step "fuzz build" "$make" --no-print-directory fuzz &&
  step "fuzzers, $fuzz_seconds s each" fuzz_all
step "ctest" ctest --preset release -j "$jobs" | sed '/^== ctest: /d'
[[ ${PIPESTATUS[0]} == 0 ]] || failed+=("ctest")

if ((${#failed[@]})); then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
