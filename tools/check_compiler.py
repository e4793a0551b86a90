#!/usr/bin/env python3
"""Reads the sources of `ridge` with another compiler than the build's: syntax, types and templates, no code.

Takes the commands of a configured build folder. Prints the compiler's messages and exits 1 where it has any (warnings are
errors), or one line and exits 0.
Usage: check_compiler.py COMPILER [--build FOLDER] [--jobs N] [--part K/N]   (default: build/release, all files)
  --part K/N   the files of one of N parts, K from 0 to N - 1, by a hash of their names
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Flags of the build that mean nothing without code, and what older standard libraries say of themselves.
QUIET = ["-Wno-unused-command-line-argument", "-Wno-unknown-warning-option", "-Wno-deprecated-declarations",
         "-U_FORTIFY_SOURCE"]
NEEDLESS = {"-c", "-Winvalid-pch", "-D_FORTIFY_SOURCE=3"}


def commands(build):
    """(source, folder, options) of every file that is part of `ridge`. A file that the build has yet to make is left out."""
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        words = shlex.split(entry["command"])
        output = pathlib.PurePath(words[words.index("-o") + 1])
        library = output.parts[1] if output.parts[0] == "CMakeFiles" else ""
        if not library.startswith("ridge") or entry["file"].endswith((".hxx.cxx", ".hxx")) or \
                not pathlib.Path(entry["file"]).exists():
            continue
        options, skip = [], 0
        for word in words[next(i for i, word in enumerate(words) if word.endswith("c++")) + 1:]:
            if skip:
                skip -= 1
            elif word in ("-o", "-include"):
                skip = 1
            elif word not in NEEDLESS and word != entry["file"]:
                options.append(word)
        yield entry["file"], entry["directory"], options


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("compiler")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--part", default="0/1", metavar="K/N")
    options = parser.parse_args()
    part, n_parts = map(int, options.part.split("/"))

    def messages(job):
        source, folder, flags = job
        done = subprocess.run([*options.compiler.split(), *flags, *QUIET, "-Werror", "-fsyntax-only", source],
                              cwd=folder, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""

    jobs = [job for job in commands(options.build)
            if zlib.crc32(os.path.relpath(job[0], ROOT).encode()) % n_parts == part]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        found = list(filter(None, pool.map(messages, jobs)))
    print("".join(found) if found else f"{options.compiler}: {len(jobs)} files of ridge, no message")
    return 1 if found or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
