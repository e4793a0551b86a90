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

import bars
import device_tables
import gate_tables
import row_age
import serve_tables
import speed_tables

ROOT = pathlib.Path(__file__).resolve().parent.parent


def rows(name):
    path = ROOT / "results" / name
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def studied(name, same=("model", "weight_format", "path", "n_ctx", "base", "kv")):
    """Finished rows of a study, the last one of each cell; nothing when it has not been run."""
    if not (ROOT / "results" / name).exists():
        return []
    cells = {}
    for r in rows(name):
        if r.get("chunks") == r.get("chunks_planned"):
            cells[tuple(str(r.get(field)) for field in same)] = r
    return list(cells.values())


def with_model(found):
    """The columns in front: model and window only where there is more than one. Returns heading, rule, cell of a row."""
    def label(r):
        return f"{r['model_name']} {r['weight_format']}" + (f", {r['n_ctx']}" if several_windows else "")
    several_windows = len({r.get("n_ctx") for r in found}) > 1
    if len({label(r) for r in found}) < 2:
        return "| K/V cache |", "|---|", lambda r: f"| {r['kv']} |"
    return f"| weights{', window' if several_windows else ''} | K/V cache |", "|---|---|", lambda r: f"| {label(r)} | {r['kv']} |"


NO_ROWS = ["No rows yet."]
PPL_GATE = 0.25


def options_of(kv):
    """'rotor-3:planar:window=0' -> ('rotor-3', {'rotation', 'window'})."""
    name, *options = kv.split(":")
    return name, {o.split("=")[0] if "=" in o else "rotation" for o in options}


def plain(kv):
    return ":" not in kv


# Which caches a part of the matrix shows, from (K, V, K/V as typed).
BARE = {"rotation", "window", "sinks", "centre", "scale", "rounding"}  # nothing but rotation, codes and a norm
PARTS = {
    "both": lambda k, v, kv: plain(kv) and k == v,
    "k": lambda k, v, kv: plain(kv) and v == "f16",
    "v": lambda k, v, kv: plain(kv) and k == "f16",
    "mixed": lambda k, v, kv: plain(kv) and ";" not in kv and k != v and "f16" not in (k, v),
    "plain": lambda k, v, kv: plain(kv) and "f16/" not in kv and "/f16" not in kv,
    "layer": lambda k, v, kv: kv.startswith("f16;"),
    "split": lambda k, v, kv: ";" in kv and not kv.startswith("f16;") or kv in ("rotor-3", "rotor-4", "rotor-4/rotor-3"),
    "rotation": lambda k, v, kv: k == v and options_of(k)[0] == "rotor-3" and options_of(k)[1] <= {"rotation"},
    "rotation-bare": lambda k, v, kv: k == v and options_of(k)[1] == BARE,
    "centring": lambda k, v, kv: k == v and options_of(k)[0] == "rotor-3" and options_of(k)[1] <= {"centre"},
    "window": lambda k, v, kv: k == v and options_of(k)[0] == "rotor-3" and options_of(k)[1] <= {"window", "sinks", "recent"},
    "rounding": lambda k, v, kv: k == v and options_of(k)[0] == "rotor-3" and options_of(k)[1] <= {"rounding"},
    "scale": lambda k, v, kv: k == v and options_of(k)[1] <= {"scale"},
    "before": lambda k, v, kv: kv == "rotor-3" or "rounding=nearest" in k and "window=32" in k,
}


def sides(kv):
    k, _, v = kv.partition("/")
    return k, v or k


def matrix(part, path):
    """One sweep out of the rows of `ridge eval matrix`."""
    found = [r for r in studied("kv-matrix.jsonl") if r["path"] == path and PARTS[part](*sides(r["kv"]), r["kv"])]
    if part == "scale":  # a format with one rule has nothing to compare
        several = {options_of(sides(r["kv"])[0])[0] for r in found if "scale=" in r["kv"]}
        found = [r for r in found if options_of(sides(r["kv"])[0])[0] in several]
    if part == "split":
        used = {(r["model_name"], r["n_ctx"]) for r in found if ";" in r["kv"]}
        found = [r for r in found if (r["model_name"], r["n_ctx"]) in used]
    if not found:
        return NO_ROWS
    order = {}  # runs in the order of the file, their caches beside each other
    for r in found:
        order.setdefault((r["model_name"], r["weight_format"], r["n_ctx"]), len(order))
    found.sort(key=lambda r: order[(r["model_name"], r["weight_format"], r["n_ctx"])])
    if part in ("k", "v"):  # the control row of a window where nothing was swept says nothing
        swept = {(r["model_name"], r["n_ctx"]) for r in found if r["kv"] != "f16"}
        found = [r for r in found if (r["model_name"], r["n_ctx"]) in swept]
    heading, rule, front = with_model(found)
    out = [f"{heading} bits K / V | bits at 4k | mean KLD | ln PPL ratio | same top % | 99 % KLD | PPL | PPL - f16 (gate +{PPL_GATE}) |",
           f"{rule}---:|---:|---:|---:|---:|---:|---:|---:|"]
    for r in found:
        rise, top = r["difference"], r["same_top"]
        out.append(
            f"{front(r)} {r['kv_k']['bits_per_value']:g} / {r['kv_v']['bits_per_value']:g} | {r['effective_bits_4k']:.2f} |"
            f" {estimate(r['kld']['mean'], 6)} | {estimate(r['ln_ratio'], 5)} |"
            f" {100 * top['value']:.2f} ± {100 * top['error']:.2f} | {r['kld']['percentiles']['99.0%']:.5f} |"
            f" {r['ppl']['value']:.3f} | {rise['value']:+.4f} ± {rise['error']:.4f} {'pass' if rise['value'] <= PPL_GATE else 'FAIL'} |")
    return out


def side_by_side(name, sides, side_of):
    """The same caches measured in two ways: quality of each, beside the other's."""
    found = {}
    for r in rows(f"checks/{name}.jsonl"):
        found.setdefault(r["kv"], {})[side_of(r)] = r
    if not found:
        return NO_ROWS
    out = ["| cache | " + " | ".join(f"{what}, {side}" for what in ("mean KLD", "same top %", "PPL") for side in sides) + " |", "|---|" + 6 * "---:|"]
    for kv, by in found.items():
        if len(by) < 2:
            continue
        pair = [by[side] for side in sides]
        out.append(f"| {kv} | " + " | ".join(estimate(r["kld"]["mean"], 6) for r in pair) + " | "
                   + " | ".join(f"{100 * r['same_top']['value']:.2f} ± {100 * r['same_top']['error']:.2f}" for r in pair) + " | "
                   + " | ".join(f"{r['ppl']['value']:.3f}" for r in pair) + " |")
    return out


def devices():
    """The same caches on the CPU and on a GPU."""
    return side_by_side("kv-device", ("CPU", "GPU"), lambda r: "GPU" if r["device"] == "cuda" else "CPU")


def integers():
    """The same caches by the CPU's kernel of floats and by that of integers."""
    return side_by_side("kv-integers", ("floats", "integers"), lambda r: "floats" if "split-avx512" in r["command"] else "integers")


def spot():
    """Caches measured before the engine's core was made anew, and after."""
    before = {r["kv"]: r for r in rows("checks/kv-integers.jsonl") if "split-avx512" not in r["command"]}
    out = ["| cache | mean KLD, before | mean KLD, now | same top %, before | same top %, now | PPL, before | PPL, now |", "|---|" + 6 * "---:|"]
    for r in rows("checks/kv-spot.jsonl"):
        pair = [before[r["kv"]], r]
        top = [f"{100 * of['same_top']['value']:.2f} ± {100 * of['same_top']['error']:.2f}" for of in pair]
        out.append(f"| {r['kv']} | " + " | ".join(estimate(of["kld"]["mean"], 6) for of in pair) + f" | {' | '.join(top)} | "
                   + " | ".join(f"{of['ppl']['value']:.3f}" for of in pair) + " |")
    return out


def attention_kernels():
    """One layer's attention by both kernels of the CPU."""
    found, heads = {}, []
    for r in rows("checks/attention-kernels-cpu.jsonl"):
        shape = f"{r['n_heads']}/{r['n_kv_heads']}/{r['head_dim']}"
        if shape not in heads:
            heads.append(shape)
        found.setdefault(r["kv"], {})[(shape, r["kernel"].split("-")[0])] = r
    if not found:
        return NO_ROWS
    out = ["| cache | " + " | ".join(f"{h}: floats us | integers us | | NMSE" for h in heads) + " |", "|---|" + len(heads) * 4 * "---:|"]
    for kv, by in found.items():
        cells = []
        for h in heads:
            floats, ints = by.get((h, "split")), by.get((h, "int"))
            cells.append(f"{floats['median_us']:.0f}" if floats else "")
            cells += [f"{ints['median_us']:.0f}", f"{floats['median_us'] / ints['median_us']:.2f}x", f"{ints['check_error']:.1e}"] if ints else ["", "", ""]
        out.append(f"| {kv} | " + " | ".join(cells) + " |")
    return out


def matrix_runs():
    """What the matrix was run on: one line per model, path and window."""
    runs = {}
    for r in studied("kv-matrix.jsonl"):
        runs[(r["model_name"], r["weight_format"], r["path"], r["n_ctx"], r["device"])] = r
    if not runs:
        return NO_ROWS
    out = ["| weights | text | path | windows | scored tokens | device | build |", "|---|---|---|---:|---:|---|---|"]
    for r in runs.values():
        out.append(f"| {r['model_name']} {r['weight_format']} | {r['corpus']} | {r['path']} | {r['chunks']} x {r['n_ctx']} |"
                   f" {r['tokens_scored']} | {r['device']} | {r['build_commit']} |")
    return out


def curve():
    """Mean divergence by position in the window, caches of the prefill path with the same format on both sides."""
    found = [r for r in studied("kv-matrix.jsonl")
             if r["path"] == "prefill" and PARTS["both"](*sides(r["kv"]), r["kv"]) and r["kld"]["mean"]["value"] > 0]
    if not found:
        return NO_ROWS
    parts = found[0]["kld_by_position"]
    found = [r for r in found if [p["from"] for p in r["kld_by_position"]] == [p["from"] for p in parts]]
    heading, rule, front = with_model(found)
    out = [heading + "".join(f" {p['from']} to {p['to'] - 1} |" for p in parts), rule + "---:|" * len(parts)]
    for r in found:
        out.append(front(r) + "".join(f" {p['kld']['value']:.5f} |" for p in r["kld_by_position"]))
    return out


def divergence():
    found = studied("kv-divergence.jsonl", ("model", "weight_format", "prompt_tokens", "n_generate", "base", "kv"))
    if not found:
        return NO_ROWS
    heading, rule, front = with_model(found)
    out = [f"{heading} prompts | identical % | first difference: median | 25 % | 75 % | mean (at least) |",
           f"{rule}---:|---:|---:|---:|---:|---:|"]
    for r in found:
        first = r["first_difference"]
        cell = lambda x: f"> {x:.0f}" if x >= r["n_generate"] else f"{x:.0f}"
        out.append(f"{front(r)} {r['n_prompts']} | {100 * r['identical']:.1f} | {cell(first['median'])} | {cell(first['25%'])} |"
                   f" {cell(first['75%'])} | {first['mean']['value']:.1f} |")
    return out


def needle():
    found = studied("kv-needle.jsonl", ("model", "weight_format", "n_ctx", "needle", "cue", "kv"))
    if not found:
        return NO_ROWS
    heading, rule, front = with_model(found)
    depths = found[0]["depths"]
    out = [f"{heading} context |" + "".join(f" depth {100 * d['depth']:.0f} % |" for d in depths) + " not planted |",
           rule + "---:|" * (len(depths) + 2)]
    cell = lambda s: f" {100 * s['tokens_found']['value']:.1f} % ({s['nll']['value']:.2f}) |"
    for r in found:
        out.append(f"{front(r)} {r['n_ctx']} |" + "".join(cell(d) for d in r["depths"]) + cell(r["absent"]))
    return out


def search_points():
    """Allocations by layer and side beside pairs for all layers, by rising bits."""
    if not (ROOT / "results" / "kv-search.jsonl").exists():
        return NO_ROWS
    found = [r for r in rows("kv-search.jsonl") if r["kind"] == "search_point"]
    found.sort(key=lambda r: (not r["uniform"], r["bits"]))
    out = ["| limit | K/V cache | bits | expected KLD | mean KLD | the line there | below the line | verdict |", "|---|---|---:|---:|---:|---:|---:|---|"]
    for r in found:
        kld, line = r["kld"], r["line"]
        if r["uniform"]:
            out.append(f"| one pair | {r['kv']} | {r['bits']:.3f} | {r['predicted_kld']:.5f} | {estimate(kld, 5)} | | | |")
            continue
        error = (kld["error"] ** 2 + line["error"] ** 2) ** 0.5
        out.append(f"| {r['limit']} | `{r['kv']}` | {r['bits']:.3f} | {r['predicted_kld']:.5f} | {estimate(kld, 5)} | {estimate(line, 5)} |"
                   f" {estimate({'value': line['value'] - kld['value'], 'error': error}, 5)} ({100 * (1 - kld['value'] / line['value']):.0f} %) | {r['verdict']} |")
    return out


def search_sides():
    """Sensitivities: a line a layer, a column a side and format."""
    if not (ROOT / "results" / "kv-search.jsonl").exists():
        return NO_ROWS
    cells = {}
    for r in rows("kv-search.jsonl"):
        if r["kind"] != "sensitivity":
            continue
        layer, pair = r["kv"].split(";")[1].split(":", 1)
        k, v = pair.split("/")
        cells[int(layer), "K" if v == "f16" else "V", k if v == "f16" else v] = r
    columns = list(dict.fromkeys((side, kv) for _, side, kv in cells))
    columns.sort(key=lambda c: c[0])
    out = ["| layer |" + "".join(f" {side} {kv} |" for side, kv in columns) + " scored tokens |", "|---:|" + "---:|" * (len(columns) + 1)]
    for layer in sorted({layer for layer, _, _ in cells}):
        of_layer = [cells[layer, side, kv] for side, kv in columns]
        out.append(f"| {layer} |" + "".join(f" {1000 * r['kld_mean']:.3f} ± {1000 * r['kld_error']:.3f} |" for r in of_layer) + f" {of_layer[0]['tokens_scored']} |")
    return out


def probe():
    """A line a probe, a column a cache; the last row of each cache."""
    if not (ROOT / "results" / "kv-probe.jsonl").exists():
        return NO_ROWS
    found = list({r["kv"]: r for r in rows("kv-probe.jsonl")}.values())
    out = ["| probe |" + "".join(f" {r['kv']} |" for r in found), "|---|" + "---|" * len(found)]
    for i, line in enumerate(found[0]["probes"]):
        lines = [r["probes"][i] for r in found]
        same = len({(p["verdict"], p["says"]) for p in lines}) == 1
        out.append(f"| {line['name']} |" + "".join(f" {p['verdict']}{'' if same and p['verdict'] == 'NOT APPLICABLE' and n else ': ' + p['says']} |" for n, p in enumerate(lines)))
    return out


def attention():
    found = studied("kv-attention.jsonl", ("model", "weight_format", "n_ctx", "n_windows", "kv"))
    if not found:
        return NO_ROWS
    heading, rule, front = with_model(found)
    figures = " relative L2 | cosine | norm ratio | RMS logit error |"
    out = [f"{heading}{figures} with a K outlier:{figures}", rule + "---:|" * 8]
    for r in found:
        out.append(front(r) + "".join(
            f" {e['relative_l2']:.4f} | {e['cosine']:.4f} | {e['norm_ratio']:.4f} | {e['rms_logit_error']:.4f} |"
            for e in (r["attention"], r["attention_outlier"])))
    return out


def estimate(e, digits):
    return f"{e['value']:.{digits}f} ± {e['error']:.{digits}f}"


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


SUMMARY = ("f16", "q8_0", "p8/q4_0", "q4_0", "rotor-4", "rotor-3", "rotor-3s", "rotor-3u")
SUMMARY_SPEEDS = (("cpu", "synth:qwen2.5-0.5b@weights=q4_0", 32768), ("cuda", "synth:qwen2.5-1.5b@weights=int4_g128", 131072))


def summary():
    """What a cache costs and gains: quality of one model on the decode path, speed of two synthetic ones at depth."""
    quality = {r["kv"]: r for r in studied("kv-matrix.jsonl") if r["path"] == "decode" and r["model_name"] == "ridge-ref"}
    out = ["| K and V cache | bits a value at 4k | mean KLD | same top % | PPL - f16 | CPU, tok/s | H200, tok/s |", "|---|" + 6 * "---:|"]
    for kv in SUMMARY:
        r = quality[kv]
        speeds = [speed_tables.decode_speed(device, model, depth, kv) for device, model, depth in SUMMARY_SPEEDS]
        out.append(f"| {kv} | {r['effective_bits_4k']:.2f} | {r['kld']['mean']['value']:.6f} | {100 * r['same_top']['value']:.1f} |"
                   f" {estimate(r['difference'], 3)} | " + " | ".join("" if s is None else f"{s:.0f}" for s in speeds) + " |")
    return out


TABLES = {
    **{f"kv-matrix-{part}": lambda part=part: matrix(part, "prefill") for part in PARTS},
    "kv-matrix-decode": lambda: matrix("plain", "decode"),
    "kv-matrix-runs": matrix_runs,
    "kv-device": devices,
    "kv-integers": integers,
    "kv-spot": spot,
    "attention-kernels-cpu": attention_kernels,
    "kv-curve": curve,
    "kv-divergence": divergence,
    "kv-needle": needle,
    "kv-attention": attention,
    "kv-search": search_points,
    "kv-search-sides": search_sides,
    "kv-probe": probe,
    "perplexity": perplexity,
    "bandwidth-cpu": bandwidth,
    "summary": summary,
    **speed_tables.TABLES,
    **device_tables.TABLES,
    **serve_tables.TABLES,
    **gate_tables.TABLES,
    "bars-cuda": bars.table,
    "row-age": row_age.table,
}


def render(text):
    def table(match):
        name = match.group(1)
        if name not in TABLES:
            sys.exit(f"unknown table '{name}' (there are: {', '.join(TABLES)})")
        return f"<!-- begin {name} -->\n" + "\n".join(row_age.table(match.group(0)) if name == "row-age" else TABLES[name]()) + f"\n<!-- end {name} -->"

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
