#!/usr/bin/env python3
"""Compiles device code for RDNA3 (gfx1100 and gfx1151) and checks the assembly of decode kernels. Nothing runs here.

Usage: hip_check.py [--require] [--all [--part I/N]]

The decode kernels of the table KERNELS are compiled at -O3 and held to its numbers: at least so many dot products and
lookups, at most so many spilled registers and bytes of scratch. --all compiles every device file of a HIP build for both
targets as well, at -O0; --part: each N-th file. Needs Debian's clang-19, lld-19, libamdhip64-dev and rocm-device-libs, no GPU.
Without them it exits 77 (a skipped test), or 1 with --require.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

import hip_compile

# What one pass over a tile of attention takes, unrolled. A warp multiplies 8 heads in two planes with 32 positions of 128
# channels, for K and for V: 2^17 products, 32 lanes, 4 a dot product. Rotor-3 looks up 2^12 codes a side in fours, and both
# cut the weights' integers in bytes.
DOTS = 2**17 // (32 * 4)
LOOKUPS = 2 * 2**12 // (32 * 4)


class Kernel(NamedTuple):
    name: str
    source: str
    mangled: str  # a part of its mangled name
    least: dict  # instruction: how often at least
    spills: int  # vector registers, at most
    scratch: int  # bytes a lane, at most
    slow: bool = False  # its file takes a minute: with --all only


ATTENTION, STREAM = "tests/gpu/hip_check.hip", "src/op/gemv/int_stream_cuda.cu"


def stream(name, kind, dots, spills, scratch):
    """A product of one token by a kind of weights (IntKind), as decode takes it most often."""
    depth = 4 if kind < 2 else 2
    one = int(kind != 1)  # not of ternary weights
    return Kernel(f"product with {name}", STREAM, f"int_stream_kernelILNS_7IntKindE{kind}ELi1ELi{depth}ELb{one}EE", {"v_dot4_i32_iu8": dots},
                  spills, scratch, True)


KERNELS = [
    Kernel("attention over p8", ATTENTION, "attn_split_kernelILi128ELi3ELi3ELb0ELb0EE", {"v_dot4_i32_iu8": DOTS, "v_perm_b32": 1}, 32, 132),
    # With terms of a turning centre in rounds (50b150a5): 133 registers and 296 bytes before. A loss, to be mended.
    Kernel("attention over rotor-3", ATTENTION, "attn_split_kernelILi128ELi7ELi7ELb0ELb1EE",
           {"v_dot4_i32_iu8": DOTS, "v_perm_b32": LOOKUPS}, 688, 2004),
    Kernel("parts of attention joined", "src/op/attn/tile_attn_cuda.cu", "attn_join_kernelILi128ELb0EE", {}, 0, 0),
    Kernel("parts joined, a warp a head", "src/op/attn/tile_attn_cuda.cu", "attn_join_kernelILi128ELb1EE", {}, 0, 0),
    Kernel("rows appended, rotated", "src/op/cache/append_tiles_exact.cu", "append_kernelILi4ELb1ELi1EE", {}, 0, 0),
    Kernel("RMS norm", "src/op/norm_rope/norm_rope_cuda.cu", "rms_norm_kernel", {}, 0, 0),
    stream("int4_g128", 0, 128, 0, 0),
    stream("ternary", 1, 256, 0, 0),
    stream("q4_k", 2, 256, 48, 112),
    stream("q5_k", 3, 256, 50, 120),
    stream("q6_k", 4, 256, 0, 0),
]
RESOURCES = {"vector registers": r"VGPRs", "spills": r"VGPRs Spill", "scalar spills": r"SGPRs Spill", "scratch": r"ScratchSize \[bytes/lane\]",
             "shared": r"LDS Size \[bytes/block\]"}


def resources(remarks):
    """{mangled name: {what: number}} of the compiler's remarks on kernels' resources."""
    found = {}
    for block in re.split(r"remark: Function Name: ", remarks)[1:]:
        name = block.split(" ", 1)[0]
        found[name] = {what: int(re.search(rf"remark: +{pattern}: (\d+)", block)[1]) for what, pattern in RESOURCES.items()}
    return found


def compile_file(source, architecture, level, make, output):
    """The remarks on the kernels of a file; exits where it does not compile."""
    command = hip_compile.command(source, architecture, level, make)
    done = subprocess.run([*command, "-Werror", "-Rpass-analysis=kernel-resource-usage", "-o", output], capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{source} does not compile for {architecture}\n{done.stderr}")
    return done.stderr


def kernel_text(assembly, name):
    """The instructions of the kernel of this mangled name, and the facts behind them."""
    return re.search(rf"^{name}:.*?\.end_amdhsa_kernel", assembly, re.MULTILINE | re.DOTALL).group()


def faults(kernel, text, used):
    """What is wrong with the assembly and the resources of a kernel; what is right is printed."""
    counts = {word: len(re.findall(rf"^\s+{word}\b", text, re.MULTILINE)) for word in (*kernel.least, "s_swappc_b64", "ds_bpermute_b32")}
    print(f"  {kernel.name}: " + "".join(f"{counts[word]} x {word} (at least {n}), " for word, n in kernel.least.items()) +
          f"{counts['ds_bpermute_b32']} x ds_bpermute_b32, {used['vector registers']} vector registers, {used['spills']} spilled (at most "
          f"{kernel.spills}), {used['scratch']} bytes of scratch (at most {kernel.scratch})")
    wrong = [f"{counts[word]} x {word}" for word, least in kernel.least.items() if counts[word] < least]
    if counts["s_swappc_b64"]:
        wrong.append(f"{counts['s_swappc_b64']} calls; everything should be inline")
    if not re.search(r"\.amdhsa_wavefront_size32 1\b", text):
        wrong.append("wavefronts are not of 32 lanes")
    if used["spills"] > kernel.spills or used["scratch"] > kernel.scratch:
        wrong.append("more registers spilled, or more scratch, than the table has")
    return [f"{kernel.name}: {what}" for what in wrong]


def check_kernels(source, architecture):
    """Faults of the kernels of the table that are in one file."""
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder, "kernels.s")
        used = resources(compile_file(source, architecture, "-O3", "-S", output))
        assembly = output.read_text()
    print(f"{architecture}, {source}:")
    wrong = []
    for kernel in KERNELS:
        if kernel.source != source:
            continue
        names = [name for name in used if kernel.mangled in name]
        wrong += faults(kernel, kernel_text(assembly, names[0]), used[names[0]]) if names else [f"{kernel.name}: {source} has no such kernel"]
    return [f"{architecture} {what}" for what in wrong]


def compile_all(part):
    """Compiles the part's files for both targets."""
    index, n_parts = (int(word) for word in part.split("/"))
    files = hip_compile.device_files()[index::n_parts]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [(file, one) for file in files for one in hip_compile.ARCHITECTURES]
        n = sum(len(resources(remarks)) for remarks in pool.map(lambda job: compile_file(*job, "-O0", "-c", os.devnull), jobs))
    print(f"{len(files)} files for {' and '.join(hip_compile.ARCHITECTURES)}: {n} kernels")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--require", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--part", default="0/1")
    args = parser.parse_args()
    if not all((shutil.which(hip_compile.COMPILER), shutil.which("ld.lld-19"), pathlib.Path("/usr/include/hip/hip_runtime.h").exists(),
                hip_compile.DEBIAN_LIBRARY.exists())):
        print("skipped: compiler, headers or device library are missing (apt-get install clang-19 lld-19 libamdhip64-dev rocm-device-libs)")
        return 1 if args.require else 77
    wrong = []
    for source in dict.fromkeys(kernel.source for kernel in KERNELS if args.all or not kernel.slow):
        for architecture in hip_compile.ARCHITECTURES:
            wrong += check_kernels(source, architecture)
    if args.all:
        compile_all(args.part)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
