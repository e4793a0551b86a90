#!/usr/bin/env python3
"""Draws stored rows: CSV, SVG and PNG files and one HTML page. `ridge report` calls it; it needs matplotlib and nothing else.

  report.py [--results PATH]... -o DIR [--json] [--quiet]
  report.py --decision RECORD -o DIR [--json] [--quiet]   decision.html: the page of one record of ridge decide
  report.py --results DIR --figures DIR [--check]   the figures of the documents: NAME.csv and NAME.svg; --check compares

Exit codes are ridge's: 0 ok, 1 failure (a stale figure too), 2 usage, 4 a file that holds no rows as it should, 6 without matplotlib.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import sys

sys.dont_write_bytecode = True  # the folder may be read-only, or a source tree
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import search  # noqa: E402
from rows import BadFile, read_all  # noqa: E402
from sections import SECTIONS, to_csv  # noqa: E402

DEBIAN_PYTHON = "/usr/bin/python3"


def load_look(required=True):
    """The drawing module, from this Python or from Debian's. Where neither has matplotlib: exit 6, or None if not required."""
    try:
        import look
        return look
    except ImportError as error:
        here = os.path.realpath(sys.executable)
        if os.path.exists(DEBIAN_PYTHON) and os.path.realpath(DEBIAN_PYTHON) != here and "RIDGE_REPORT_RETRIED" not in os.environ:
            os.environ["RIDGE_REPORT_RETRIED"] = "1"
            os.execv(DEBIAN_PYTHON, [DEBIAN_PYTHON, *sys.argv])
        if not required:
            return None
        print(f"ridge report: cannot draw: {sys.executable}: {error} (apt-get install --no-install-recommends python3-matplotlib)", file=sys.stderr)
        sys.exit(6)


def write(path, content):
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content if isinstance(content, bytes) else content.encode())
    part.replace(path)


def make_folder(folder):
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"ridge report: cannot write the report: {folder}: {error.strerror} (name another directory with -o)")


def draw(section, lines, look, rows):
    """(svg text, png bytes) of a section that has lines."""
    figure = section.draw(lines, look, rows)
    svg, png = figure.svg(digest(to_csv(lines, section.fields))), figure.png()
    figure.close()
    return svg, png


def report(args, rows):
    import page
    look = load_look()
    make_folder(args.out)
    data = {s.name: s.data(rows) for s in SECTIONS}
    figures, files = {}, []
    for s in SECTIONS:
        for suffix in (".csv", ".svg", ".png"):  # what an earlier report left would be taken for this one's
            (args.out / (s.name + suffix)).unlink(missing_ok=True)
        if not data[s.name]:
            continue
        svg, png = draw(s, data[s.name], look, rows)
        figures[s.name] = svg[svg.index("<svg"):]
        for suffix, content in ((".csv", to_csv(data[s.name], s.fields)), (".svg", svg), (".png", png)):
            write(args.out / (s.name + suffix), content)
            files.append(s.name + suffix)
    write(args.out / "index.html", page.render(SECTIONS, data, figures, rows, look))
    files.append("index.html")
    missing = [{"section": s.name, "command": s.command} for s in SECTIONS if not data[s.name]]
    path = str(args.out / "index.html")
    if args.json:
        print(json.dumps({"page": path, "rows": len(rows), "files": files, "missing": missing}))
        return 0
    print(path)
    if not args.quiet:
        print(f"{len(rows)} rows, {len(figures)} of {len(SECTIONS)} figures", file=sys.stderr)
        for m in missing:
            print(f"no rows for '{m['section']}': {m['command']}", file=sys.stderr)
    return 0


def decision_page(args):
    import decision
    record = decision.read(args.decision)
    look = load_look()
    make_folder(args.out)
    figures = {}
    for name, lines, fields, draw_lines in (("decision", decision.crossovers(record), decision.FIELDS, decision.draw),
                                            ("search", decision.search_lines(record), search.FIELDS, search.draw)):
        for suffix in (".csv", ".svg"):
            (args.out / (name + suffix)).unlink(missing_ok=True)
        if not lines:
            continue
        figure = draw_lines(lines, look)
        svg = figure.svg(digest(to_csv(lines, fields)))
        figure.close()
        figures[name] = svg[svg.index("<svg"):]
        write(args.out / f"{name}.csv", to_csv(lines, fields))
        write(args.out / f"{name}.svg", svg)
    path = args.out / "decision.html"
    write(path, decision.render(record, figures.get("decision"), figures.get("search")))
    print(json.dumps({"page": str(path), "figures": sorted(figures)}) if args.json else path)
    return 0


def documents(args, rows):
    """Writes or checks the documents' figures. Data is compared as CSV; pictures byte for byte only if drawn by the same matplotlib."""
    data = {s.name: s.data(rows) for s in SECTIONS}
    csvs = {s.name: to_csv(data[s.name], s.fields) for s in SECTIONS if data[s.name]}
    if args.check:
        return check_documents(args.figures, csvs, data, rows)
    look = load_look()
    make_folder(args.figures)
    for path in [*args.figures.glob("*.svg"), *args.figures.glob("*.csv")]:
        if path.stem not in csvs:
            path.unlink()
    for s in SECTIONS:
        if s.name in csvs:
            write(args.figures / f"{s.name}.csv", csvs[s.name])
            write(args.figures / f"{s.name}.svg", draw(s, data[s.name], look, rows)[0])
    print(f"{len(csvs)} figures in {args.figures}")
    return 0


def check_documents(folder, csvs, data, rows):
    stale = sorted({p.name for p in [*folder.glob("*.svg"), *folder.glob("*.csv")] if p.stem not in csvs})
    look = load_look(required=False)  # data can be compared without drawing
    for s in SECTIONS:
        if s.name not in csvs:
            continue
        csv_path, svg_path = folder / f"{s.name}.csv", folder / f"{s.name}.svg"
        if not csv_path.is_file() or csv_path.read_text() != csvs[s.name]:
            stale.append(csv_path.name)
        head = svg_path.read_text().split("\n", 1)[0] if svg_path.is_file() else ""
        drawn = re.fullmatch(r"<!-- data ([0-9a-f]+), matplotlib (\S+) -->", head)
        if not drawn or drawn[1] != digest(csvs[s.name]):
            stale.append(svg_path.name)
        elif look and drawn[2] == look.matplotlib.__version__ and svg_path.read_text() != draw(s, data[s.name], look, rows)[0]:
            stale.append(svg_path.name)
    if stale:
        print(f"figures differ from results/ in {folder}: {', '.join(stale)} (run tools/report/report.py --results results --figures docs/figures)", file=sys.stderr)
        return 1
    print("up to date" if look else "data up to date; without matplotlib the drawing itself was not compared")
    return 0


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", action="append", default=[], metavar="PATH", help="a .jsonl file or a directory of them")
    parser.add_argument("--decision", type=pathlib.Path, metavar="RECORD", help="a record of ridge decide")
    parser.add_argument("-o", "--out", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--figures", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    args = parser.parse_args()
    if (args.out is None) == (args.figures is None) or bool(args.results) == bool(args.decision) or (args.decision and args.figures):
        parser.error("name rows with --results, and one of -o DIR and --figures DIR; or --decision RECORD and -o DIR")
    try:
        if args.decision:
            return decision_page(args)
        rows = read_all(args.results)
        return documents(args, rows) if args.figures else report(args, rows)
    except BadFile as error:
        print(f"ridge report: {error}", file=sys.stderr)
        return 4
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"ridge report: cannot write: {error.filename}: {error.strerror} (free space or name another directory)", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
