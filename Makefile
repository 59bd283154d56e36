# make demo     set up, build build/release/hexport, build a bundle of SmolLM2 and ask it a question
# make test     every test there is: release suite, ASan+UBSan unit tests, fuzzers for a minute each
# make accept   the acceptance commands on the demo model (tests/accept.sh)
# make accept-quant  accuracy of every method, format and model, and of llama.cpp's (tests/accept_quant.py; hours;
#               goes on where it was; QUANT="--models smollm2 --methods gptq" measures a part)
# make setup    only install and download what is needed (tools/setup.sh)
# make format   rewrite the C++ sources with clang-format; format-check only looks
# make tidy     clang-tidy over src/, warnings are errors
# make clean    remove build/ and out/; deps/ and models/ stay
#
# Your own ONNX Runtime or QAIRT: make demo HEXPORT_ORT_ROOT=/path HEXPORT_QNN_ROOT=/path
SHELL := /bin/bash
.DEFAULT_GOAL := demo

export HEXPORT_ORT_ROOT HEXPORT_QNN_ROOT
export CCACHE_DIR := $(CURDIR)/.ccache
export CCACHE_MAXSIZE := 2G
export CARGO_HOME := $(CURDIR)/deps/cargo

JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
DEMO_BUNDLE := out/smollm2-sm8650
CXX_FILES = $(shell git ls-files '*.cc' '*.h')
CMAKE_ROOTS := $(if $(HEXPORT_ORT_ROOT),-DHEXPORT_ORT_ROOT=$(HEXPORT_ORT_ROOT)) \
               $(if $(HEXPORT_QNN_ROOT),-DHEXPORT_QNN_ROOT=$(HEXPORT_QNN_ROOT))

.PHONY: demo test accept accept-quant setup setup-tests setup-tools setup-quant hexport release asan fuzz \
        format format-check tidy clean

setup:
	@tools/setup.sh

setup-tests:
	@tools/setup.sh --tests

setup-tools:
	@tools/setup.sh --tools

setup-quant:
	@tools/setup.sh --eval --llama-cpp

hexport: setup
	cmake --preset release -DHEXPORT_TESTS=OFF $(CMAKE_ROOTS) --log-level=WARNING
	cmake --build --preset release -j $(JOBS) --target hexport

demo: hexport
	@if [[ ! -d $(DEMO_BUNDLE) ]]; then \
	  build/release/hexport build --model $(MODEL) --soc sm8650 --context 512 --weights int8 \
	    --out $(DEMO_BUNDLE); \
	else echo "demo: $(DEMO_BUNDLE) is there already"; fi
	build/release/hexport run $(DEMO_BUNDLE) --engine emulator \
	  --prompt "What is the capital of France?" --max-tokens 16 --temperature 0

release: setup-tests
	cmake --preset release -DHEXPORT_TESTS=ON $(CMAKE_ROOTS) --log-level=WARNING
	cmake --build --preset release -j $(JOBS)

asan: setup-tests
	cmake --preset asan $(CMAKE_ROOTS) --log-level=WARNING
	cmake --build --preset asan -j $(JOBS)

fuzz: setup-tests
	cmake --preset fuzz $(CMAKE_ROOTS) --log-level=WARNING
	cmake --build --preset fuzz -j $(JOBS) --target fuzzers

test: setup-tests
	@MAKE="$(MAKE)" JOBS=$(JOBS) FUZZ_SECONDS=$(FUZZ_SECONDS) tests/run_all.sh

accept: demo
	tests/accept.sh

accept-quant: setup-quant hexport
	tests/accept_quant.py $(QUANT)

format: setup-tools
	clang-format-19 -i $(CXX_FILES)

format-check: setup-tools
	clang-format-19 --dry-run -Werror $(CXX_FILES)

# Needs compile_commands.json and the generated protobuf headers, hence the release build.
tidy: setup-tools release
	git ls-files 'src/*.cc' | xargs -P $(JOBS) -n 4 clang-tidy-19 -p build/release --quiet

clean:
	rm -rf build out
