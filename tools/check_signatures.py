#!/usr/bin/env python3
"""Functions with more than six parameters, and those with more than one bool, outside kernels.

A list of seven values is read by counting; `true, false` at a call says nothing. A struct with named members, or an enum
class, says both. Kernels are left out: their arguments are registers.

Prints `file:line: NAME takes N parameters` or `... N bools` for each offence, and the names of KNOWN that no function
needs any more, and exits 1; or prints one line and exits 0.
Usage: check_signatures.py [ROOT]   (default: the repository this file is in)
"""
import pathlib
import re
import sys

from check_headers import without_text

MOST_PARAMETERS, MOST_BOOLS = 6, 1
# Functions that were so when this check began. A name leaves the list when no function of its name is so any more; none
# joins it.
KNOWN = """
begin described encode escape_of first_request format_of index_of
magnitude pick query_forms read_format run store_row strip strip_ends tile_int_scores
tile_values tokenize tokens told tuple write_quoted write_row
""".split()
KERNELS = re.compile(r"(\.cu|_cuda\.h|_simd\.h|_body\.h|_(avx2|avx512|neon)\.cpp)$|/simd/")
# A type, a name and `(` at the beginning of a declaration: no statement, no call.
HEAD = re.compile(r"(?:^|[;{}:])\s*(?:template\s*<[^;{}]*?>\s*)?((?:[\w:<>,*&\[\]]+\s+)+[*&]?)([\w:~]+)\(", re.M)
NO_TYPE = re.compile(r"\b(return|else|throw|new|delete|case|using|typedef|co_return|goto|operator)\b")


def arguments(code, start):
    """The texts between commas of the parentheses that open before `start`, and where they close; None where they do not."""
    depth, angle, parts, last = 1, 0, [], start
    for i in range(start, min(len(code), start + 4000)):
        c = code[i]
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                parts.append(code[last:i].strip())
                return [p for p in parts if p], i
        elif c == "<" and depth == 1:
            angle += 1
        elif c == ">" and depth == 1 and code[i - 1] != "-":
            angle = max(0, angle - 1)
        elif c == "," and depth == 1 and angle == 0:
            parts.append(code[last:i].strip())
            last = i + 1
        elif c == ";":
            return None, i
    return None, len(code)


def is_parameter(text):
    """A type and a name, or a type alone with *, & or std::: no expression."""
    text = re.split(r"=", text)[0].strip()
    return bool(re.fullmatch(r"(?:const\s+|struct\s+|unsigned\s+|constexpr\s+)*[\w:]+(?:<.*>)?(?:::\w+)?[\s*&]*(?:const\s+)?[*&\s]*(?:\.\.\.)?\s*\w*(?:\[\w*\])*(?:\(.*)?", text, re.S))


def offences(path, source):
    """(name, fault) of the functions of `source` with too many parameters or bools."""
    code = without_text(source)
    for match in HEAD.finditer(code):
        kind, name = match[1].strip(), match[2]
        if not kind or NO_TYPE.search(kind) or name in ("if", "for", "while", "switch", "return", "catch", "sizeof", "decltype"):
            continue
        parts, end = arguments(code, match.end())
        if parts is None or not all(map(is_parameter, parts)) or not re.match(r"\s*(const|noexcept|override|requires|->|=|\{|;|:)", code[end + 1:end + 40]):
            continue
        line = code.count("\n", 0, match.start(2)) + 1
        if len(parts) > MOST_PARAMETERS:
            yield name.split("::")[-1], f"{path}:{line}: {name} takes {len(parts)} parameters"
        bools = sum(bool(re.match(r"(const\s+)?bool\b\s*\w", p)) for p in parts)
        if bools > MOST_BOOLS:
            yield name.split("::")[-1], f"{path}:{line}: {name} takes {bools} bools"


def faults(sources, known):
    """The offences of `sources`, (path, text) each, that `known` does not allow; and its names that allow nothing."""
    found = [offence for path, source in sources for offence in offences(path, source)]
    unused = sorted(set(known) - {name for name, _ in found})
    return [fault for name, fault in found if name not in known] + [
        f"tools/check_signatures.py: KNOWN has {name}, and no function of this name needs it: remove it" for name in unused]


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    paths = [file.relative_to(root).as_posix() for top in ("include", "src") for file in sorted((root / top).rglob("*.*"))]
    paths = [path for path in paths if path.endswith((".h", ".cpp")) and not KERNELS.search(path)]
    found = faults([(path, (root / path).read_text(encoding="utf-8")) for path in paths], KNOWN)
    print("\n".join(found) if found else f"signatures: {len(paths)} files, at most {MOST_PARAMETERS} parameters and {MOST_BOOLS} bool each")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
