"""Whether the code that made stored rows is still the code: by the history of the files that each kind of row times or judges."""

import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ("src/format", "src/op", "src/model", "src/engine")
CACHE = ("src/format", "src/op/attn", "src/op/cache")
FOLDERS = {  # of results/NAME*.jsonl
    "bandwidth": ("src/op/stream", "src/op/rate"),
    "batch": MODEL,
    "collective": ("src/op/collective", "src/rank"),
    "decode": MODEL,
    "kv": (*CACHE, "src/model", "src/engine"),
    "ppl": MODEL,
    "ranks": (*MODEL, "src/rank"),
    "profile": MODEL,
    "serve": (*MODEL, "src/serve"),
    "service": (*MODEL, "src/serve"),
}
OPS = {  # of rows of single ops, in sweep-*.jsonl and op-*.jsonl
    "attention": CACHE,
    "gemv": ("src/format", "src/op/gemv", "src/op/gemm", "src/op/linear.h", "src/op/device_linear.h", "src/op/device_linear.cpp",
             "src/op/device_product.h", "src/op/device_product_cuda.cpp"),
    "append": ("src/format", "src/op/cache"),
}
# Files in these folders that the other kind of machine runs, and what kernels of one op are made with.
ONLY_CPU = ("*_avx2.cpp", "*_avx512.cpp", "cpu_*")
ONLY_GPU = ("*_cuda.*", "*.cu", "cuda_*")
GPU_HEADERS = ("src/gpu/launch.h", "src/gpu/tensor.h", "src/gpu/dot_mma.h")
CPU_HEADERS = ("src/op/simd",)


def git(*arguments):
    found = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def watched(name, op):
    """The paths that decide about rows of a file, and those left out; nothing for files that have no age."""
    kind, _, device = pathlib.Path(name).stem.partition("-")
    paths = OPS.get(op) if kind in ("sweep", "op") else FOLDERS.get(kind)
    if paths is None:
        return None, ()
    if device == "cuda":
        return (*paths, *GPU_HEADERS), ONLY_CPU
    if device == "cpu":
        return (*paths, *CPU_HEADERS) if op else paths, ONLY_GPU
    return paths, ()


def state(commit, paths, left_out, known):
    """`known` where the history does not reach the commit: clones without history, and copies of the tree, cannot tell."""
    if git("merge-base", "--is-ancestor", commit, "HEAD") is None:
        return known or "not a commit of this history"
    without = [f":(exclude,glob)**/{pattern}" for pattern in left_out]
    changed = [path for path in paths if git("log", "--max-count=1", "--format=%h", f"{commit}..HEAD", "--", path, *without)]
    return f"stale: later commits change {', '.join(changed)}" if changed else "current"


def table(before=""):
    """`before`: the table as it stands."""
    known = {tuple(cells[:2]): cells[3] for line in before.splitlines() if len(cells := line.strip("| ").split(" | ")) == 4}
    lines = ["| rows | build | number | state |", "|---|---|---:|---|"]
    for path in sorted((ROOT / "results").glob("*.jsonl")):
        builds = {}
        for row in map(json.loads, path.read_text().splitlines()):
            build, op = row.get("build_commit"), row.get("op", "")
            if build and watched(path.name, op)[0]:
                builds[op, build] = builds.get((op, build), 0) + 1
        for (op, build), n in sorted(builds.items()):
            rows = f"{path.name}, {op}" if op else path.name
            lines.append(f"| {rows} | {build} | {n} | {state(build.removesuffix('-dirty'), *watched(path.name, op), known.get((rows, build)))} |")
    return lines
