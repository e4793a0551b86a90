"""Whether the code that made stored rows is still the code: by the history of the folders that each kind of row times or judges."""

import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ("src/format", "src/op", "src/model", "src/engine")
FOLDERS = {  # of results/NAME*.jsonl
    "bandwidth": ("src/op/stream", "src/op/rate"),
    "batch": MODEL,
    "collective": ("src/op/collective", "src/rank"),
    "decode": MODEL,
    "kv": ("src/format", "src/op/attn", "src/op/cache", "src/model", "src/engine"),
    "ppl": ("src/format", "src/op", "src/model", "src/engine"),
    "profile": MODEL,
    "serve": (*MODEL, "src/serve"),
    "sweep": ("src/format", "src/op"),
}


def git(*arguments):
    found = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def state(commit, folders, known):
    """`known` where the history does not reach the commit: clones without history, and copies of the tree, cannot tell."""
    if git("merge-base", "--is-ancestor", commit, "HEAD") is None:
        return known or "not a commit of this history"
    changed = git("log", "--max-count=1", "--format=%h", f"{commit}..HEAD", "--", *folders)
    return f"stale: later commits change {', '.join(folders)}" if changed else "current"


def table(before=""):
    """`before`: the table as it stands."""
    known = {tuple(cells[:2]): cells[3] for line in before.splitlines() if len(cells := line.strip("| ").split(" | ")) == 4}
    lines = ["| rows | build | number | state |", "|---|---|---:|---|"]
    for path in sorted((ROOT / "results").glob("*.jsonl")):
        folders = FOLDERS.get(path.stem.split("-")[0])
        builds = {}
        for line in path.read_text().splitlines():
            build = json.loads(line).get("build_commit")
            if build:
                builds[build] = builds.get(build, 0) + 1
        if folders:
            for build, n in sorted(builds.items()):
                lines.append(f"| {path.name} | {build} | {n} | "
                             f"{state(build.removesuffix('-dirty'), folders, known.get((path.name, build)))} |")
    return lines
