#!/usr/bin/env python3
"""Checks every #include of the tree against the arrows of docs/ARCHITECTURE.md, and that no folders of src/op or of src/lab
include each other.

Prints `file:line: includes "X": why; allowed: ...` for each offence and exits 1, or one line and exits 0.
Usage: check_layers.py [ROOT]   (default: the repository this file is in)
"""
import pathlib
import re
import sys

# What stands directly to the left of each layer; the allowed set is everything reachable.
LEFT = {
    "base": [],
    "text": ["base"],
    "grammar": ["base"],
    "http": ["base"],
    "format": ["base"],
    "gpu": ["base"],
    "op": ["format", "gpu"],
    "io": ["format"],
    "model": ["op", "io"],
    "rank": ["base"],
    "engine": ["model", "rank"],
    "serve": ["engine", "text", "grammar", "http"],
    "lab": ["engine", "http"],
    "top": ["http", "text"],
    "chat": ["serve", "text"],
    "capi": ["lab", "serve"],
    "cli": ["lab", "chat", "top"],
}
SOURCES = {".h", ".cpp", ".cu", ".hip"}
TOP_FOLDERS = ("include", "src", "tests")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
HAVE_DEVICE_HEADERS = {("src", "gpu"), ("tests", "emulate")}  # the second one brings its own
LAYERS_OF_FOLDERS = ("op", "lab")  # their folders are layers too, in an order that only has to be one
DEVICE_HEADER = re.compile(r"^(cuda|nv|cub/|thrust/|cooperative_groups|mma\.h|hip/|rocm)")
INTRINSICS_HEADER = re.compile(r"^([a-z]+mmintrin|immintrin|x86intrin|arm_neon)\.h$")
# Who may include code of an instruction set: files whose flags have its instructions.
USERS = {
    "avx2": ("avx2", "avxvnni", "avx512"),
    "avxvnni": ("avxvnni", "avx512"),
    "avx512": ("avx512",),
    "neon": ("neon",),
}
ISA_FILE = re.compile(rf"(?:^|[_/])({'|'.join(USERS)})\.(h|cpp)$")
C_HEADERS = {"stdbool.h", "stddef.h", "stdint.h"}


def allowed_layers(layer):
    """The layer itself and everything to its left."""
    reach, todo = set(), [layer]
    while todo:
        name = todo.pop()
        if name not in reach:
            reach.add(name)
            todo.extend(LEFT[name])
    return reach


def layer_of(path):
    """'op' for src/op/..., 'api' for include/..., 'tests' for those; path is relative to the root."""
    if path.parts[0] == "src":
        return path.parts[1] if len(path.parts) > 2 else None
    return {"include": "api"}.get(path.parts[0], path.parts[0])


def layer_offence(path, header):
    """Why a quoted include breaks the arrows, or None."""
    layer, folder = layer_of(path), header.split("/")[0]
    if layer == "api":
        return None if folder == "ridge" else ("the public API includes only itself and the standard library", ["ridge"])
    if layer == "tests" or (folder == "ridge" and layer in LEFT):
        return None
    if layer not in LEFT:
        return (f"src/{layer or path.name} is not a layer", sorted(LEFT))
    allowed = allowed_layers(layer)
    if folder not in LEFT or "/" not in header:
        return ("quoted includes start with a layer's folder", ["ridge"] + sorted(allowed))
    return None if folder in allowed else (f"{layer} may not see {folder}", ["ridge"] + sorted(allowed))


def reach_offence(path, header):
    """Why an include needs hardware or a toolkit that this file may not assume, or None."""
    if DEVICE_HEADER.match(header) and path.suffix not in (".cu", ".hip") and path.parts[:2] not in HAVE_DEVICE_HEADERS:
        return ("a machine without a GPU toolkit must build this file", ["src/gpu/*", "tests/emulate/*", "*.cu", "*.hip"])
    own, other = ISA_FILE.search(path.name), ISA_FILE.search(header)
    if INTRINSICS_HEADER.match(header) and not own:
        return ("vector intrinsics stay where the compiler's ISA flags are", [f"*{isa}.{{h,cpp}}" for isa in USERS])
    may = USERS[other.group(1)] if other else ()
    if other and (not own or own.group(1) not in may):
        return (f"only {', '.join(may)} code may see {other.group(1)} code", [f"*{isa}.{{h,cpp}}" for isa in may])
    return None


def api_offence(path, header):
    """Why an angle include is wrong in the public API, or None."""
    standard = re.fullmatch(r"[a-z_]+", header) or header in C_HEADERS
    if layer_of(path) != "api" or standard:
        return None
    return ("the public API includes only itself and the standard library", ["ridge", "<standard>"])


def cycles(includes):
    """A line for each include that closes a circle of folders of one layer."""
    edges = {}
    for path, _, header in includes:
        pair = folders_of(path, header)
        if pair:
            edges.setdefault(pair[0], set()).add(pair[1])

    def reach(folder):
        seen, todo = set(), [folder]
        while todo:
            for name in edges.get(todo.pop(), set()) - seen:
                seen.add(name)
                todo.append(name)
        return seen

    for path, number, header in includes:
        pair = folders_of(path, header)
        if pair and pair[0] in reach(pair[1]):
            yield (f'{path}:{number}: includes "{header}": {pair[1]} includes {pair[0]} too, in one or more steps; '
                   f"allowed: one direction")


def folders_of(path, header):
    """("op/attn", "op/cache") of an include between two folders of a layer, or None."""
    here, there = path.parts[1:-1], tuple(header.split("/")[:-1])
    if path.parts[0] != "src" or len(here) < 2 or len(there) < 2 or here[0] not in LAYERS_OF_FOLDERS or here[0] != there[0]:
        return None
    return None if here[1] == there[1] else ("/".join(here[:2]), "/".join(there[:2]))


def offences(root):
    includes = []
    for top in TOP_FOLDERS:
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in SOURCES:
                continue
            path = file.relative_to(root)
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                quote, header = match.groups()
                includes.append((path, number, header))
                found = [reach_offence(path, header)]
                found.append(layer_offence(path, header) if quote == '"' else api_offence(path, header))
                for why, allowed in filter(None, found):
                    yield f'{path}:{number}: includes "{header}": {why}; allowed: {" ".join(allowed)}'
    yield from cycles(includes)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    found = list(offences(root))
    print("\n".join(found) if found else "layers: every include points to the left")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
