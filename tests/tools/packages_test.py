#!/usr/bin/env python3
"""Packs a build as an archive and as a Debian package, and looks into both. Usage: packages_test.py BUILD_FOLDER

What is made by `make package-deb` differs only in how other libraries are linked. Exits 77, after the archive, where
dpkg-dev is missing.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

BUILD = pathlib.Path(sys.argv[1])
EXPECTED = ("bin/ridge", "include/ridge/ridge.h", "include/ridge/engine.h", "lib/cmake/ridge/ridge-config.cmake",
            "lib/libridge.a", "lib/libridge.so.1", "lib/pkgconfig/ridge.pc", "lib/systemd/system/ridge.service",
            "share/bash-completion/completions/ridge", "share/fish/vendor_completions.d/ridge.fish",
            "share/man/man1/ridge.1", "share/ridge/stories260K.gguf", "share/zsh/site-functions/_ridge")


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check(condition, why):
    if not condition:
        sys.exit(why)


def pack(generator, folder):
    run("cpack", "--config", BUILD / "CPackConfig.cmake", "-G", generator, "-B", folder)


def check_tree(root):
    for name in EXPECTED:
        # Debian's packages have manual pages packed, and libraries where the linker looks.
        found = [path for path in root.rglob(pathlib.PurePath(name).name + "*")
                 if str(path.parent).endswith(str(pathlib.PurePath(name).parent))]
        check(found, f"{root} has no {name}")
    text = run(root / "bin/ridge", "run", "-m", root / "share/ridge/stories260K.gguf", "-p", "Once upon a time", "-n",
               8,
               "--temp", 0)
    check("there was a little" in text, f"the packed program printed {text!r}")


def completions(root, *words):
    """What bash offers behind these words."""
    script = (f"source {root}/share/bash-completion/completions/ridge; COMP_WORDS=({' '.join(words)}); "
              f"COMP_CWORD={len(words) - 1}; _ridge; echo \"${{COMPREPLY[*]}}\"")
    return run("bash", "-c", script).split()


def check_words(root):
    names = [line.split("  ")[0] for line in run(root / "bin/ridge",
                                                 "--help").split("Commands:\n")[1].split("\n\n")[0].split("\n  ")]
    manual = (root / "share/man/man1/ridge.1").read_text()
    for name in names:
        heading = ".SH \\&RIDGE " + name.strip().upper()
        check(heading in manual, f"ridge.1 has no section {heading}")
    check(completions(root, "ridge", "b") == ["bench"], "bash does not complete `ridge b`")
    check(completions(root, "ridge", "bench", "dec") == ["decode"], "bash does not complete `ridge bench dec`")
    check(completions(root, "ridge", "run", "--kv-q") == ["--kv-quant"], "bash does not complete `ridge run --kv-q`")
    check("--ctx-size" in completions(root, "ridge", "bench", "decode", "--c")
          or completions(root, "ridge", "bench", "decode", "--"),
          "bash knows no flags of `ridge bench decode`")
    for shell, file in (("zsh", "zsh/site-functions/_ridge"), ("fish", "fish/vendor_completions.d/ridge.fish")):
        if shutil.which(shell):
            run(shell, "-n", root / "share" / file)


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    pack("TGZ", folder)
    archive = next(folder.glob("ridge-*.tar.gz"))
    run("tar", "-xf", archive, "-C", folder)
    check_tree(folder / archive.name.removesuffix(".tar.gz"))
    check_words(folder / archive.name.removesuffix(".tar.gz"))
    print("archive: ok")
    if not shutil.which("dpkg-shlibdeps"):
        print("Debian package: skipped, dpkg-dev is missing")
        sys.exit(77)
    pack("DEB", folder)
    package = next(folder.glob("ridge_*.deb"))
    check("libc6" in run("dpkg-deb", "-f", package, "Depends"), "the package depends on no libc6")
    run("dpkg-deb", "-x", package, folder / "root")
    check_tree(folder / "root/usr")
    print("Debian package: ok")
