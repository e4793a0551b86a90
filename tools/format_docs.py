#!/usr/bin/env python3
"""Writes docs/formats/weights.md and kv.md: each format's header comment, and facts that the program itself reports.

  tools/format_docs.py [--ridge PROGRAM]           rewrite the pages (PROGRAM: build/release/ridge)
  tools/format_docs.py [--ridge PROGRAM] --check   exit 1 when a page is not what this would write
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

NOTE = "<!-- Written by tools/format_docs.py from src/format/*.h and `ridge info --json`. Change those, not this file. -->"

WEIGHTS_INTRO = """# Weight formats

Every format is one header in `src/format/`. The first comment of the header is the specification; it stands below, with the facts that
the built program reports. All numbers in files are little-endian. Blocks follow one another without gaps, row by row, and the length of
a row must be a multiple of the group. Encoders refuse NaN, infinity and values that the format cannot hold, and name their place.
`ridge explain gemv --format NAME` says which kernels support a format on your machine. [device-tiles.md](device-tiles.md) says how a GPU
holds weights.

"Bits per weight" includes scales. A format without an encoder can be read but not written: `ridge quantize` refuses it. A format without
a GGUF type is not written to GGUF files, and a format without a dtype is not read from safetensors tensors. "Refused codes" means that
some bit patterns of the format have no meaning; Ridge refuses files that contain them. The i2_s bytes after the last block belong to the
tensor as a whole, not to its blocks."""

KV_INTRO = """# KV cache formats

A row is the values of one token and one KV head. K and V can have different formats (`-ctk`, `-ctv`, `--kv-quant K/V`), and so can layers
(`--kv-layers`). Every format is one header in `src/format/`. The first comment of the header is the specification; it stands below, with
the facts that the built program reports. [cache-space.md](cache-space.md) says what happens to a row before it is coded, which rows stay
exact, and what every option does. Other pages: [caches in files](kv-state.md), [caches on a GPU](device-tiles.md), [what each format does
to a model](../results.md#5-quality).

**`rotor-3u` destroys the model.** It is the 3-bit format as first published, without a scale. Ridge keeps it to reproduce that failure; use rotor-3.

A value that a format cannot hold is replaced, as the format's section says. The report of the cache counts these values as `saturated`; the
count is 0 in normal operation."""

MODEL_NAMES = {"bitnet-2b-4t": "BitNet-2B-4T", "qwen2.5-1.5b": "Qwen2.5-1.5B", "llama-3.1-70b": "Llama-3.1-70B"}


class Header:
    """A header of src/format/: its first comment, the formats in it, its blocks and the headers it includes."""

    def __init__(self, path):
        text = path.read_text(encoding="utf-8")
        self.file = path.name
        self.comment = [line[2:].removeprefix(" ") for line in re.match(r"(//[^\n]*\n)*", text)[0].splitlines()]
        self.names = re.findall(r'kName = "([^"]+)"', text)
        self.blocks = re.findall(r"^  (?:struct Block \{.*?^  \};|using Block = [^\n]*;)$", text, re.MULTILINE | re.DOTALL)
        self.includes = re.findall(r'#include "format/([^"]+)"', text)
        self.is_kv = path.name.startswith("kv_")


def markdown(lines):
    """A comment as Markdown: paragraphs, and what is indented in it as it stands."""
    out, code = [], False
    for line in lines:
        indented = line.startswith("  ")
        if indented != code:
            out += ["```", ""] if code and line else ["```"] if code else ["", "```text"]
            code = indented
        if not code:
            line = re.sub(r"([*<`])", r"\\\1", line)
            line = re.sub(r"^([-+#>]|\d+[.)])(?= )", r"\\\1", line)
        out.append(line[2:] if code else line)
    if code:
        out.append("```")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip()


def table(heading, rows):
    """`heading` has the cells, those that end in ':' aligned to the right."""
    lines = [heading, ["---:" if cell.endswith(":") else "---" for cell in heading], *rows]
    lines[0] = [cell.removesuffix(":") for cell in heading]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def bits(row_bytes, head_dim):
    return "-" if row_bytes is None else f"{8 * row_bytes / int(head_dim):g}"


def code(name):
    return f"`{name}`"


def weight_table(formats):
    return table(
        ["format", "bits per weight:", "group:", "bytes per block:", "GGUF type:", "safetensors dtype", "encoder", "refused codes", "bytes behind the tensor:"],
        [[code(f["name"]), f"{f['bits_per_weight']:g}", f["group"], f["block_bytes"], "-" if f["gguf_type"] is None else f["gguf_type"],
          f["safetensors_dtype"] or "-", "yes" if f["written"] else "no", "yes" if f["checked"] else "no", f["tail_bytes"]] for f in formats])


def kv_bits_table(formats):
    sizes = list(formats[0]["row_bytes"])
    return table(
        ["format", *[f"bits at head_dim {d}:" for d in sizes], "row bytes at 128:", "head_dim a multiple of:", "scale rules", "rounding rules", "scale per head"],
        [[code(f["name"]), *[bits(f["row_bytes"][d], d) for d in sizes], f["row_bytes"]["128"], f["group"],
          ", ".join(f["scales"]), "nearest, weighted" if f["can_weigh"] else "nearest", "f32" if f["scale_per_head"] else "no"] for f in formats])


def kv_policy_table(formats):
    rows = []
    for f in formats:
        p = f["policy"]
        window = f"{p['window']} in {p['recent']}" if p["window"] else 0
        rows.append([code(f["name"]), p["rotation"], "K" if p["centre"] else "no", window, p["sinks"], p["scale"], p["rounding"]])
    return table(["format", "rotation", "centred", "window", "sinks in f16:", "scale", "rounding"], rows)


def kv_bytes_tables(formats):
    """Bytes per token and beside them, both from the program; held against 2 * layers * kv heads * row bytes here."""
    shapes = formats[0]["shapes"]
    titles = [f"{MODEL_NAMES.get(s['shape'], s['shape'])} ({s['n_kv_heads']} x {s['head_dim']}, {s['n_layers']} layers):" for s in shapes]
    per_token, fixed = [], []
    for f in formats:
        for s in f["shapes"]:
            row = f["row_bytes"][str(s["head_dim"])]
            formula = None if row is None else 2 * s["n_layers"] * s["n_kv_heads"] * row
            if s["bytes_per_token"] != formula:
                sys.exit(f"{f['name']} at {s['shape']}: the program reports {s['bytes_per_token']} bytes per token, the formula says {formula}")
        cell = lambda value: "-" if value is None else value
        per_token.append([code(f["name"]), *[cell(s["bytes_per_token"]) for s in f["shapes"]]])
        fixed.append([code(f["name"]), *[cell(s["fixed_bytes"]) for s in f["shapes"]]])
    return table(["format", *titles], per_token), table(["format", *titles], [r for r in fixed if any(c not in (0, "-") for c in r[1:])])


def shared_headers(pages_headers, headers):
    """Headers that these include, directly or not, and that are no format's own."""
    found, queue = [], list(pages_headers)
    while queue:
        for name in queue.pop(0).includes:
            header = headers.get(name)
            if header and not header.names and header not in found:
                found.append(header)
                queue.append(header)
    return sorted(found, key=lambda h: h.file)


def sections(formats, headers, is_kv):
    """One section per header in the program's order, then the comments that several headers share."""
    home = {name: h for h in headers.values() if h.is_kv == is_kv for name in h.names}
    reported = [f["name"] for f in formats]
    if set(home) != set(reported):
        sys.exit(f"headers and program disagree about {', '.join(sorted(set(home) ^ set(reported)))}: build ridge, or add the format's row")
    ordered = list(dict.fromkeys(home[name] for name in reported))
    out = []
    for header in ordered:
        if not any(header.comment):
            sys.exit(f"src/format/{header.file}: no comment at its top; it is the specification")
        out += ["## " + ", ".join(n for n in reported if home[n] is header), f"[`src/format/{header.file}`](../../src/format/{header.file})",
                markdown(header.comment)]
        blocks = "\n".join(re.sub(r"^  ", "", block, flags=re.MULTILINE) for block in header.blocks if "struct" in block)
        if blocks:
            out.append(f"```cpp\n{blocks}\n```")
    shared = [h for h in shared_headers(ordered, headers) if h.comment]
    if shared:
        out.append("# What formats share")
    for header in shared:
        out += [f"## {header.file}", markdown(header.comment)]
    return out


def pages(source, facts):
    """{file name: text} from a folder of headers and the `formats` of `ridge info --json`."""
    headers = {path.name: Header(path) for path in sorted(source.glob("*.h"))}
    weights = [NOTE, WEIGHTS_INTRO, weight_table(facts["weights"]), *sections(facts["weights"], headers, False)]
    per_token, fixed = kv_bytes_tables(facts["kv"])
    kv = [NOTE, KV_INTRO, kv_bits_table(facts["kv"]), "## Defaults\nThe defaults of the cache options by format. A window of N keeps "
          "at least the N newest tokens exact.", kv_policy_table(facts["kv"]),
          "## Memory\nBytes per token of K and V together, over all layers, with one format for both: 2 * layers * KV heads * row bytes. The "
          "program reports these numbers; tools/format_docs.py checks them against the formula.", per_token,
          "Further bytes of a sequence, which do not grow with its length, at the format's defaults: sinks, the ring (the window, the tile "
          "that fills up and 32 spare rows), centres and scales of heads.", fixed,
          *sections(facts["kv"], headers, True)]
    return {"weights.md": "\n\n".join(weights) + "\n", "kv.md": "\n\n".join(kv) + "\n"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ridge", default=ROOT / "build/release/ridge", type=pathlib.Path, help="the built program")
    parser.add_argument("--check", action="store_true", help="only compare")
    flags = parser.parse_args()
    if not flags.ridge.exists():
        sys.exit(f"{flags.ridge}: no such program; build the target ridge, or name it with --ridge")
    report = subprocess.run([flags.ridge, "info", "--json"], capture_output=True, text=True, check=False)
    if report.returncode != 0:
        sys.exit(f"{flags.ridge} info --json: exit {report.returncode}: {report.stderr.strip()}")
    stale = []
    for name, text in pages(ROOT / "src/format", json.loads(report.stdout)["formats"]).items():
        path = ROOT / "docs/formats" / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(f"docs/formats/{name}")
        if not flags.check:
            path.write_text(text, encoding="utf-8")
    if flags.check and stale:
        sys.exit(f"not what headers and program say: {', '.join(stale)} (run tools/format_docs.py)")
    print("rewrote " + ", ".join(stale) if stale else "up to date")


if __name__ == "__main__":
    main()
