#!/usr/bin/env python3
"""Checks that objects compiled for AVX2, AVX-VNNI, AVX-512 or NEON with dot products define no weak function.

An inline function or template that the compiler emitted out of line is a weak symbol, and the linker keeps one copy of
it for the whole program. If that copy came from a file with ISA flags, code that runs before any CPU check would crash
on an older processor. Kernels keep their helpers in unnamed namespaces and their headers small; this is the proof.
Usage: check_isa_symbols.py OBJECT...   (files not named *_avx2.cpp.o, *_avxvnni.cpp.o, *_avx512.cpp.o or *_neon.cpp.o are left alone)
"""
import re
import subprocess
import sys

ISA_OBJECT = re.compile(r"_(avx2|avxvnni|avx512|neon)\.cpp\.o$")


def weak_functions(path):
    listing = subprocess.run(["nm", "-C", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    return [line.split(" W ", 1)[1] for line in listing.splitlines() if " W " in line]


def main():
    objects = [path for path in sys.argv[1:] if ISA_OBJECT.search(path)]
    found = [(path, name) for path in objects for name in weak_functions(path)]
    for path, name in found:
        print(f"{path}: weak function {name} (inline it, or move it to an unnamed namespace)")
    print(f"{len(objects)} objects with ISA flags, {len(found)} weak functions")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
