#!/usr/bin/env python3
"""Compiles device files for a GPU architecture and lists what the kernels take: registers, stack, spills, shared memory.

Usage: kernel_resources.py [--arch sm_120] [--stack BYTES] [--all] [FILE...]

Without files: all *.cu below src. Prints the kernels that have a stack frame or spill (--all: every kernel), then a line of
sums. Exits 1 where a kernel's stack frame is larger than --stack (LARGER_STACKS has exceptions), or static shared memory is
above 48 KB, or a file does not compile; 6 where nvcc is missing. Needs no GPU. All files take about half an hour of one
processor.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parent.parent
STATIC_SHARED_LIMIT = 48 << 10
# Files whose kernels have a larger stack than others may: one thread of theirs codes a row as the host does, or decodes a
# block of 256 weights, in arrays. None of them copies in bulk, which on sm_120 a large stack is in the way of.
LARGER_STACKS = {"append_rows_exact.cu": 3584, "calibrate_exact.cu": 3584, "expert_rows_cuda.cu": 1280}


def flags(source: pathlib.Path) -> list[str]:
    """As cmake/ridge.cmake has them."""
    made = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", f"-I{TREE / 'include'}", f"-I{TREE / 'src'}", "-DNDEBUG"]
    return made + (["-fmad=false"] if source.name.endswith("_exact.cu") else [])


def names(mangled: list[str]) -> list[str]:
    plain = subprocess.run(["c++filt", "-p"], input="\n".join(mangled), capture_output=True, text=True, check=True)
    return plain.stdout.splitlines()


def read_report(report: str) -> list[dict]:
    """What ptxas -v says of each kernel; device functions that were not inlined have properties too."""
    kernels: list[dict] = []
    known: dict[str, dict] = {}
    for line in report.splitlines():
        if found := re.search(r"Function properties for (\S+)", line):
            known[found[1]] = one = {"name": found[1]}
            kernels.append(one)
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            kernels[-1] |= {"stack": int(found[1]), "spills": int(found[2]) + int(found[3])}
        elif found := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            kernels[-1] |= {"registers": int(found[1]), "shared": int(shared[1]) if shared else 0}
    return kernels


def compile_one(nvcc: str, arch: str, source: pathlib.Path) -> tuple[pathlib.Path, int, str]:
    command = [nvcc, f"-arch={arch}", "-cubin", "-o", os.devnull, "-Xptxas", "-v", *flags(source), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    return source, done.returncode, done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--arch", default="sm_120")
    parser.add_argument("--stack", type=int, default=1024, help="bytes of stack that a kernel may have")
    parser.add_argument("--all", action="store_true", help="list every kernel")
    args = parser.parse_args()
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if not nvcc:
        print("kernel_resources: nvcc is missing (CUDA 13)", file=sys.stderr)
        return 6
    files = args.files or sorted((TREE / "src").rglob("*.cu"))
    failed, n_kernels, most_stack, most_registers = 0, 0, 0, 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for source, status, report in pool.map(lambda one: compile_one(nvcc, args.arch, one), files):
            if status != 0:
                print(f"{source}: does not compile for {args.arch}\n{report}")
                failed += 1
                continue
            kernels = [one for one in read_report(report) if "registers" in one]
            for one, name in zip(kernels, names([one["name"] for one in kernels])):
                wrong = one["stack"] > max(args.stack, LARGER_STACKS.get(source.name, 0)) or one["shared"] > STATIC_SHARED_LIMIT
                failed += wrong
                n_kernels += 1
                most_stack, most_registers = max(most_stack, one["stack"]), max(most_registers, one["registers"])
                if wrong or args.all or one["stack"] or one["spills"]:
                    print(f"{source.name}: {name}: {one['registers']} registers, {one['stack']} bytes of stack, "
                          f"{one['spills']} spilled, {one['shared']} bytes of shared memory{'  TOO MUCH' * wrong}", flush=True)
    print(f"{args.arch}: {n_kernels} kernels of {len(files)} files, at most {most_registers} registers and {most_stack} bytes "
          f"of stack; {failed} faults")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
