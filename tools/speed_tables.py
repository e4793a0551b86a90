"""Tables of speed for render_docs.py: single ops and whole models, beside peers measured on the same kind of device.

Rows are those of `ridge bench`, `ridge sweep` and `ridge profile`; results/peers-h200.jsonl holds what other engines took
for the same work on one H200 (cold buffers, graph replays, medians), measured before these kernels were written.
"""

import json
import pathlib

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "results"
NO_ROWS = ["No rows yet."]
CACHES = ("f16", "q8_0", "p8", "p8/q8_0", "p8/q4_0", "q4_0", "rotor-4", "rotor-3", "rotor-3u")
WEIGHTS = ("f16", "q8_0", "q4_0", "int4_g128", "i2_s")


def rows(*names):
    """All finished rows of the files that exist."""
    found = []
    for name in names:
        path = RESULTS / name
        if path.exists():
            found += [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [r for r in found if "state" not in r]


def ops(device, op, axes, format_field):
    """{axes: {format: row}} of the kernels that were chosen, not of baselines or second measurements; the last one counts."""
    table = {}
    for r in rows(f"sweep-{device}.jsonl", f"op-{device}.jsonl"):
        cell = r.get("cell", {})
        if r.get("kind") != "op" or r["op"] != op or not r["checked"] or r.get("median_us") is None:
            continue
        if cell.get("control") or cell.get("kernel", "best") != "best":
            continue
        table.setdefault(tuple(r[a] for a in axes), {})[r[format_field]] = r
    return table


def peers(op, axes):
    """{axes: {peer: us}}"""
    table = {}
    for r in rows("peers-h200.jsonl"):
        if r["op"] == op:
            table.setdefault(tuple(r[a] for a in axes), {})[r["peer"]] = r["us"]
    return table


def timed(r, base):
    """"12.3 (81 %, 2.9x)": microseconds, percent of the read roof, how many times as fast as the base."""
    text = f"{r['median_us']:.1f}" if r["median_us"] < 1000 else f"{r['median_us']:.0f}"
    facts = []
    if r.get("pct_of_roof") is not None:
        facts.append(f"{r['pct_of_roof']:.0f} %" + ("" if r["cold"] else " warm"))
    if base is not None and base is not r:
        facts.append(f"{base['median_us'] / r['median_us']:.2f}x")
    return text + (f" ({', '.join(facts)})" if facts else "")


def best_f16_peer(known, key):
    """Microseconds of the fastest f16 attention of others; None where nobody was measured."""
    return min((us for peer, us in known.get(key, {}).items() if peer in ("FlashInfer f16", "cuDNN f16")), default=None)


def op_table(device, op, axes, format_field, shelf, front, beside):
    """A line per problem, a column per format. `front` gives the headings of a line and its cells, `beside` (a GPU's) those of what others took."""
    measured = ops(device, op, axes, format_field)
    if not measured:
        return NO_ROWS
    formats = [f for f in shelf if any(f in cells for cells in measured.values())]
    known = peers(op, axes) if device == "cuda" else {}
    names, others = beside if known else ([], lambda *_: [])
    out = [front[0] + "".join(f" {f} |" for f in formats) + "".join(f" {n} |" for n in names),
           "|---|---:|" + "---:|" * (len(formats) + len(names))]
    for key in sorted(measured):
        cells = measured[key]
        texts = [timed(cells[f], cells.get("f16")) if f in cells else "" for f in formats] + others(known, key, cells)
        out.append(front[1](key) + "".join(f" {text} |" if text else " |" for text in texts))
    return out


def attention(device):
    def others(known, key, cells):
        best = best_f16_peer(known, key)
        against = f"{best / cells['rotor-3']['median_us']:.2f}x" if best and "rotor-3" in cells else ""
        return [f"{best:.1f}" if best else "", against]
    return op_table(device, "attention", ("n_heads", "n_kv_heads", "head_dim", "n_seq", "n_keys"), "kv", CACHES,
                    ("| heads | sequences x keys |", lambda k: f"| {k[0]}/{k[1]}/{k[2]} | {k[3]} x {k[4]} |"),
                    (["best f16 peer", "rotor-3 against it"], others))


def gemv(device):
    names = ["cuBLAS f16", "Marlin int4", "tinygemm int4"]

    def others(known, key, _):
        found = known.get(key, {})
        return [f"{found[n]:.1f}" if n in found else "" for n in names]
    return op_table(device, "gemv", ("n_out", "n_in", "n_tokens"), "weight_format", WEIGHTS,
                    ("| n_out x n_in | tokens |", lambda k: f"| {k[0]} x {k[1]} | {k[2]} |"), (names, others))


def ceilings(device):
    """Everything of the last row of `bench bandwidth`, one line per figure."""
    found = rows(f"bandwidth-{device}.jsonl")
    if not found:
        return NO_ROWS
    r = found[-1]
    out = ["| ceiling | median | quartiles | max | ridge, operations a byte |", "|---|---:|---:|---:|---:|"]
    line = lambda name, s, unit, ridge: out.append(
        f"| {name} | {s['median_' + unit]:.1f} | {s['lower_quartile_' + unit]:.1f} to {s['upper_quartile_' + unit]:.1f} | {s['max_' + unit]:.1f} | {ridge} |")
    for s in r["streams"] + r.get("caches", []):
        line(s["name"] + " GB/s", s, "gb_s", "")
    for s in r.get("rates", []):
        if s["kernel"]:
            line(f"{s['number']} multiply-adds, 10^9 operations/s", s, "gop_s", f"{s['ridge_op_per_byte']:.1f}")
        else:
            out.append(f"| {s['number']} | {s['why_not']} | | | |")
    return out


def profiles(device):
    """Shares of a step by op, one line per profiled step, and how the parts add up."""
    found = {}
    for r in rows(f"profile-{device}.jsonl"):
        found[(r["model"], r["weight_format"], r["kv"], r["depth"], r["phase"], r["n_tokens"])] = r
    if not found:
        return NO_ROWS
    names, total = [], {}
    for r in found.values():
        for p in r["parts"]:
            total[p["op"]] = total.get(p["op"], 0) + p["us"] / r["step_us"]
    names = [n for n, share in sorted(total.items(), key=lambda item: -item[1]) if share >= 0.005 * len(found)]
    out = ["| model | cache | step | us |" + "".join(f" {n} % |" for n in names) + " rest % | between % | GB/s | % of roof |",
           "|---|---|---|---:|" + "---:|" * (len(names) + 4)]
    for r in found.values():
        share = {}
        for p in r["parts"]:
            share[p["op"]] = share.get(p["op"], 0) + 100 * p["us"] / r["step_us"]
        rest = sum(s for n, s in share.items() if n not in names)
        step = f"{r['n_tokens']} tokens" if r["phase"] == "prefill" else "decode"
        line = f"| {r['model']} | {r['kv']} | {step} @ d{r['depth']} | {r['step_us']:.0f} |"
        line += "".join(f" {share.get(n, 0):.1f} |" for n in names)
        line += f" {rest:.1f} | {100 * r['gap_us'] / r['step_us']:.1f} | {r['gb_s']:.1f} | {r['pct_of_roof']:.1f} |"
        out.append(line)
    return out


def parts(device, model, kv, depth):
    """The parts of one profiled step."""
    found = [r for r in rows(f"profile-{device}.jsonl")
             if model in r["model"] and r["kv"] == kv and r["depth"] == depth and r["phase"] == "decode"]
    if not found:
        return NO_ROWS
    r = found[-1]
    out = ["| part | kernel | calls | us | share | bytes | GB/s | % of roof | bound |", "|---|---|---:|---:|---:|---:|---:|---:|---|"]
    for p in r["parts"]:
        moved = p["read_bytes"] + p["write_bytes"]
        out.append(f"| {p['name']} | {p['kernel']} | {p['calls']:g} | {p['us']:.1f} | {100 * p['share']:.1f} % |"
                   f" {moved / 1e6:.2f} MB | {p['gb_s'] or 0:.1f} | {p['pct_of_roof'] or 0:.1f} | {p['bound']} |")
    out.append(f"| between them | | | {r['gap_us']:.1f} | {100 * r['gap_us'] / r['step_us']:.1f} % | | | | |")
    out.append(f"| the step | | {r['launches']:g} | {r['step_us']:.1f} | 100 % | {r['decode_read_bytes'] / 1e6:.1f} MB | {r['gb_s']:.1f} |"
               f" {r['pct_of_roof']:.1f} | |")
    return out


def coding_share():
    """What taking rows into the cache, coding them among it, costs of a prompt on the CPU."""
    out = ["| model | cache | prompt | threads | processes waiting on the machine | append, % of the step | attention % | products % |", "|---|---|---:|---:|---:|---:|---:|---:|"]
    for r in rows("checks/coding-share-cpu.jsonl"):
        share = {}
        for p in r["parts"]:
            share[p["op"]] = share.get(p["op"], 0) + 100 * p["us"] / r["step_us"]
        out.append(f"| {r['model']} | {r['kv']} | {r['n_tokens']} | {r['n_threads']} | {r['load_1min']:.0f} | {share['append']:.1f} | {share['attention']:.1f} | {share['gemm']:.1f} |")
    return out


def whole_models(device):
    """Decode of whole models by depth, beside llama.cpp where it was measured on the same kind of device."""
    found = [r for r in rows(f"decode-{device}.jsonl", f"sweep-{device}.jsonl") if r.get("n_gen", 0) > 0 and r.get("n_prompt") == 0]
    if not found:
        return NO_ROWS
    known = {}
    if device == "cuda":
        for r in rows("peers-h200.jsonl"):
            if r["op"] == "decode":
                known[(r["model"], r["weight_format"] == "f16", r["depth"], r["kv"])] = r["tok_s"]
    last = {}
    for r in found:
        last[(r["model_filename"], r["n_depth"], r["type_k"], r["type_v"], r["n_gen"])] = r
    out = ["| model | depth | cache | tok/s | GB/s | % of roof |" + (" llama.cpp Q4_0, f16 cache | |" if known else ""),
           "|---|---:|---|---:|---:|---:|" + ("---:|---:|" if known else "")]
    for (model, depth, k, v, _), r in sorted(last.items()):
        line = f"| {model} | {depth} | {k if k == v else k + '/' + v} | {r['avg_ts']:.1f} ± {r['stddev_ts']:.1f} | {r['read_gb_s']:.0f} | {r['pct_of_roof']:.0f} |"
        if known:
            peer = next((us for (m, f16, d, kv), us in known.items()
                         if m in model and d == depth and kv == "f16" and f16 == ("=f16" in model)), None)
            line += f" {peer} | {r['avg_ts'] / peer:.2f}x |" if peer else " | |"
        out.append(line)
    return out


def prompts(device):
    """Tokens a second of whole prompts, by model, length, tokens cached before, batch and cache."""
    last = {}
    for r in rows(f"decode-{device}.jsonl"):
        if r.get("n_prompt", 0) > 0 and r.get("n_gen") == 0:
            last[(r["model_filename"], r["n_prompt"], r["n_depth"], r["n_ubatch"], r["type_k"], r["type_v"])] = r
    if not last:
        return NO_ROWS
    out = ["| model | tokens | behind | a step (`-ub`) | cache | tok/s |", "|---|---:|---:|---:|---|---:|"]
    for (model, n, depth, ubatch, k, v), r in sorted(last.items()):
        out.append(f"| {model} | {n} | {depth} | {ubatch} | {k if k == v else k + '/' + v} | {r['avg_ts']:.0f} ± {r['stddev_ts']:.0f} |")
    return out


def verified_step(r):
    """A step with guesses in steps without: what a row's ratio leaves when its steps without guesses, in rests, cost one. Where guesses are forced
    to be right every step has as many, else the row says only what its mixture of steps costs."""
    cost = (r["spec_steps"] + r["spec_accepted"]) / r["speedup"]
    guessing = r["spec_proposed"] / r["spec_depth"] if r["forced_accept"] == 1 else r["spec_steps"]
    return (cost - (r["spec_steps"] - guessing)) / guessing


def last_guesses():
    """The newest row of each machine, model, proposer, depth and cache of checks/spec-cuda.jsonl."""
    last = {}
    for r in rows("checks/spec-cuda.jsonl"):
        last[tuple(r[f] for f in ("gpu_info", "model_filename", "spec_type", "spec_depth", "forced_accept", "n_depth", "type_k", "type_v"))] = r
    return sorted(last.values(), key=lambda r: (r["spec_type"], r["model_type"], r["spec_depth"], r["n_depth"]))


def files():
    """Whole models in the formats of the files that people have, beside int4_g128 of the same run."""
    weights = ("int4_g128", "q4_k_m", "q6_k")
    speeds = {}
    for r in rows("decode-cuda.jsonl"):
        model, _, kind = r["model_filename"].removeprefix("synth:").partition("@weights=")
        if kind not in weights or r["n_depth"] not in (0, 8192):
            continue
        test = "prompt of 512" if r["n_prompt"] == 512 and r["n_gen"] == 0 and r["n_ubatch"] == 512 else "generation" if r["n_prompt"] == 0 else None
        if test:
            speeds.setdefault((model, test, r["n_depth"], r["type_k"]), {})[kind] = r["avg_ts"]
    out = ["| model | what | behind | cache |" + "".join(f" {w} tok/s |" for w in weights) + " q4_k_m, times int4_g128 |", "|---|---|---:|---|" + "---:|" * 4]
    for (model, test, depth, kv), by in sorted(speeds.items()):
        if not {"q4_k_m", "int4_g128"} <= by.keys():
            continue
        out.append(f"| {model} | {test} | {depth} | {kv} |" + "".join(f" {by[w]:.0f} |" if w in by else " |" for w in weights) + f" {by['q4_k_m'] / by['int4_g128']:.2f} |")
    return out


def sampling():
    """Decode that draws by chance behind top-k and top-p, beside greedy decode of the same run."""
    speeds = {}
    for r in rows("checks/sampling-cuda.jsonl"):
        speeds.setdefault(r["model_filename"], {}).setdefault(r.get("temperature", 0) > 0, []).append(r["avg_ts"])
    out = ["| model | greedy, tok/s | at temperature 0.8, tok/s | times greedy | us a token more |", "|---|---:|---:|---:|---:|"]
    for model, by in speeds.items():
        greedy, drawn = (sum(by[key]) / len(by[key]) for key in (False, True))
        out.append(f"| {model} | {greedy:.0f} | {drawn:.0f} | {drawn / greedy:.3f} | {1e6 / drawn - 1e6 / greedy:.1f} |")
    return out


def decode_speeds(device):
    """{(model, cache): {depth: tokens a second}} of decode rows."""
    speeds = {}
    for r in rows(f"decode-{device}.jsonl", f"sweep-{device}.jsonl"):
        if r.get("n_gen", 0) > 0 and r.get("n_prompt") == 0:
            cache = r["type_k"] if r["type_k"] == r["type_v"] else f"{r['type_k']}/{r['type_v']}"
            speeds.setdefault((r["model_filename"], cache), {})[r["n_depth"]] = r["avg_ts"]
    return speeds


def decode_speed(device, model, depth, cache):
    """Tokens a second; None where no row says."""
    return decode_speeds(device).get((model, cache), {}).get(depth)


def flatness(device):
    """How much of its speed a model keeps from a short to a long cache."""
    speeds = decode_speeds(device)
    depths = (8192, 32768, 131072)
    found = {key: s for key, s in speeds.items() if sum(d in s for d in depths) > 1 and depths[0] in s}
    if not found:
        return NO_ROWS
    out = ["| model | cache |" + "".join(f" tok/s @ d{d} |" for d in depths) + " kept |", "|---|---|" + "---:|" * (len(depths) + 1)]
    for (model, cache), s in sorted(found.items()):
        deepest = max(d for d in depths if d in s)
        out.append(f"| {model} | {cache} |" + "".join(f" {s[d]:.2f} |" if d in s else " |" for d in depths) + f" {100 * s[deepest] / s[depths[0]]:.0f} % |")
    return out


def batches(device):
    """Several sequences at once: `ridge bench batch`."""
    found = rows(f"batch-{device}.jsonl")
    if not found:
        return NO_ROWS
    out = ["| model | K/V cache | prompts | sequences | prompts, tok/s | generation, tok/s | % of roof | checked (NMSE) |", "|---|---|---:|" + 5 * "---:|"]
    for r in sorted(found, key=lambda r: (r["model_filename"], r["test"].split(" b")[0], r["type_k"], r["n_seq"])):
        cache = r["type_k"] if r["type_k"] == r["type_v"] else f"{r['type_k']}/{r['type_v']}"
        prompts = r["test"].split("+")[0].removeprefix("pp").removeprefix("fill") + (" (random rows)" if r["prompts"] != "run" else "")
        speed = f"{r['speed_pp']:.0f}" if r.get("speed_pp") else ""
        check = f"{r['check_error']:.1e}" if r.get("checked") else "off"
        out.append(f"| {r['model_filename']} | {cache} | {prompts} | {r['n_seq']} | {speed} | {r['speed_tg']:.0f} | {r['pct_of_roof']:.0f} | {check} |")
    return out


def crossovers(device):
    """The sentences of `ridge sweep --crossovers`."""
    found = rows(f"crossovers-{device}.jsonl")
    return [f"* {r['sentence']}" for r in found] if found else NO_ROWS


TABLES = {
    **{f"batch-{device}": lambda device=device: batches(device) for device in ("cuda",)},
    **{f"attention-{device}": lambda device=device: attention(device) for device in ("cpu", "cuda")},
    **{f"gemv-{device}": lambda device=device: gemv(device) for device in ("cpu", "cuda")},
    **{f"ceilings-{device}": lambda device=device: ceilings(device) for device in ("cpu", "cuda")},
    **{f"profiles-{device}": lambda device=device: profiles(device) for device in ("cpu", "cuda")},
    **{f"flatness-{device}": lambda device=device: flatness(device) for device in ("cpu", "cuda")},
    **{f"crossovers-{device}": lambda device=device: crossovers(device) for device in ("cpu", "cuda")},
    **{f"models-{device}": lambda device=device: whole_models(device) for device in ("cpu", "cuda")},
    "prompts-cuda": lambda: prompts("cuda"),
    "files-cuda": files,
    "sampling-cuda": sampling,
    "coding-share-cpu": coding_share,
    "parts-cpu": lambda: parts("cpu", "qwen2.5-1.5b", "rotor-3", 4096),
    "parts-cuda": lambda: parts("cuda", "qwen2.5-1.5b", "rotor-3", 4096),
}
