#!/usr/bin/env python3
"""Follows the guides of docs/ in a copy of the tree and runs their checks, so a guide that no longer works is a failed test.

A guide's fenced blocks say what they are in their info string:
  ```cpp file=PATH             the block is the whole file
  ```cpp row=PATH after=TEXT   the block goes below the only line of PATH that contains TEXT
  ```sh check [with=PATHS]     the block is run once all guides are applied, so that a header that several of them
                               change is compiled once. PATHS, between spaces: tests of the tree, files or folders,
                               that the check runs besides the guide's own
Where a guide adds a test, the copy's folder of tests has only such tests: building all others takes most of the time.
Usage: follow_guides.py [--apply] WORK_FOLDER GUIDE...   (GUIDE: a Markdown file; WORK_FOLDER is emptied)
  --apply   without the checks: every block finds its place
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEFT_OUT = {".git", "build", "out", "results", "models"}
FENCE = re.compile(r"^```\w+ (file|row|check)(?:=(\S+))?(?: (?:after|with)=([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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


def leave_out_tests(tree, guides):
    """Removes the tests that no check runs from the copy's folders to which guides add tests."""
    blocks = [block for guide in guides for block in FENCE.findall(guide.read_text(encoding="utf-8"))]
    kept = [tree / path for kind, _, paths, _ in blocks if kind == "check" for path in paths.split()]
    for path in kept:
        if not path.exists():
            sys.exit(f"a check names {path}, which does not exist")
    for folder in {(tree / path).parent for kind, path, _, _ in blocks if kind == "file" and path.startswith("tests/")}:
        for test in folder.glob("*_test.cpp"):
            if test not in kept and folder not in kept:
                test.unlink()


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


def run_check(check, tree):
    """One job at a time: other tests run beside this one."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CTEST_")}
    environment["CMAKE_BUILD_PARALLEL_LEVEL"] = "1"
    print(f"$ {check}", end="", flush=True)
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", check], cwd=tree, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(f"a check failed ({done.returncode}); the tree is in {tree}")


def main():
    arguments = [word for word in sys.argv[1:] if word != "--apply"]
    if len(arguments) < 2:
        sys.exit(__doc__)
    tree, guides = pathlib.Path(arguments[0]).resolve() / "tree", [pathlib.Path(word) for word in sorted(arguments[1:])]
    copy_tree(tree)
    leave_out_tests(tree, guides)
    checks = [check for guide in guides for check in apply(guide, tree)]
    if "--apply" not in sys.argv:
        for check in ["cmake --preset release --log-level=NOTICE\n", *checks]:
            run_check(check, tree)
    run_check("python3 tools/check_layers.py\n", tree)
    shutil.rmtree(tree)


if __name__ == "__main__":
    main()
