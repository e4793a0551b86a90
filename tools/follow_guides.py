#!/usr/bin/env python3
"""Follows the guides of docs/ in a copy of the tree and runs their checks, so a guide that no longer works is a failed test.

A guide's fenced blocks say what they are in their info string:
  ```cpp file=PATH             the block is the whole file
  ```cpp row=PATH after=TEXT   the block goes below the only line of PATH that contains TEXT
  ```sh check                  the block is run once all guides are applied
Usage: follow_guides.py WORK_FOLDER GUIDE...   (GUIDE: a Markdown file; WORK_FOLDER is emptied)
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEFT_OUT = {".git", "build", "out", "results", "models"}
FENCE = re.compile(r"^```\w+ (file|row|check)(?:=(\S+))?(?: after=([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def copy_tree(target):
    """The source tree as it stands, with the models as a link."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for entry in ROOT.iterdir():
        if entry.name in LEFT_OUT:
            continue
        if entry.is_dir():
            shutil.copytree(entry, target / entry.name, symlinks=True)
        else:
            shutil.copy2(entry, target / entry.name)
    (target / "models").symlink_to(ROOT / "models")


def add_row(path, anchor, row):
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    places = [i for i, line in enumerate(lines) if anchor in line]
    if len(places) != 1:
        sys.exit(f"{path}: '{anchor}' is on {len(places)} lines, expected 1")
    lines.insert(places[0] + 1, row)
    path.write_text("".join(lines), encoding="utf-8")


def apply(guide, tree):
    """Applies the blocks of a guide to the tree; returns its checks."""
    checks = []
    for kind, path, anchor, text in FENCE.findall(guide.read_text(encoding="utf-8")):
        print(f"{guide.name}: {kind} {path}", flush=True)
        if kind == "check":
            checks.append(text)
        elif kind == "row":
            add_row(tree / path, anchor, text)
        elif (tree / path).exists():
            sys.exit(f"{guide.name}: {path} exists already; the guide needs another example")
        else:
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(text, encoding="utf-8")
    if not checks:
        sys.exit(f"{guide.name}: nothing is checked")
    return checks


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    tree = pathlib.Path(sys.argv[1]).resolve() / "tree"
    copy_tree(tree)
    checks = ["cmake --preset release --log-level=NOTICE\n"]
    for guide in sys.argv[2:]:
        checks += apply(pathlib.Path(guide), tree)
    checks.append("python3 tools/check_layers.py\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CTEST_")}
    for check in checks:
        print(f"$ {check}", end="", flush=True)
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", check], cwd=tree, env=environment, check=False)
        if done.returncode != 0:
            sys.exit(f"a check failed ({done.returncode}); the tree is in {tree}")
    shutil.rmtree(tree)


if __name__ == "__main__":
    main()
