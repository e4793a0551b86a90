#!/usr/bin/env python3
"""Compiles decode attention (tests/gpu/hip_check.hip) to RDNA3 assembly and checks its instructions.

Needs Debian's clang-19 and libamdhip64-dev, no GPU; what it shows is the compiler's output, nothing is run.
Without the compiler it exits 77 (a skipped test), or 1 with --require.
"""
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMPILER = "clang++-19"
ARCHITECTURES = ("gfx1100", "gfx1151")
# Both are unrolled over a tile. A warp multiplies 8 heads in two planes with 32 positions of 128 channels, for K and for
# V: 2^17 products, 32 lanes, 4 a dot product. Rotor-3 looks up 2^12 codes a side in fours, and both cut the weights'
# integers in bytes.
DOTS = 2**17 // (32 * 4)
LOOKUPS = 2 * 2**12 // (32 * 4)
KERNELS = {
    "attention over p8": ("ILi128ELi3ELi3ELb0EE", {"v_dot4_i32_iu8": DOTS, "v_perm_b32": 1}),
    "attention over rotor-3": ("ILi128ELi7ELi7ELb0EE", {"v_dot4_i32_iu8": DOTS, "v_perm_b32": LOOKUPS}),
}


def assembly(architecture):
    """The device assembly, as text."""
    command = [COMPILER, "-x", "hip", f"--offload-arch={architecture}", "--rocm-path=/usr", "-nogpulib", "-O3", "-std=c++20",
               "-Wall", "-Wextra", "-Werror", "--cuda-device-only", "-S", "-I", ROOT / "src", "-I", ROOT / "include",
               ROOT / "tests" / "gpu" / "hip_check.hip", "-o", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{architecture}: {COMPILER} failed\n{done.stderr}")
    return done.stdout


def kernel_text(text, arguments):
    """The instructions of the kernel with these template arguments, and the facts behind them."""
    found = re.search(rf"^_Z\w*attn_split_kernel{arguments}\w*:.*?\.end_amdhsa_kernel", text, re.MULTILINE | re.DOTALL)
    if not found:
        sys.exit(f"the assembly has no attn_split_kernel{arguments}")
    return found.group()


def is_right(name, text, expected):
    """Prints what a kernel has and whether that is enough."""
    counts = {word: len(re.findall(rf"^\s+{word}\b", text, re.MULTILINE)) for word in (*expected, "s_swappc_b64")}
    print(f"{name}: " + ", ".join(f"{counts[word]} x {word} (at least {least})" for word, least in expected.items()))
    right = all(counts[word] >= least for word, least in expected.items())
    if counts["s_swappc_b64"]:
        print(f"{name}: {counts['s_swappc_b64']} calls; everything should be inline")
        right = False
    if not re.search(r"\.amdhsa_wavefront_size32 1\b", text):
        print(f"{name}: wavefronts are not of 32 lanes")
        right = False
    return right


def main():
    if not shutil.which(COMPILER) or not pathlib.Path("/usr/include/hip/hip_runtime.h").exists():
        print(f"skipped: {COMPILER} or the HIP headers are missing (apt-get install clang-19 libamdhip64-dev)")
        return 1 if "--require" in sys.argv else 77
    right = True
    for architecture in ARCHITECTURES:
        text = assembly(architecture)
        for name, (arguments, expected) in KERNELS.items():
            right &= is_right(f"{architecture} {name}", kernel_text(text, arguments), expected)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
