#!/usr/bin/env python3
"""Checks that a program was built hardened: at a random address, with its tables read-only, with guarded stacks.

Usage: check_hardening.py PROGRAM
"""
import re
import subprocess
import sys


def readelf(path):
    command = ["readelf", "--wide", "--file-header", "--program-headers", "--dynamic", "--dyn-syms", path]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}).stdout


def missing(text):
    stack = re.search(r"^ *GNU_STACK .* ([RWE ]{3}) 0x", text, re.MULTILINE)
    checks = {
        "a position-independent program (-pie)": re.search(r"Type: +DYN", text) and re.search(r"FLAGS_1.*\bPIE\b", text),
        "all symbols bound at the start (-z now)": re.search(r"\(FLAGS\).*\bBIND_NOW\b|\(FLAGS_1\).*\bNOW\b", text),
        "tables that are read-only afterwards (-z relro)": re.search(r"^ *GNU_RELRO ", text, re.MULTILINE),
        "a stack that holds no code (-z noexecstack)": stack and "E" not in stack[1],
        "guarded stack frames (-fstack-protector-strong)": "__stack_chk_fail@" in text,
        "checked copies (-D_FORTIFY_SOURCE)": re.search(r" __(?!stack_)\w+_chk@", text),
    }
    return [name for name, found in checks.items() if not found]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    lacks = missing(readelf(sys.argv[1]))
    for name in lacks:
        print(f"{sys.argv[1]} lacks {name}")
    print(f"{len(lacks)} of 6 protections missing")
    return 1 if lacks else 0


if __name__ == "__main__":
    sys.exit(main())
