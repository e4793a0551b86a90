"""What stored rows say about themselves, and whether the code that made them has changed since.

A row names its build, command, card, date, the load of its machine, whether its output was checked, and comes from an optimised build. `missing()` says what a row leaves out; the test
tools/rows (tests/tools/rows_test.py) refuses new rows with gaps.
"""

import functools
import json
import re
import subprocess

from tables.rows import RESULTS, ROOT, card, stored, table

# What decides about the numbers of a kind of rows. Files of the other kind of machine are left out.
KERNELS = ("src/format", "src/op")
ATTENTION = ("src/format", "src/op/attn", "src/op/cache")
PRODUCTS = ("src/format", "src/op/gemv", "src/op/gemm", "src/op/linear*", "src/op/device_linear*", "src/op/device_matmul*")
FORWARD = (*KERNELS, "src/model", "src/engine")
PATHS = {
    "ops": {"attention": ATTENTION, "gemv": PRODUCTS, "append": ("src/format", "src/op/cache"), "all_reduce": ("src/op/collective", "src/rank")},
    "bandwidth": ("src/op/stream", "src/op/rate"),
    "forward": FORWARD,
    "quality": (*ATTENTION, "src/op/score", "src/model", "src/engine", "src/lab/quality"),
    "ranks": (*FORWARD, "src/op/collective", "src/rank"),
    "server": (*FORWARD, "src/serve", "src/lab/serve"),
    "speculation": (*FORWARD,),
    "plan": ("src/lab/decide/plan*", "src/op/cache", "src/model", "src/engine"),
    "grammar": ("src/grammar",),
    "head": ("models/train_mtp_head.py",),
    "vocab": ("tools/vocab_share.py",),
    "threads": ("src/base/thread_pool*",),
}
FILES = {  # the first part of a file's name that fits decides
    "bandwidth": "bandwidth", "batch": "forward", "centre": "forward", "busy-threads": "threads", "floors": "quality", "panels": "ops", "real-files": "forward", "collective": "ops", "decode": "forward", "host-experts": "forward", "expert-cache": "forward", "mamba-chunks": "forward", "exact": "speculation", "kv": "quality", "op": "ops", "ppl": "quality",
    "profile": "forward", "ranks": "ranks", "serve": "server", "service": "server", "sweep": "ops", "amd-emulated": "ops", "amd-programs": "forward", "append": "ops", "attention": "ops", "baselines": "ops",
    "coding-share": "forward", "coding": "ops", "counters": "forward", "crowd": "server", "decisions": "forward", "int-tokens": "ops", "int4-planes": "quality", "mask-cost": "grammar", "mtp-head": "head",
    "plan": "plan", "sampling": "forward", "spec": "speculation", "speculation": "speculation", "ternary": "ops", "vocab-share": "vocab",
}
# Records of a choice: what was tried once, on builds that were not kept. They do not age.
TRIALS = ("attention-tried", "k-quants", "experts", "packs-tried", "kv-integers", "kv-centre-before", "kv-trellis", "amx-tried", "attention-kernels", "int-tokens", "int4-planes")
ONLY_CPU = ("*_avx2.cpp", "*_avxvnni.cpp", "*_avx512.cpp", "cpu_*")
ONLY_ARM = ("*_neon.cpp", "neon.h", "bytes_neon.h")  # no row was measured there
ONLY_GPU = ("*_cuda.*", "*.cu", "cuda_*", "device_*", "int_brick_*.h", "int_shared.h", "int_sums.h", "int_tokens.h")
GPU_HEADERS = ("src/gpu/launch.h", "src/gpu/tensor.h", "src/gpu/dot_mma.h")
CPU_HEADERS = ("src/op/simd",)

# Kinds of rows that time nothing, or whose numbers are themselves the check of an output.
UNTIMED = ("amd_emulated", "amd_program", "eval_", "sensitivity", "search_point", "plan", "counters", "crowd", "speculation_text", "mtp_head", "vocab_share", "bandwidth", "serve", "mask_cost", "decision")


def is_timed(r):
    return not str(r.get("kind", "")).startswith(UNTIMED)


def build_of(r):
    return r.get("build_commit") or r.get("build")


def card_of(r):
    place = r.get("cell") or {}  # of a point of the search, where the row names no device
    return card({**r, **{name: r.get(name) or place.get(name) for name in ("device", "device_name", "n_threads")}})


def missing(r):
    """Which of the seven facts a row leaves out; `unchecked` where it says that its output was not checked."""
    facts = {
        "build": build_of(r),
        "command": r.get("command"),
        "card": card_of(r) not in ("not recorded", "GPU, not recorded"),
        "date": r.get("date") or r.get("test_time"),
        "load": r.get("load_1min") is not None or "neighbours" in r,  # the number of busy processes beside the bench
        "checked": not is_timed(r) or "checked" in r,
        "an optimised build": r.get("build_type", "Release") == "Release",
    }
    gaps = [name for name, there in facts.items() if not there]
    return gaps + (["unchecked"] if r.get("checked") is False else [])


def files():
    """Names of all stored files in results/, without their ending."""
    return [path.relative_to(RESULTS).with_suffix("").as_posix() for path in sorted([*RESULTS.rglob("*.jsonl"), *RESULTS.glob("decisions/*.json")])]


def rows_of(name):
    """The rows of a file; of a decision record one row, its subject."""
    if not name.startswith("decisions/"):
        return stored(name)
    record = json.loads((RESULTS / f"{name}.json").read_text())
    return [{"kind": "decision", "date": record["date"], "command": record["command"], **record["subject"]}]


def git(*arguments):
    found = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def watched(name, op):
    """(paths that decide about rows of a file, patterns that are left out); nothing for files that do not age."""
    base = "decisions" if name.startswith("decisions/") else name.rpartition("/")[2]
    if base.startswith(TRIALS):
        return (), ()
    kind = next((FILES[base[:end]] for end in range(len(base), 0, -1) if base[:end] in FILES), None)
    if kind is None:
        return (), ()
    paths = PATHS[kind]
    if isinstance(paths, dict):
        paths = paths.get(op, KERNELS)
    if base == "amd-emulated":
        paths = ATTENTION if op == "attn" else ("src/format", f"src/op/{op}")
    if base.endswith("-cuda"):
        return (*paths, *GPU_HEADERS), ONLY_CPU + ONLY_ARM
    return (*paths, *CPU_HEADERS), ONLY_ARM + (ONLY_GPU if base.endswith("-cpu") else ())


def code_of(text):
    """A file's text without comments, white space and lines that include standard headers: what a compiler makes code of."""
    text = re.sub(r"//[^\n]*|^#include <[^\n]*", "", text, flags=re.MULTILINE)
    return "".join(text.split())


@functools.cache
def code_at(commit, path):
    return code_of(git("show", f"{commit}:{path}") or "")


def has_changed(build, spec):
    """Whether code of these paths is other code than in `build`."""
    changed = (git("diff", "--name-only", build, "HEAD", "--", *spec) or "").split()
    return any(code_at(build, path) != code_at("HEAD", path) for path in changed)


def state(build, paths, left_out, known):
    """`known` where the history does not reach the build: clones without history, and copies of the tree, cannot tell."""
    if not paths:
        return "a trial" if build else "no build"
    if git("merge-base", "--is-ancestor", build.removesuffix("-dirty"), "HEAD") is None:
        return known or "not in the history"
    spec = [f":(glob){path}" if "*" in path else path for path in paths] + [f":(exclude,glob)**/{pattern}" for pattern in left_out]
    return "older than its code" if has_changed(build.removesuffix("-dirty"), spec) else "current"


def groups():
    """{(file, op, build, card): rows} of everything stored."""
    found = {}
    for name in files():
        for r in rows_of(name):
            build = re.search("[0-9a-f]{8}(-dirty)?", str(build_of(r)))
            op = r.get("op", "") if "build_commit" in r else ""
            if r.get("kind") == "amd_emulated":  # it names its kernel's file
                op = r["file"].split("/")[-2]
            found.setdefault((name, op, build[0] if build else "", card_of(r)), []).append(r)
    return found


def known_states():
    """States as docs/rows.md has them, for a clone whose history cannot tell: {(card, rows, build): state}."""
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in (ROOT / "docs" / "rows.md").read_text().splitlines()]
    return {tuple(cells[:3]): cells[6] for cells in lines if len(cells) == 7}


@functools.cache
def states():
    """{(file, op, build, card): state}"""
    known = known_states()
    return {(name, op, build, where): state(build, *watched(name, op), known.get((where, f"{name}{', ' + op if op else ''}", build)))
            for name, op, build, where in groups()}


def table_of_rows():
    lines = []
    for (name, op, build, where), found in groups().items():
        gaps = {}
        for r in found:
            for gap in missing(r):
                gaps[gap] = gaps.get(gap, 0) + 1
        dates = sorted(d[:10] for r in found if (d := r.get("date") or r.get("test_time")))
        key = (where, f"{name}{', ' + op if op else ''}", build)
        says = ", ".join(gap if n == len(found) else f"{gap} ({n})" for gap, n in gaps.items())
        lines.append([*key, len(found), dates[-1] if dates else "", says, states()[name, op, build, where]])
    return table(["device", "rows", "build", "number", "measured", "missing", "state"], lines)


def summary():
    """Rows by card: how many are current, and what they leave out."""
    cards = {}
    for (name, op, build, where), found in groups().items():
        line = cards.setdefault(where, {"files": set(), "rows": 0, "current": 0, "trial": 0, "dates": [], "unchecked": 0, "no load": 0, "no command": 0, "no build": 0})
        line["files"].add(name)
        line["rows"] += len(found)
        line["current"] += len(found) * (states()[name, op, build, where] == "current")
        line["trial"] += len(found) * (states()[name, op, build, where] == "a trial")
        for r in found:
            gaps = missing(r)
            line["unchecked"] += "unchecked" in gaps
            for gap in ("load", "command", "build"):
                line[f"no {gap}"] += gap in gaps
            line["dates"].append((r.get("date") or r.get("test_time") or "")[:10])
    lines = []
    for where, line in sorted(cards.items(), key=lambda item: -item[1]["rows"]):
        dates = sorted(d for d in line["dates"] if d)
        lines.append([where, len(line["files"]), line["rows"], line["current"], line["trial"], f"{dates[0]} to {dates[-1]}" if dates else "not recorded", line["unchecked"], line["no load"], line["no command"], line["no build"]])
    return table(["device", "files", "rows", "current rows", "trials", "measured", "unchecked", "load not stored", "command not stored", "build not stored"], lines)


TABLES = {"row-age": table_of_rows, "row-summary": summary}
