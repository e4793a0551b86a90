#!/usr/bin/env python3
"""Checks that no line of src, include and tests is wider than 120 columns: *.h, *.cpp, *.cu, *.hip and *.py.

clang-format does not cut comments and texts, and Python has no formatter here. Texts that tests give to a program or
expect of it may be wider: in tests, lines of raw strings (R"(...)") and of Python's texts in triple quotes.

Prints `file:line: N columns` for each offence and exits 1, or one line and exits 0.
Usage: check_width.py [ROOT]   (default: the repository this file is in)
"""
import pathlib
import re
import sys

MOST_COLUMNS = 120
SOURCES = {".h", ".cpp", ".cu", ".hip", ".py"}
TEXT = {True: re.compile(r'"""(?:\\.|.)*?"""', re.S), False: re.compile(r'R"([^()\s\\]*)\(.*?\)\1"', re.S)}


def offences(path, source):
    of_text = set()
    if path.startswith("tests/"):
        for match in TEXT[path.endswith(".py")].finditer(source):
            first = source.count("\n", 0, match.start())
            of_text.update(range(first, first + match[0].count("\n") + 1))
    return [f"{path}:{i + 1}: {len(line)} columns" for i, line in enumerate(source.split("\n"))
            if len(line) > MOST_COLUMNS and i not in of_text]


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    files = [file for top in ("include", "src", "tests") for file in sorted((root / top).rglob("*.*"))
             if file.suffix in SOURCES]
    found = [offence for file in files
             for offence in offences(file.relative_to(root).as_posix(), file.read_text(encoding="utf-8"))]
    print("\n".join(found) if found else f"width: {len(files)} files, at most {MOST_COLUMNS} columns")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
