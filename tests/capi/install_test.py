#!/usr/bin/env python3
"""Installs the library of a build into a folder and builds a program against it: by find_package() and by pkg-config.

Usage: install_test.py BUILD_FOLDER MODEL. Exits 77 where pkg-config is missing, after the other part.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

BUILD, MODEL = sys.argv[1:]
CONSUMER = pathlib.Path(__file__).resolve().parent / "consumer"
TEXT = ", there was a little girl"


def run(*command, env=None):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def expect_text(*command, env=None):
    found = run(*command, env=env)
    if found != TEXT:
        sys.exit(f"{command} printed {found!r}, expected {TEXT!r}")


with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder) / "moved"
    run("cmake", "--install", BUILD, "--component", "library", "--prefix", root / "first")
    prefix = (root / "first").rename(root / "ridge")  # nothing may know where it was installed
    run("cmake", "-S", CONSUMER, "-B", root / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", root / "build", "--parallel", "2")
    for program in ("in_c", "in_cxx"):
        expect_text(root / "build" / program, MODEL)
    print("find_package: ok")
    if not shutil.which("pkg-config"):
        print("pkg-config: skipped, it is missing (Debian: apt-get install pkg-config)")
        sys.exit(77)
    library = next(prefix.glob("lib*/**/libridge.so")).parent
    env = dict(os.environ, PKG_CONFIG_PATH=str(library / "pkgconfig"), LD_LIBRARY_PATH=str(library))
    flags = run("pkg-config", "--cflags", "--libs", "ridge", env=env).split()
    run("cc", "-std=c99", CONSUMER / "main.c", "-o", root / "by_name", *flags)
    expect_text(root / "by_name", MODEL, env=env)
    print("pkg-config: ok")
