"""Tables of speed: ceilings, single operations, whole models, batches, several GPUs, beside other engines on the same kind of card.

results/peers-h200.jsonl holds what other engines took for the same work on one H200 (cold buffers, graph replays, medians).
"""

import pathlib
import re
import statistics

from tables.rows import cache, card, last, model, model_text, n_gpus, rate, stored, table

CACHES = ("f16", "q8_0", "p8/q8_0", "p8/q4_0", "rotor-4", "rotor-3")
WEIGHTS = ("f16", "q8_0", "q4_0", "int4_g128")
F16_PEERS = ("FlashInfer f16", "cuDNN f16")
# The kernels that models run on a GPU, up to so many tokens and with more of them.
FEW_TOKENS, MODELS_INT4, MODELS_MANY = 24, "int-2planes", ("int4-f16", "bricks-f16")


def of_models(r, device, op):
    """Whether a row is of the kernel that models run, checked, and neither a baseline nor a second measurement."""
    cell = r.get("cell", {})
    if r.get("kind") != "op" or "state" in r or r["op"] != op or not r["checked"] or r.get("median_us") is None:
        return False
    if cell.get("control") or cell.get("kernel", "best") != "best":
        return False
    if device == "cpu" or op != "gemv":
        return True
    if r["n_tokens"] > FEW_TOKENS:
        return r["kernel"] in MODELS_MANY
    return r["weight_format"] != "int4_g128" or r["kernel"] == MODELS_INT4


def ops(device, op, axes, format_field):
    """{axes: {format: row}}; the last row counts."""
    found = {}
    int4 = [r for r in stored("checks/baselines-cuda") if r.get("weight_format") == "int4_g128"] if device == "cuda" else []
    for r in int4 + stored(f"sweep-{device}", f"op-{device}"):
        if of_models(r, device, op):
            found.setdefault(tuple(r[a] for a in axes), {})[r[format_field]] = r
    return found


def peers(op, axes):
    """{axes: {peer: us}} on an H200."""
    found = {}
    for r in stored("peers-h200"):
        if r["op"] == op:
            found.setdefault(tuple(r[a] for a in axes), {})[r["peer"]] = r["us"]
    return found


def best_f16_peer(known, key):
    """Microseconds of the fastest f16 attention of others; None where nobody was measured."""
    return min((us for peer, us in known.get(key, {}).items() if peer in F16_PEERS), default=None)


def timed(r, base):
    """"12.3 (81 %, 2.9x)": microseconds, percent of measured memory bandwidth, how many times as fast as the base."""
    text = f"{r['median_us']:.1f}" if r["median_us"] < 1000 else f"{r['median_us']:.0f}"
    facts = [] if r.get("pct_of_roof") is None else [f"{r['pct_of_roof']:.0f} %" + ("" if r["cold"] else " warm")]
    if base is not None and base is not r:
        facts.append(f"{base['median_us'] / r['median_us']:.2f}x")
    return text + (f" ({', '.join(facts)})" if facts else "")


def attention(device):
    """A line a problem, a column a cache; of a GPU also the fastest f16 attention of other libraries."""
    axes = ("n_heads", "n_kv_heads", "head_dim", "n_seq", "n_keys")
    measured = {key: cells for key, cells in ops(device, "attention", axes, "kv").items()
                if (key[4] in (512, 8192, 131072) if key[3] == 1 else key[4] > 8192) or key[:2] not in ((12, 2), (20, 5), (64, 8))}
    known = peers("attention", axes) if device == "cuda" else {}
    shelf = [kv for kv in CACHES if any(kv in cells for cells in measured.values())]
    lines = []
    for key in sorted(measured):
        cells = measured[key]
        line = [card(next(iter(cells.values()))), f"{key[0]}/{key[1]}/{key[2]}", f"{key[3]} x {key[4]}"]
        line += [timed(cells[kv], cells.get("f16")) if kv in cells else "" for kv in shelf]
        if known:
            best = best_f16_peer(known, key)
            line += [f"{best:.1f}" if best else "", f"{best / cells['rotor-3']['median_us']:.2f}x" if best and "rotor-3" in cells else ""]
        lines.append(line)
    return table(["device", "heads", "sequences x keys", *shelf] + (["fastest f16 of FlashInfer, cuDNN", "rotor-3 relative to it"] if known else []), lines)


GEMV_SHAPES = ((1536, 1536), (8960, 1536), (28672, 4096), (57344, 8192))


def gemv(device):
    """A line a shape and weight format (or other library), a column a number of tokens. results/sweep-*.jsonl has more shapes."""
    axes = ("n_out", "n_in", "n_tokens")
    measured = ops(device, "gemv", axes, "weight_format")
    known = peers("gemv", axes) if device == "cuda" else {}
    tokens = sorted({key[2] for key in measured})
    # A row is compared with f16 of its own build.
    bases = {(r["n_out"], r["n_in"], r["n_tokens"], r["build_commit"]): r for r in stored(f"sweep-{device}", f"op-{device}")
             if of_models(r, device, "gemv") and r["weight_format"] == "f16"}
    lines = []
    for shape in [shape for shape in GEMV_SHAPES if any(key[:2] == shape for key in measured)]:
        for kind in WEIGHTS:
            cells = [(n, measured.get((*shape, n), {}).get(kind)) for n in tokens]
            if any(r for _, r in cells):
                lines.append([card(next(r for _, r in cells if r)), f"{shape[0]} x {shape[1]}", kind] +
                             [timed(r, bases.get((*shape, n, r["build_commit"])) if kind != "f16" else r) if r else "" for n, r in cells])
        for peer in ("cuBLAS f16", "Marlin int4"):
            us = [known.get((*shape, n), {}).get(peer) for n in tokens]
            if any(us):
                lines.append(["H200", f"{shape[0]} x {shape[1]}", f"*{peer}*"] + [f"{t:.1f}" if t else "" for t in us])
    return table(["device", "n_out x n_in", "weights", *(f"{n} token{'s' if n > 1 else ''}" for n in tokens)], lines)


def verdict(a, again, b):
    """1 where b is faster than a beyond the noise and 1 %, -1 where it is slower, 0 where neither can be said: the rule of src/lab/sweep/compare.cpp without its
    bootstrap, which decides none of these comparisons. `again` is a second measurement of a, or nothing."""
    median = statistics.median
    effect_of = lambda ratio: ratio - 1 if ratio >= 1 else 1 - 1 / ratio
    spread = lambda times: 3 * median(abs(t - median(times)) for t in times) / median(times)
    effects = [effect_of(median(times) / median(b)) for times in (a, again) if times]
    noise = max(map(spread, filter(None, (a, again, b))))
    if again:
        noise = max(noise, abs(effect_of(median(a) / median(again))))
    effect = min(effects, key=abs) if min(effects) * max(effects) > 0 else 0
    return 0 if abs(effect) <= max(noise, 0.01) else 1 if effect > 0 else -1


def where_it_wins(axis, verdicts):
    """Where a format is faster, of (place, verdict) in order."""
    decided = [(x, v) for x, v in verdicts if v]
    turns = [(a, b) for a, b in zip(decided, decided[1:]) if a[1] != b[1]]
    if len(turns) == 1:
        (before, was), (after, _) = turns[0]
        return f"up to {axis} {before}" if was > 0 else f"from {axis} {after}"
    if turns:
        return f"at {axis} " + ", ".join(str(x) for x, v in decided if v > 0)
    if not decided:
        return "cannot be told"
    return "never" if decided[0][1] < 0 else "always" if len(decided) == len(verdicts) else "never slower"


def crossovers():
    """From or up to where a format beats f16, a line a problem, computed from the rows of sweeps as `ridge sweep --crossovers` does. Problems that every format
    wins throughout are counted only."""
    series, formats = {}, []
    for axis in ("batch", "depth"):
        for r in stored("sweep-cuda", "sweep-cpu"):
            cell = r.get("cell", {})
            if axis in cell and cell.get("kernel", "best") == "best":
                rest = tuple(sorted((k, v) for k, v in cell.items() if k not in (axis, "format", "kernel", "control")))
                series.setdefault((axis, rest), {}).setdefault(cell[axis], {})[cell["format"], bool(cell.get("control"))] = r
    problems = {}
    for (axis, rest), places in series.items():
        of = dict(rest)
        name = f"gemv {of['n_out']}x{of['n_in']}" if of["bench"] == "gemv" else f"{of['bench']} {of['n_heads']}/{of['n_kv_heads']}/{of['head_dim']}"
        name += "".join(f", {other} {of[other]}" for other in ("batch", "depth") if other in of)
        found = list(dict.fromkeys(fmt for cells in places.values() for fmt, control in cells if fmt != "f16"))
        for fmt in found:
            samples = lambda cells, *key: cells[key]["samples_us"] if key in cells else []
            verdicts = [(x, verdict(samples(cells, "f16", False), samples(cells, "f16", True), samples(cells, fmt, False))) for x, cells in sorted(places.items())
                        if ("f16", False) in cells and (fmt, False) in cells]
            if len(verdicts) < 2:
                continue
            problems.setdefault((card(of), name), {})[fmt] = where_it_wins(axis, verdicts)
            if fmt not in formats:
                formats.append(fmt)
    won = {}
    for (where, _), by in problems.items():
        won[where] = won.get(where, 0) + all(answer == "always" for answer in by.values())
    lines = [[*key] + [by.get(f, "") for f in formats] for key, by in problems.items() if any(answer != "always" for answer in by.values())]
    count = "; ".join(f"{where}: {n} of {sum(key[0] == where for key in problems)}" for where, n in won.items())
    return table(["device", "operation", *formats], lines) + ["", f"Not listed: operations on which every compressed format beats f16 at every batch or depth ({count})."]


def coding():
    """Requirement S0.10: whether a coded cache pays in one layer's attention, a line a problem and cache."""
    lines = []
    for r in stored("checks/coding-cuda"):
        lines.append([card(r), f"{r['n_heads']}/{r['n_kv_heads']}/{r['head_dim']}", f"{r['n_seq']} x {r['n_keys']}", r["kv"], f"{r['f16_us']:.2f}", f"{r['coded_us']:.2f}",
                      f"{r['coding_us']:.2f}", f"{r['sum_us']:.2f}", f"{r['f16_us'] / r['sum_us']:.2f}x", f"{r['k_error']:.4f} / {r['v_error']:.4f}"])
    return table(["device", "heads", "sequences x keys", "K/V cache", "f16 us", "coded us", "coding us", "coded + coding us", "f16 / sum", "codec error K / V"], lines)


def append():
    cells = {}
    for r in stored("checks/append-cuda"):
        cells.setdefault((card(r), r["n_kv_heads"], r["n_seq"]), {})[r["kv"]] = r["median_us"]
    formats = list(dict.fromkeys(kv for cell in cells.values() for kv in cell))
    return table(["device", "KV heads", "sequences", *(f"{kv} us" for kv in formats)],
                 [[*key] + [f"{cell[kv]:.2f}" if kv in cell else "" for kv in formats] for key, cell in cells.items()])


def ceilings():
    """The last row of `bench bandwidth` of each device, one line per figure; of several kernels that read memory the fastest."""
    lines = []
    for found in (stored("bandwidth-cuda")[-1], stored("bandwidth-cpu")[-1]):
        def line(name, s, unit, ridge=""):
            lines.append([card(found), name, f"{s['median_' + unit]:.1f}", f"{s['lower_quartile_' + unit]:.1f} to {s['upper_quartile_' + unit]:.1f}", ridge])
        reads = [s for s in found["streams"] if re.match(r"read\b(?!-)", s["name"])]
        fastest = max(reads, key=lambda s: s["median_gb_s"])
        for s in found["streams"] + found.get("caches", []):
            if s is fastest or s not in reads and not re.search("-nt|-driver|l1|l3", s["name"]):
                name = s["name"].split(" ")[0]
                line({"read": "memory read", "l2-read": "L2 read", "read-l2": "L2 read"}.get(name, name) + ", GB/s", s, "gb_s")
        for s in found.get("rates", []):
            if s["kernel"] and s["number"] in ("f32", "int8", "bf16"):
                line(f"{s['number']} multiply-adds, 10^9 operations/s", s, "gop_s", f"{s['ridge_op_per_byte']:.1f}")
    return table(["device", "ceiling", "median", "quartiles", "ridge point, operations per byte"], lines)


def profiles():
    """Shares of a forward pass by operation, a line a pass; what is below half a percent everywhere is in `other`."""
    found = last(stored("profile-cuda", "profile-cpu"), "device_name", "model", "weight_format", "kv", "depth", "phase", "n_tokens")
    shares = []
    for r in found:
        share = {}
        for p in r["parts"]:
            share[p["op"]] = share.get(p["op"], 0) + 100 * p["us"] / r["step_us"]
        shares.append(share)
    total = {name: sum(s.get(name, 0) for s in shares) for share in shares for name in share}
    names = [n for n in sorted(total, key=lambda n: -total[n]) if total[n] >= 0.5 * len(found)]
    lines = []
    for r, share in zip(found, shares):
        step = f"prompt of {r['n_tokens']}" if r["phase"] == "prefill" else f"token at depth {r['depth']}"
        lines.append([card(r), model_text(r["model"]), r["kv"], step, f"{r['step_us']:.0f}"] + [f"{share.get(n, 0):.1f}" for n in names]
                     + [f"{sum(s for n, s in share.items() if n not in names):.1f}", f"{100 * r['gap_us'] / r['step_us']:.1f}", f"{r['pct_of_roof']:.0f}"])
    return table(["device", "model", "cache", "forward pass", "us", *(f"{n} %" for n in names), "other %", "gaps %", "% of bandwidth"], lines)


def coding_share():
    """What coding rows into the cache costs of a prompt on the CPU."""
    lines = []
    for r in stored("checks/coding-share-cpu"):
        share = {}
        for p in r["parts"]:
            share[p["op"]] = share.get(p["op"], 0) + 100 * p["us"] / r["step_us"]
        lines.append([card(r), model_text(r["model"]), r["kv"], r["n_tokens"], f"{r['load_1min']:.0f}"] + [f"{share[op]:.1f}" for op in ("append", "attention", "gemm")])
    return table(["device", "model", "cache", "prompt", "load of the machine", "append %", "attention %", "gemm %"], lines)


def decode_speeds(device):
    """{(card, model, cache): {depth: row}} of decode rows; the last row counts. @shared=1 changes what the host stores, not what the device reads."""
    found = {}
    for r in stored(f"decode-{device}"):
        if r.get("n_gen", 0) > 0 and r.get("n_prompt") == 0:
            found.setdefault((card(r), r["model_filename"].replace("@shared=1", ""), cache(r)), {})[r["n_depth"]] = r
    return found


def models(device):
    """A line a model and cache, a column a depth: tokens a second, and how many times as fast as with the f16 cache."""
    speeds = decode_speeds(device)
    depths = sorted({d for by in speeds.values() for d in by})
    lines = []
    for (where, name, kv), by in sorted(speeds.items(), key=lambda item: (*item[0][:2], item[0][2] != "f16", item[0][2])):
        base = speeds.get((where, name, "f16"), {})
        cells = []
        for d in depths:
            r = by.get(d)
            times = f" ({r['avg_ts'] / base[d]['avg_ts']:.2f}x)" if r and kv != "f16" and d in base else ""
            cells.append(f"{rate(r['avg_ts'])} ± {r['stddev_ts']:.1f}{times}" if r else "")
        lines.append([where, model_text(name), kv] + cells + [f"{by[max(by)]['pct_of_roof']:.0f}"])
    return table(["device", "model", "cache", *(f"depth {d}" for d in depths), "% of bandwidth at the row's greatest depth"], lines)


def llama_cpp():
    """llama.cpp beside Ridge, f16 caches on both sides: weights of the same format, and Ridge's int4_g128 beside q4_0."""
    ours = {}
    for (where, name, kv), by in decode_speeds("cuda").items():
        shape, weights, _ = model(name)
        if kv == "f16" and weights:
            ours.update({(where, shape, weights, f"depth {depth}"): r["avg_ts"] for depth, r in by.items()})
    for r in stored("decode-cuda"):
        shape, weights, _ = model(r["model_filename"])
        if r.get("n_gen") == 0 and r.get("n_depth") == 0 and cache(r) == "f16" and r["n_prompt"] == r["n_ubatch"]:
            ours[(card(r), shape, weights, f"prompt of {r['n_prompt']}")] = r["avg_ts"]
    lines = []
    for r in stored("peers-h200"):
        if r["op"] not in ("decode", "prompt") or r["kv"] != "f16" or (r["weight_format"], r["depth"]) == ("q4_0", 8192):
            continue
        test = f"depth {r['depth']}" if r["op"] == "decode" else f"prompt of {r['n_prompt']}"
        cells = []
        for weights in (r["weight_format"], "int4_g128"):
            speed = ours.get((card(r), r["model"], weights, test))
            shown = speed and (weights == r["weight_format"] or r["weight_format"] == "q4_0")
            cells.append(f"{rate(speed)} ({speed / r['tok_s']:.2f}x)" if shown else "")
        if any(cells):
            lines.append([card(r), r["model"], r["weight_format"], test, rate(r["tok_s"]), *cells])
    return table(["device", "model", "weights", "test", "llama.cpp, tok/s", "Ridge, same weights", "Ridge, int4_g128 (4.125 bits)"], sorted(lines, key=lambda line: line[1:3]))


def prompts(device):
    """A line a model and cache; a column a length of the prompt and what stands before it. Of several `-ub` the largest counts."""
    found, columns = {}, set()
    for r in sorted(stored(f"decode-{device}"), key=lambda r: r["n_ubatch"]):
        if r.get("n_prompt", 0) > 0 and r.get("n_gen") == 0:
            column = (r["n_depth"], r["n_prompt"])
            columns.add(column)
            found.setdefault((card(r), model_text(r["model_filename"]), cache(r)), {})[column] = f"{r['avg_ts']:.0f} ({r['n_ubatch']})"
    return table(["device", "model", "cache", *(f"{n} tokens" + (f" at depth {d}" if d else "") for d, n in sorted(columns))],
                 [[*key] + [by.get(c, "") for c in sorted(columns)] for key, by in sorted(found.items())])


def sampling():
    """Decode that draws by chance behind top-k and top-p, beside greedy decode of the same run."""
    speeds = {}
    for r in stored("checks/sampling-cuda"):
        speeds.setdefault((card(r), r["model_filename"]), {}).setdefault(r.get("temperature", 0) > 0, []).append(r["avg_ts"])
    lines = []
    for (where, name), by in speeds.items():
        greedy, drawn = (statistics.mean(by[key]) for key in (False, True))
        lines.append([where, model_text(name), f"{greedy:.0f}", f"{drawn:.0f}", f"{drawn / greedy:.3f}", f"{1e6 / drawn - 1e6 / greedy:.1f}"])
    return table(["device", "model", "greedy, tok/s", "temperature 0.8, tok/s", "relative to greedy", "extra us per token"], lines)


BEFORE_AND_NOW = ["before, tok/s", "quartiles", "now, tok/s", "quartiles now", "times before"]


def before_and_now(before, now, digits):
    """Medians and quartiles of the speeds of two builds, and their ratio."""
    (low, middle, high), (low_now, middle_now, high_now) = (statistics.quantiles(speeds, n=4) for speeds in (before, now))
    return f"{middle:.0f}", f"{low:.0f} to {high:.0f}", f"{middle_now:.0f}", f"{low_now:.0f} to {high_now:.0f}", f"{middle_now / middle:.{digits}f}"


BEFORE_PANELS = "d3f01b77"  # the last build in which these formats ran the row kernels


def busy_threads():
    """Decode beside busy processes: medians of all runs of the pool that waited for every worker, and of the one that does not."""
    speeds = {}
    for r in stored("checks/busy-threads-cpu"):
        speeds.setdefault((r["neighbours"], r["n_threads"]), {}).setdefault(r["pool"], []).extend(r["samples_ts"])
    lines = []
    for (neighbours, threads), by in sorted(speeds.items()):
        (low, before, high), (low_now, now, high_now) = (statistics.quantiles(by[pool], n=4) for pool in ("before", "now"))
        lines.append([neighbours, threads, f"{before:.0f}", f"{low:.0f} to {high:.0f}", f"{now:.0f}", f"{low_now:.0f} to {high_now:.0f}", f"{now / before:.2f}"])
    return table(["busy processes", "threads", "before, tok/s", "quartiles", "now, tok/s", "quartiles now", "relative to before"], lines)


def real_files():
    """Files that people have, on the CPU: medians before and with panels of their formats (decision 0018)."""
    speeds = {}
    for r in stored("checks/real-files-cpu"):
        key = r["model_filename"].removesuffix(".gguf"), r["n_threads"], r["test"]
        speeds.setdefault(key, {}).setdefault(r["build_commit"], []).extend(r["samples_ts"])
    lines = []
    for (model, threads, test), by in sorted(speeds.items()):
        before, now = (by[build] for build in sorted(by, key=lambda build: build != BEFORE_PANELS))
        lines.append([model, threads, test, *before_and_now(before, now, 1)])
    return table(["file", "threads", "test", *BEFORE_AND_NOW], lines)


def test_text(prompt, generated, depth):
    return (f"pp{prompt}" if prompt else f"tg{generated}") + (f" @ d{depth}" if depth else "")


def peers_cpu():
    """Ridge and other engines in turns on the same files: medians, and the quartiles of each round's ratio."""
    speeds = {}
    for r in stored("peers-cpu"):
        test = test_text(r["n_prompt"], r["n_gen"], r.get("n_depth", 0))
        bits = 8 if "1plane" in r["ridge_options"] else 15
        key = card(r), r["model_filename"].removesuffix(".gguf"), test, r["peer"], bits
        speeds.setdefault(key, {}).setdefault(r["engine"], {})[r["round"]] = r["avg_ts"]
    lines = []
    for (on, name, test, peer, bits), by in sorted(speeds.items()):
        ours, theirs = by["ridge"], by[peer]
        ratios = [ours[i] / theirs[i] for i in ours if i in theirs]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        lines.append([on, name, test, bits, peer, f"{statistics.median(ours.values()):.0f}", f"{statistics.median(theirs.values()):.0f}",
                      f"{middle:.2f}", f"{low:.2f} to {high:.2f}"])
    return table(["device", "file", "test", "bits of activations in Ridge", "peer", "Ridge, tok/s", "peer, tok/s", "times the peer", "quartiles"], lines)


def panels_cpu():
    """Matmuls of every block format on the CPU, one token and 64, beside q8_0 and q4_0 of the same run."""
    found = {}
    for r in stored("checks/panels-cpu"):
        found.setdefault(r["weight_format"], {})[r["n_tokens"], r["kernel"].startswith("rows")] = r
    one, many = found["q8_0"][1, False]["gb_s"], found["q4_0"][64, False]["median_us"]
    lines = []
    for name, by in found.items():
        token, tokens, rows = by[1, False], by[64, False], by.get((1, True))
        lines.append([card(token), name, f"{rows['median_us']:.0f}" if rows else "", f"{token['median_us']:.0f}", f"{token['gb_s']:.1f}", f"{token['gb_s'] / one:.2f}",
                      f"{tokens['median_us'] / 1000:.2f}", f"{many / tokens['median_us']:.2f}"])
    return table(["device", "weights", "1 token in float kernels, us", "1 token, us", "GB/s", "times q8_0's", "64 tokens, ms", "times q4_0's rate"], lines)


def floors_cpu():
    """KLD of whole models with kernels that round activations, from the same weights in float kernels, by weight format."""
    found = {}
    for r in stored("checks/floors-cpu"):
        found.setdefault(pathlib.PurePath(r["model"]).stem, {})["1plane" in r["command"]] = r
    lines = [[name, *(f"{by[one]['kld']['mean']['value']:.6f}" for one in (True, False)), *(f"{100 * by[one]['same_top']['value']:.2f}" for one in (True, False))] for name, by in sorted(found.items())]
    return table(["weights", "KLD, 8 bits", "KLD, 15 bits", "same top %, 8 bits", "same top %, 15 bits"], lines)


def batches():
    """A line a model, length of prompts and cache; a column a number of sequences. Prompts whose rows were filled with random codes say so."""
    found, numbers = {}, set()
    for r in stored("batch-cuda"):
        before = r["test"].split("+")[0].removeprefix("pp").removeprefix("fill") + (" (filled)" if r["prompts"] != "run" else "")
        numbers.add(r["n_seq"])
        found.setdefault((card(r), model_text(r["model_filename"]), before, cache(r)), {})[r["n_seq"]] = r
    lines = []
    for key, by in sorted(found.items()):
        base = found.get((*key[:3], "f16"), {})
        cells = []
        for n in sorted(numbers):
            r = by.get(n)
            times = f" ({r['speed_tg'] / base[n]['speed_tg']:.2f}x)" if r and key[3] != "f16" and n in base else ""
            cells.append(f"{r['speed_tg']:.0f}{times}" if r else "")
        deepest = by[max(by)]
        lines.append([*key, *cells, f"{deepest['speed_pp']:.0f}" if deepest.get("speed_pp") else "", f"{deepest['pct_of_roof']:.0f}"])
    return table(["device", "model", "cached tokens of a sequence", "cache", *(f"{n} sequence{'s' if n > 1 else ''}" for n in sorted(numbers)), "prefill, tok/s", "% of bandwidth at the largest batch"], lines)


STALLS = {"long_scoreboard": "memory", "short_scoreboard": "shared memory", "wait": "the instruction before", "math_pipe_throttle": "a busy pipe",
          "not_selected": "another warp", "barrier": "a barrier", "no_instruction": "instructions", "selected": "nothing: it issues",
          "dispatch_stall": "dispatch", "mio_throttle": "the queue of loads", "branch_resolving": "a branch", "imc_miss": "constants",
          "lg_throttle": "the queue of loads"}


BITS = {"f16": 16, "int4_g128": 4.125, "rotor-3": 3.125, "p8": 8.5, "q4_0": 4.5}  # a value of a coded row, scales included; rows of 128


def predicted_bytes(label):
    """Bytes that the kernel of a label must read once: codes of K and V, or of a matrix; nothing for other kernels."""
    if found := re.search(r"attention \d+/(\d+), (\d+) positions, ([^ ]+)$", label):
        heads, positions, (k, *v) = int(found[1]), int(found[2]), found[3].split("/")
        return positions * heads * 128 * (BITS[k] + BITS[(v or [k])[0]]) / 8
    if found := re.search(r"(\d+)x(\d+) ([^ ]+)$", label):
        return int(found[1]) * int(found[2]) * BITS[found[3]] / 8
    return None


def counters():
    """What binds a kernel: bytes of memory, shares of pipes, and what its warps wait for."""
    lines = []
    for r in stored("checks/counters-cuda"):
        pipes = r["pipe_pct"]
        tensor = max((v for name, v in pipes.items() if name.startswith("tensor")), default=0)
        stalls = sorted(r["stall_pct"].items(), key=lambda s: -s[1])[:2]
        predicted = predicted_bytes(r["label"])
        lines.append([card(r), r["label"], f"{r['us']:.1f}", f"{predicted / 1e6:.1f}" if predicted else "", f"{r['dram_read_bytes'] / 1e6:.1f}", f"{r['dram_pct']:.0f}"]
                     + [f"{pipes.get(pipe, 0):.0f}" for pipe in ("alu", "fma", "lsu")] + [f"{tensor:.0f}", ", ".join(f"{STALLS.get(n, n)} {pct:.0f} %" for n, pct in stalls)])
    return table(["device", "kernel", "us", "codes, MB", "read MB", "% of memory's rate", "ALU %", "FMA %", "load/store %", "tensor %", "warps wait for"], lines)


def collectives():
    cells = {}
    for r in stored("collective-cuda"):
        cells.setdefault((card(r), r["n_ranks"], r["bytes"]), {})[r["kernel"]] = r
    lines = []
    for (where, n, size), cell in cells.items():
        if size not in (1 << 12, 1 << 18, 1 << 21) or n == 3:
            continue
        us = {kernel: f"{r['median_us']:.2f}" for kernel, r in cell.items()}
        best = min(cell.values(), key=lambda r: r["median_us"])
        lines.append([where, n, size, *(us.get(kernel, "") for kernel in ("nccl", "one-shot", "two-shot")), f"{best['gb_s']:.1f}", f"{best['pct_of_link']:.0f}"])
    return table(["device", "GPUs", "bytes", "NCCL us", "one-shot us", "two-shot us", "bus GB/s of the fastest (2(n-1)/n bytes over time)", "% of the link"], lines)


def way_of(r):
    """(order, what holds the model): GPUs of one process, GPUs in stages, processes with a GPU each."""
    n = n_gpus(r)
    if r.get("n_ranks"):
        return (2, r["n_ranks"]), f"{r['n_ranks']} processes"
    if r.get("pp"):
        return (1, n, r["pp"]), f"{n} GPUs, {r['pp']} stages of {n // r['pp']}"
    return (0, n), f"{n} GPU{'s' * (n > 1)}"


def ranks():
    """One model on one GPU and on several, in one run. Every unchecked rate says so."""
    cells, ways = {}, set()
    for r in stored("ranks-cuda"):
        batch = r.get("kind") == "batch"
        what = f"a token for each of {r['n_seq']} sequences, depth {r['n_prompt'][0]}" if batch else f"a token at depth {r['n_depth']}" if r["n_gen"] else f"a prompt of {r['n_prompt']}"
        way = way_of(r)
        ways.add(way)
        shared = re.search("@(?:shared|distinct)=[0-9]+", r["model_filename"])
        cells.setdefault((card(r), model_text(r["model_filename"]) + (f" `{shared[0]}`" if shared else ""), what, cache(r)), {})[way[1]] = (r["speed_tg"] if batch else r["avg_ts"], r["checked"])
    cells = {key: cell for key, cell in cells.items() if list(cell) != ["1 GPU"]}
    shown = [name for _, name in sorted(ways)]
    lines = []
    for key, cell in cells.items():
        line = [*key]
        for way in shown:
            speed, checked = cell.get(way, (None, True))
            times = f" ({speed / cell['1 GPU'][0]:.2f}x)" if speed and way != "1 GPU" and "1 GPU" in cell else ""
            line.append(f"{rate(speed)}{times}{'' if checked else ' unchecked'}" if speed else "")
        lines.append(line)
    return table(["device", "model", "test", "cache", *(f"{way}, tok/s" for way in shown)], lines)


def ternary():
    """Products of ternary weights; the first build of the file is the one that is kept."""
    found = stored("checks/ternary-cuda")
    kept = {(r["n_out"], r["n_in"], r["n_tokens"]): r for r in found if r["build_commit"] == found[0]["build_commit"]}
    return table(["device", "n_out x n_in", "tokens", "us", "GB/s", "% of bandwidth"],
                 [[card(r), f"{n_out} x {n_in}", n, f"{r['median_us']:.2f}", f"{r['gb_s']:.0f}", f"{r['pct_of_roof']:.0f}"] for (n_out, n_in, n), r in kept.items()])


TABLES = {
    **{f"{name}-{device}": lambda of=of, device=device: of(device)
       for name, of in (("attention", attention), ("gemv", gemv), ("models", models))
       for device in ("cpu", "cuda")},
    "ceilings": ceilings,
    "profiles": profiles,
    "crossovers": crossovers,
    "llama-cpp": llama_cpp,
    "prompts-cuda": lambda: prompts("cuda"),
    "sampling-cuda": sampling,
    "coding": coding,
    "coding-share-cpu": coding_share,
    "busy-threads-cpu": busy_threads,
    "real-files-cpu": real_files,
    "peers-cpu": peers_cpu,
    "floors-cpu": floors_cpu,
    "panels-cpu": panels_cpu,
    "batch-cuda": batches,
    "append-cuda": append,
    "ternary-cuda": ternary,
    "counters-cuda": counters,
    "collective-cuda": collectives,
    "ranks-cuda": ranks,
}
