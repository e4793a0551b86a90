#!/usr/bin/env python3
"""Writes the tables of README.md and docs/*.md from results/*.jsonl, so that no number in them is typed by hand.

A table stands between `<!-- begin NAME -->` and `<!-- end NAME -->`; NAME is a key of TABLES in a module of tools/tables/.
  tools/render_docs.py            rewrite the tables
  tools/render_docs.py --check    exit 1 when a document does not hold what its rows say, a table that no page shows is left, or a link leads nowhere
"""

import pathlib
import re
import sys

sys.dont_write_bytecode = True
from tables import ages, amd, quality, readme, serving, speed, targets, trials  # noqa: E402
from tables.rows import NO_ROWS  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULES = (ages, amd, quality, readme, serving, speed, targets, trials)
TABLES = {name: of for module in MODULES for name, of in module.TABLES.items()}
BLOCK = re.compile(r"<!-- begin ([\w-]+) -->\n.*?<!-- end \1 -->", re.S)


def pages():
    return [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]


def render(text):
    def table(match):
        name = match.group(1)
        if name not in TABLES:
            sys.exit(f"unknown table '{name}' (there are: {', '.join(TABLES)})")
        return f"<!-- begin {name} -->\n" + "\n".join(TABLES[name]()) + f"\n<!-- end {name} -->"

    return BLOCK.sub(table, text)


def anchors(text):
    """Anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head).lower()).replace(" ", "-") for head in heads}


def dead_links(texts):
    """Relative links of pages to files or headings that are not there."""
    dead = []
    for path, text in texts.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)):
            name, _, anchor = target.partition("#")
            where = (path.parent / name).resolve() if name else path
            if "://" in target or target.startswith("mailto:"):
                continue
            if (where not in texts and not where.exists()) or anchor and where in texts and anchor not in anchors(texts[where]):
                dead.append(f"{path.relative_to(ROOT)}: {target}")
    return dead


def main():
    check = "--check" in sys.argv[1:]
    stale, texts = [], {}
    for path in pages():
        text = path.read_text()
        texts[path] = wanted = render(text)
        if wanted != text:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(wanted)
    shown = {name for text in texts.values() for name in BLOCK.findall(text)}
    faults = [f"tables differ from results/ in: {', '.join(stale)} (run tools/render_docs.py)"] if check and stale else []
    if unused := sorted(name for name in TABLES.keys() - shown if TABLES[name]() != NO_ROWS):
        faults.append(f"no page shows: {', '.join(unused)} (show them, or take them out of tools/tables/)")
    faults += [f"a link leads nowhere: {link}" for link in dead_links(texts)]
    if faults:
        sys.exit("\n".join(faults))
    print("up to date" if not stale else "rewrote " + ", ".join(stale))


if __name__ == "__main__":
    main()
