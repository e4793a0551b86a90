#!/usr/bin/env python3
"""Compiles tests/gpu/hip_check.hip to RDNA3 assembly and checks that its inner loop has the instructions it was written for.

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
EXPECTED = {"v_dot4_i32_iu8": 2, "v_perm_b32": 2}  # a loop turn codes 8 values: two words of four


def assembly(architecture):
    """The device assembly, as text."""
    command = [COMPILER, "-x", "hip", f"--offload-arch={architecture}", "--rocm-path=/usr", "-nogpulib", "-O3", "-std=c++20",
               "-Wall", "-Wextra", "-Werror", "--cuda-device-only", "-S", "-I", ROOT / "src", "-I", ROOT / "tests",
               ROOT / "tests" / "gpu" / "hip_check.hip", "-o", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{architecture}: {COMPILER} failed\n{done.stderr}")
    return done.stdout


def main():
    if not shutil.which(COMPILER) or not pathlib.Path("/usr/include/hip/hip_runtime.h").exists():
        print(f"skipped: {COMPILER} or the HIP headers are missing (apt-get install clang-19 libamdhip64-dev)")
        return 1 if "--require" in sys.argv else 77
    failed = False
    for architecture in ARCHITECTURES:
        text = assembly(architecture)
        for instruction, least in EXPECTED.items():
            count = len(re.findall(rf"^\s+{instruction}\b", text, re.MULTILINE))
            print(f"{architecture}: {count} x {instruction} (at least {least})")
            failed = failed or count < least
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
