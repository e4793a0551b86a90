#!/usr/bin/env python3
"""Rewrites JSON files with one array of numbers a line: arrays.py FILE...   (--check: says which files differ, exits
1)"""
import json
import pathlib
import sys


def text(value, indent=0):
    """Objects and arrays of objects with a line for each member; any other value on one line."""
    inner, outer = " " * (indent + 1), " " * indent
    if isinstance(value, dict):
        lines = [f"{inner}{json.dumps(key)}: {text(member, indent + 1)}" for key, member in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{outer}}}"
    if isinstance(value, list) and any(isinstance(member, (dict, list)) for member in value):
        return "[\n" + ",\n".join(inner + text(member, indent + 1) for member in value) + f"\n{outer}]"
    return json.dumps(value)


def main():
    different = []
    for name in [word for word in sys.argv[1:] if word != "--check"]:
        path = pathlib.Path(name)
        before = path.read_text(encoding="utf-8")
        after = text(json.loads(before)) + "\n"
        if after != before:
            different.append(name)
            if "--check" not in sys.argv:
                path.write_text(after, encoding="utf-8")
    if "--check" in sys.argv and different:
        sys.exit("more than one line for an array (tests/golden/arrays.py FILE): " + " ".join(different))


if __name__ == "__main__":
    main()
