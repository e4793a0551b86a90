#!/usr/bin/env python3
"""Checks that files named in documents and in comments are in the tree.

A name is a word that ends in .h, .cpp, .cu, .hip, .py or .md. It is found when some file of the tree has it as its path or as the end of
its path; `a.{h,cu}` means both files. Left out are names with a place-holder (NAME, *), OTHERS, and files that a guide makes (file=PATH).
Links of Markdown pages must lead to a file from where the page is.
Usage: check_paths.py [ROOT]
"""
import pathlib
import re
import subprocess
import sys

# Projects and files of other projects, and the member h of rows (engine/cpu_backend.cpp).
OTHERS = {"llama.cpp", "ik_llama.cpp", "ngxson/llama.cpp", "bitnet.cpp", "tools/perplexity/perplexity.cpp", "SOURCE.md", "rows.h"}
NAME = re.compile(r"[\w.{},/*-]*[\w}*]\.(?:h|cpp|cu|hip|py|md)(?![\w.(])|[\w.*/-]+\.\{[\w,]+\}")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
SOURCES = {".h", ".cpp", ".cu", ".hip"}


def files_of(root):
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return [line for line in listed.stdout.splitlines() if (root / line).is_file()]
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and "build" not in path.parts]


def spelled_out(name):
    braces = re.fullmatch(r"(.*)\{(.*)\}(.*)", name)
    return [braces[1] + part + braces[3] for part in braces[2].split(",")] if braces else [name]


def prose(path, text):
    """(line number, text) of what people read: all of a document, the comments of a source."""
    for number, line in enumerate(text.splitlines(), 1):
        if path.suffix == ".md" and not line.startswith("#include"):
            yield number, line
        elif "//" in line:
            yield number, line.split("//", 1)[1]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    files = files_of(root)
    ends = {"/".join(parts[i:]) for parts in (file.split("/") for file in files) for i in range(len(parts))}
    documents = [file for file in files if file.endswith(".md")]
    ends |= {made.split("/", i)[i] for file in documents for made in re.findall(r"^```\w+ file=(\S+)$", (root / file).read_text(encoding="utf-8"), re.M)
             for i in range(made.count("/") + 1)}
    wrong = []
    for file in files:
        path = pathlib.Path(file)
        if path.suffix not in SOURCES and file not in documents or "corpus" in path.parts:
            continue
        for number, line in prose(path, (root / file).read_text(encoding="utf-8", errors="replace")):
            for match in NAME.finditer(re.sub(r"https?://\S+", "", line)):
                names = spelled_out(match[0].lstrip("./"))
                if "*" in match[0] or "NAME" in match[0] or match[0] in OTHERS or match[0].startswith("."):
                    continue
                wrong += [f"{file}:{number}: {name} is not in the tree" for name in names if name.lstrip("/") not in ends]
            if path.suffix == ".md":
                wrong += [f"{file}:{number}: the link {link} leads nowhere" for link in LINK.findall(line)
                          if ":" not in link and not (root / path.parent / link).exists()]
    print("\n".join(dict.fromkeys(wrong)) if wrong else f"paths: ok ({len(files)} files)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
