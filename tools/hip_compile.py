#!/usr/bin/env python3
"""How device files are compiled for AMD GPUs: which files, with which flags. CMake, tools/hip_check.py and emulators ask here.

Usage: hip_compile.py [--compiler CXX] [--folder DIR] ARCHITECTURE...    prints the flags of the device library, one a line

The device library comes with ROCm. Debian 12 has one of 2022 (rocm-device-libs) that knows no RDNA3: a folder of links to it
and of a generated module for each architecture makes it serve. Exits 6 where there is none.
"""
import argparse
import functools
import os
import pathlib
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parent.parent
COMPILER = "clang++-19"
ARCHITECTURES = ("gfx1100", "gfx1151")
DEBIAN_LIBRARY = pathlib.Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode")
# A HIP build works on one GPU: links between GPUs are left out.
LEFT_OUT = ("src/gpu/peer.cu", "src/op/collective/one_shot_cuda.cu")
WARNINGS = ("-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Wno-unused-result", "-Wno-cuda-compat",
            "-Wno-pass-failed")


def device_files():
    """Paths of the device files of a HIP build, from the tree's root."""
    paths = sorted(path.relative_to(TREE).as_posix() for path in (TREE / "src").rglob("*.cu"))
    return [path for path in paths if path not in LEFT_OUT]


def version_number(architecture):
    """As the device library counts: 11501 is gfx1151."""
    digits = architecture.removeprefix("gfx")
    return 1000 * int(digits[:-2]) + 100 * int(digits[-2], 16) + int(digits[-1], 16)


def has_library(compiler, architecture):
    """Whether the compiler finds a device library that knows the architecture."""
    command = [compiler, "-x", "hip", f"--offload-arch={architecture}", "--cuda-device-only", "-nogpuinc", "-c", os.devnull, "-o", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def write_module(compiler, architecture, folder):
    module = folder / f"oclc_isa_version_{architecture.removeprefix('gfx')}.bc"
    if module.exists():
        return
    text = (
        'target triple = "amdgcn-amd-amdhsa"\n'
        "@__oclc_ISA_version = linkonce_odr protected unnamed_addr addrspace(4) constant i32 "
        f"{version_number(architecture)}, align 4\n"
    )
    command = [compiler, "-x", "ir", "-c", "-emit-llvm", "-nogpulib", "--target=amdgcn-amd-amdhsa", "-", "-o", module]
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"hip_compile: {compiler} makes no bitcode for AMD GPUs: {done.stderr}")


@functools.cache
def library_flags(compiler, architectures, folder):
    """Flags by which the compiler finds headers and device library; `folder` keeps what must be generated."""
    if all(has_library(compiler, one) for one in architectures):
        return ()
    if not DEBIAN_LIBRARY.is_dir():
        sys.stderr.write(
            f"hip_compile: {compiler} finds no ROCm device library for {' '.join(architectures)}: install ROCm, or on Debian "
            "apt-get install clang-19 lld-19 clang-tools-19 libamdhip64-dev rocm-device-libs\n")
        sys.exit(6)
    folder.mkdir(parents=True, exist_ok=True)
    for module in DEBIAN_LIBRARY.glob("*.bc"):
        link = folder / module.name
        if not link.exists():
            link.symlink_to(module)
    for one in architectures:
        write_module(compiler, one, folder)
    return "--rocm-path=/usr", f"--rocm-device-lib-path={folder}"


def source_flags(source):
    """Flags of a file, whatever is made of it: as cmake/hip.cmake has them."""
    flags = ["-x", "hip", "-std=c++20", *WARNINGS, "-include", "gpu/hip_shim.h", f"-I{TREE / 'src'}", f"-I{TREE / 'include'}"]
    return flags + (["-ffp-contract=off"] if str(source).endswith("_exact.cu") else [])


def command(source, architecture, level="-O3", make="-c", compiler=COMPILER, folder=None):
    """The command, but for -o, that makes a code object of a device file, or its assembly (make="-S")."""
    folder = folder or TREE / "build" / "hip-library"
    return [compiler, *source_flags(source), f"--offload-arch={architecture}", *library_flags(compiler, (architecture,), folder),
            level, "--cuda-device-only", "--no-gpu-bundle-output", make, str(TREE / source)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", default=COMPILER)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/hip-library"))
    parser.add_argument("architectures", nargs="+")
    args = parser.parse_args()
    for flag in library_flags(args.compiler, tuple(args.architectures), args.folder.resolve()):
        print(flag)
    return 0


if __name__ == "__main__":
    sys.exit(main())
