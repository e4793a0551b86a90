#!/usr/bin/env python3
"""Writes the tables of README.md and docs/*.md from results/*.jsonl, so that no number in them is typed by hand.

A table stands between `<!-- begin NAME -->` and `<!-- end NAME -->`; NAME is a row of TABLES below.
  tools/render_docs.py            rewrite the tables
  tools/render_docs.py --check    exit 1 when a document does not hold what its rows say
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def rows(name):
    path = ROOT / "results" / name
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def estimate(e, digits):
    return f"{e['value']:.{digits}f} ± {e['error']:.{digits}f}"




def quality(path):
    """KV quality: one line per configuration, f16 base first."""
    out = ["| K/V cache | bits K / V | bytes/token | MiB at 32k | PPL | ln PPL ratio | mean KLD | 99 % KLD | same top % |",
           "|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for r in rows("kv-quality-cpu.jsonl"):
        if r["kind"] != "eval_kld" or r["path"] != path:
            continue
        top = r["same_top"]
        out.append(
            f"| {r['kv']} | {r['kv_k']['bits_per_value']:g} / {r['kv_v']['bits_per_value']:g} | {r['bytes_per_token']} |"
            f" {r['mib_at_32k']:.1f} | {r['ppl']['value']:.3f} | {estimate(r['ln_ratio'], 4)} |"
            f" {estimate(r['kld']['mean'], 5)} | {r['kld']['percentiles']['99.0%']:.4f} |"
            f" {100 * top['value']:.2f} ± {100 * top['error']:.2f} |")
    return out


def perplexity():
    out = ["| weights | windows | chunks | PPL |", "|---|---|---:|---:|"]
    for r in rows("ppl-cpu.jsonl"):
        out.append(f"| {r['model_name']} as {r['weight_format']} | {r['n_ctx']}, {r['kv']} cache | {r['chunks']} |"
                   f" {estimate(r['ppl'], 4)} |")
    return out


def bandwidth():
    """The machine's memory ceilings, one line per stream of the last row."""
    out = ["| stream | GB/s median | quartiles | max |", "|---|---:|---:|---:|"]
    for s in rows("bandwidth-cpu.jsonl")[-1]["streams"]:
        out.append(f"| {s['name']} | {s['median_gb_s']:.1f} | {s['lower_quartile_gb_s']:.1f} to {s['upper_quartile_gb_s']:.1f} | {s['max_gb_s']:.1f} |")
    return out


def decode():
    out = ["| model | test | K/V cache | tok/s | read per token | GB/s | read roof GB/s | % of roof |",
           "|---|---|---|---:|---:|---:|---:|---:|"]
    for r in rows("decode-cpu.jsonl"):
        if r["n_gen"] == 0:
            continue
        test = f"tg{r['n_gen']}" + (f" @ d{r['n_depth']}" if r["n_depth"] else "")
        out.append(f"| {r['model_filename']} | {test} | {r['type_k']}/{r['type_v']} | {r['avg_ts']:.2f} ± {r['stddev_ts']:.2f} |"
                   f" {r['read_bytes'] / 1e6:.1f} MB | {r['read_gb_s']:.2f} | {r['roof_gb_s']:.2f} | {r['pct_of_roof']:.1f}"
                   f"{' (in cache)' if r['in_cache'] else ''} |")
    return out


TABLES = {
    "kv-quality-prefill": lambda: quality("prefill"),
    "kv-quality-decode": lambda: quality("decode"),
    "perplexity": perplexity,
    "bandwidth-cpu": bandwidth,
    "decode-cpu": decode,
}


def render(text):
    def table(match):
        name = match.group(1)
        if name not in TABLES:
            sys.exit(f"unknown table '{name}' (there are: {', '.join(TABLES)})")
        return f"<!-- begin {name} -->\n" + "\n".join(TABLES[name]()) + f"\n<!-- end {name} -->"

    return re.sub(r"<!-- begin ([\w-]+) -->\n.*?<!-- end \1 -->", table, text, flags=re.S)


def main():
    check = "--check" in sys.argv[1:]
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if not path.exists():
            continue
        text = path.read_text()
        wanted = render(text)
        if wanted == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not check:
            path.write_text(wanted)
    if check and stale:
        sys.exit(f"tables differ from results/ in: {', '.join(stale)} (run tools/render_docs.py)")
    print(("up to date" if not stale else "rewrote " + ", ".join(stale)))


main()
