"""Tables of the decision pages: what was tried, and the baselines that decided."""

import re

from tables import quality, speed
from tables.rows import card, estimate, model_text, percent, stored, table

ATTENTION = {
    "91661c29": "two tiles a step through a ring of two stages (kept until the last row)",
    "98fc8e3d": "pieces of two tiles in places of their own by bulk copies, sums of V once in four tiles",
    "8c615f47": "pieces of four tiles by copies of lanes, weights relative to a largest score that is seldom raised; what is left over tile by tile",
    "bde2b7c3": "like 8c615f47, in pieces of two tiles and two places",
    "153e66f4": "pieces of four tiles, a last round of smaller ones",
    "f3bf4609": "like 153e66f4, the first K of all warps before the rest",
    "ac8baf46": "steps of two pieces of two tiles whose places are filled in turn, sums of V once in four tiles",
    "f34d5182": "two tiles a step, look-up bytes pinned, 16 warps, short parts tile by tile",
    "27694f30": "like f34d5182, with 12 warps and K of two tiles side by side",
    "c4757734": "like 27694f30, with parts of four tiles at least (kept)",
}


def attention():
    """Decode attention 64/8/128 of several builds; the first and the last were timed in one run."""
    cells = {}
    for r in stored("checks/attention-tried-cuda"):
        if (r["n_heads"], r["n_kv_heads"]) == (64, 8):
            cells.setdefault(r["build_commit"], {})[(r["kv"], r["n_seq"], r["n_keys"])] = r["median_us"]
    columns = [("rotor-3", 1, 512), ("rotor-3", 1, 4096), ("rotor-3", 1, 32768), ("rotor-3", 1, 131072), ("rotor-3", 8, 32768),
               ("rotor-4", 1, 131072), ("p8/q4_0", 1, 131072), ("f16", 1, 512), ("f16", 1, 131072)]
    return table(["build", "how"] + [f"{kv} {n_seq} x {keys}" for kv, n_seq, keys in columns],
                 [[build, how] + [f"{cells[build][c]:.1f}" if c in cells[build] else "" for c in columns] for build, how in ATTENTION.items()])


def packs():
    """Decode attention of four tokens of one text, by how many packs of eight heads share a pass; us, on one H100 and in one run but the last column."""
    ways = {"one": "one", "two": "up to two", "three": "up to three", "by length": "by length"}
    cells = {}
    for r in stored("checks/packs-tried-cuda"):
        cells.setdefault((r["n_heads"], f"{r['n_heads']}/{r['n_kv_heads']}", r["kv"], r["n_keys"]), {})[r["variant"]] = r["median_us"]
    return table(["heads", "cache", "positions", *ways.values()],
                 [[*key[1:]] + [f"{cell[way]:.1f}" if way in cell else "" for way in ways] for key, cell in sorted(cells.items())])


def experts():
    """A model of experts by the kernels of its router and its experts."""
    lines = []
    for r in stored("checks/experts-cuda"):
        kernels = dict(pair.split("=") for pair in r["kernels"].split())
        speed = f"{r['avg_ts']:.0f} ± {r['stddev_ts']:.0f}" if "avg_ts" in r else f"{r['speed_tg']:.0f}"
        lines.append([kernels.get("router", "spread"), kernels["experts"], r.get("variant", ""), r.get("n_seq", 1), speed])
    return table(["router", "experts", "of several tokens", "sequences", "tok/s"], lines)


def k_quants():
    """Products and models of K-quants by kernel; int4_g128 beside them."""
    cells, models = {}, {}
    for r in stored("checks/k-quants-cuda"):
        if "avg_ts" in r:
            model, kind = r["model_filename"].removeprefix("synth:").split("@weights=")
            models[f"{model} {kind}", "bricks-int8" if "gemv=bricks-int8" in r["kernels"] else "bricks"] = r
        else:
            cells[f"{r['n_out']}x{r['n_in']}", r["n_tokens"], r["weight_format"], r["kernel"]] = r["median_us"]
    lines = []
    for shape in dict.fromkeys(shape for shape, *_ in cells):
        for n in (1, 4):
            lines.append([shape, n] + [f"{cells[shape, n, kind, 'bricks']:.1f}, {cells[shape, n, kind, 'bricks-int8']:.1f}" for kind in ("q4_k", "q5_k", "q6_k")] +
                         [f"{cells[shape, n, 'int4_g128', 'int-2planes']:.1f}"])
    whole = [[name, *(f"{models[name, kernel]['avg_ts']:.0f} ± {models[name, kernel]['stddev_ts']:.0f}" for kernel in ("bricks", "bricks-int8")),
              f"{models[name, 'bricks-int8']['avg_ts'] / models[name, 'bricks']['avg_ts']:.2f}x"] for name in dict.fromkeys(name for name, _ in models)]
    return (table(["shape", "tokens", "q4_k: bricks, bricks-int8", "q5_k", "q6_k", "int4_g128"], lines) + [""] +
            table(["model, depth 0, tok/s", "bricks", "bricks-int8", ""], whole))


def integer_bricks():
    """Matmuls, models and batches by how activations are held: in f16 planes (`bricks`) or as integers."""
    cells, models = {}, {}
    for r in stored("checks/k-quants-blocks-cuda"):
        if "median_us" in r and "weight_format" in r:
            cells.setdefault((f"{r['n_out']}x{r['n_in']}", r["n_tokens"]), {})[r["weight_format"], r["kernel"]] = r["median_us"]
            continue
        model, kind = r["model_filename"].removeprefix("synth:").removesuffix("@shared=1").split("@weights=")
        way = "bricks" if re.search("gemv=bricks( |$)|experts=bricks", r["kernels"]) else "bricks-int8"
        models.setdefault((model, kind, r.get("n_seq", 1)), {})[way] = r["avg_ts"] if "avg_ts" in r else r["speed_tg"]
    kinds = list(dict.fromkeys(kind for by in cells.values() for kind, _ in by))
    lines = [[shape, n] + [f"{by[kind, 'bricks']:.1f}, {by[kind, 'bricks-int8']:.1f}" for kind in kinds] for (shape, n), by in cells.items()]
    whole = [[f"{model} {kind}", n, f"{by['bricks']:.0f}", f"{by['bricks-int8']:.0f}", f"{by['bricks-int8'] / by['bricks']:.2f}x"] for (model, kind, n), by in models.items()]
    return (table(["shape", "tokens", f"{kinds[0]} us: bricks, bricks-int8", *kinds[1:]], lines) + [""] +
            table(["model", "sequences", "bricks, tok/s", "bricks-int8, tok/s", ""], whole))


def more_tokens():
    """Matmuls of 16 tokens and batches, by the kernels before parts of rows and now."""
    def problem(r):
        return r["n_out"], r["n_in"], r["n_tokens"], r["weight_format"]

    def batch(r):
        return r["model_filename"], r["n_seq"], str(r["prompts"]), r["type_k"], r["type_v"]

    us = {problem(r): r["median_us"] for r in stored("op-cuda") if r["op"] == "gemv"}
    speeds = {batch(r): r["speed_tg"] for r in stored("batch-cuda")}
    cells, models = {}, []
    for r in stored("checks/int-tokens-cuda"):
        if "speed_tg" in r:
            models.append([model_text(r["model_filename"]), r["n_seq"], f"{r['speed_tg']:.0f}", f"{speeds[batch(r)]:.0f}", f"{speeds[batch(r)] / r['speed_tg']:.2f}x"])
        else:
            cells.setdefault((f"{r['n_out']}x{r['n_in']}", r["n_tokens"]), {})[r["weight_format"]] = f"{r['median_us']:.1f}, {us[problem(r)]:.1f}"
    kinds = list(dict.fromkeys(kind for by in cells.values() for kind in by))
    return (table(["shape", "tokens", f"{kinds[0]} us: before, now", *kinds[1:]], [[*key, *(by.get(kind, "") for kind in kinds)] for key, by in cells.items()]) + [""] +
            table(["model", "sequences", "before, tok/s", "now, tok/s", ""], models))


def products():
    """A line a problem and state of its buffers; a column a kernel, microseconds."""
    problems, columns = {}, []
    for r in stored("checks/baselines-cuda"):
        if r["kind"] == "op" and r["op"] == "gemv" and r.get("median_us") is not None:
            column = f"{r['weight_format']}, `{r['kernel']}`"
            problems.setdefault((card(r), f"{r['n_out']} x {r['n_in']}", r["n_tokens"], "cold" if r["cold"] else "warm"), {})[column] = r["median_us"]
            if column not in columns:
                columns.append(column)
    return table(["device", "n_out x n_in", "tokens", "buffers", *columns], [[*key] + [f"{us[c]:.1f}" if c in us else "" for c in columns] for key, us in problems.items()])


def baseline_attention():
    """A line a problem and state of its buffers; a column a cache, microseconds. The published 3-bit kernel was ported and timed on the same kind of card."""
    axes = ("n_heads", "n_kv_heads", "head_dim", "n_seq", "n_keys")
    problems, columns = {}, []
    for r in stored("checks/baselines-cuda"):
        if r["kind"] == "op" and r["op"] == "attention" and r.get("median_us") is not None:
            column = "rotor-3u, `rows`" if r["kv"] == "rotor-3u" else r["kv"]
            problems.setdefault((card(r), tuple(r[a] for a in axes), "cold" if r["cold"] else "warm"), {})[column] = r["median_us"]
            if column not in columns:
                columns.append(column)
    known = speed.peers("attention", axes)
    lines = []
    for (where, key, state), us in problems.items():
        ported = known.get(key, {}).get("rocm-cpp PQ3, ported") if state == "cold" else None
        lines.append([where, f"{key[0]}/{key[1]}/{key[2]} x {key[4]}", state] + [f"{us[c]:.1f}" if c in us else "" for c in columns] + [f"{ported:.0f}" if ported else ""])
    return table(["device", "attention", "buffers", *columns, "published 3-bit kernel, ported"], lines)


def attention_kernels():
    """One layer's attention by both kernels of the CPU."""
    found, heads = {}, []
    for r in stored("checks/attention-kernels-cpu"):
        shape = f"{r['n_heads']}/{r['n_kv_heads']}/{r['head_dim']}"
        if shape not in heads:
            heads.append(shape)
        found.setdefault(r["kv"], {})[(shape, r["kernel"].split("-")[0])] = r
    lines = []
    for kv, by in found.items():
        cells = []
        for h in heads:
            floats, ints = by.get((h, "split")), by.get((h, "int"))
            cells.append(f"{floats['median_us']:.0f}" if floats else "")
            cells += [f"{ints['median_us']:.0f}", f"{floats['median_us'] / ints['median_us']:.2f}x", f"{ints['check_error']:.1e}"] if ints else ["", "", ""]
        lines.append([kv] + cells)
    return table(["cache"] + [f"{h}: {what}" for h in heads for what in ("floats us", "integers us", "ratio", "NMSE")], lines)


def amx():
    """Panel kernels with AMX's tiles beside those of AVX-512: microseconds by format, planes and tokens."""
    cells, formats = {}, {}
    for r in stored("checks/amx-tried-cpu"):
        planes, isa = re.fullmatch(r"panel-(\d)planes?-(\w+)", r["kernel"]).groups()
        formats[r["weight_format"]] = True
        cells.setdefault((card(r), f"{r['n_out']} x {r['n_in']}", int(planes), r["n_tokens"]), {})[r["weight_format"], isa] = r["median_us"]
    lines = [[*key, *(f"{by[f, 'avx512']:.0f} / {by[f, 'amx']:.0f} ({by[f, 'avx512'] / by[f, 'amx']:.2f}x)" for f in formats)] for key, by in sorted(cells.items(), key=lambda c: (-c[0][2], c[0][3]))]
    return table(["device", "n_out x n_in", "planes", "tokens", *(f"{f}: AVX-512 / AMX us" for f in formats)], lines)


def trellis():
    """A trellis code in the place of rotor-3's levels. The ratio of a pair with f16 is against rotor-3 on its other side, any other one against rotor-3 on both."""
    found = {(quality.stem(r), r["n_ctx"], re.sub(":(window|sinks)=[0-9]+", "", r["kv"])): r for r in stored("checks/kv-trellis")}
    lines = []
    for (name, n_ctx, kv), r in found.items():
        if kv == "f16":
            continue
        peer = found[name, n_ctx, kv.replace("rotor-3t", "rotor-3") if "f16" in kv else "rotor-3"]
        kld, change = r["kld"]["mean"], r["difference"]
        lines.append([name, f"{r['chunks']} x {n_ctx}", kv, f"{r['effective_bits_4k']:.2f}", estimate(kld, 5), f"{change['value']:+.3f} ± {change['error']:.3f}",
                      percent(r["same_top"]), f"{peer['kld']['mean']['value'] / kld['value']:.2f}"])
    return table(["weights", "windows", "K/V cache", "bits at 4k", "mean KLD", "PPL - f16", "same top %", "rotor-3 / this"], lines)


def host_experts():
    """Experts in host memory: a line a model and a task, decode or a prompt, a column an engine."""
    found = {}
    for r in stored("checks/host-experts-cuda"):
        name = "qwen3-30b-a3b Q4_0" if r["model_filename"].endswith(".gguf") else model_text(r["model_filename"])
        task = "decode" if r["n_gen"] > 0 else f"prompt of {r['n_prompt']} (-ub {r['n_ubatch']})"
        found.setdefault((card(r), name, r["n_cpu_moe"], task), {})[r["engine"]] = r
    lines = []
    for key, by in sorted(found.items()):
        ours, theirs = by.get("ridge"), by.get("llama.cpp")
        if not ours:
            continue
        host = f"{ours.get('host_read_bytes', 0) / 1e9:.2f}" if key[3] == "decode" else ""
        lines.append([*key, host, f"{ours['avg_ts']:.1f} ± {ours['stddev_ts']:.1f}",
                      f"{theirs['avg_ts']:.1f} ± {theirs['stddev_ts']:.1f}" if theirs else "", f"{ours['avg_ts'] / theirs['avg_ts']:.2f}x" if theirs else ""])
    return table(["device", "model", "layers on the host", "task", "GB a token read there", "Ridge tok/s", "llama.cpp tok/s", "Ridge / llama.cpp"], lines)


def mamba_chunks():
    """A line a task of a model of Mamba2 layers, whose prompts go in chunks."""
    lines = [[card(r), model_text(r["model_filename"]), f"prompt of {r['n_prompt']}" if r["n_prompt"] else "decode", r["n_depth"], f"{r['avg_ts']:.0f} ± {r['stddev_ts']:.0f}"]
             for r in stored("checks/mamba-chunks-cuda")]
    return table(["device", "model", "task", "depth", "tok/s"], lines)


def expert_cache():
    """A line a skew and a cache: what a GPU that keeps the most chosen experts gains over one that keeps none."""
    rows = stored("checks/expert-cache-cuda")
    gib = lambda r: float(re.search(r"--moe-cache-gib ([0-9.]+)", r["command"])[1])
    skew = lambda r: float(re.search(r"@skew=([0-9.]+)", r["model_filename"])[1])
    plain = {skew(r): r["avg_ts"] for r in rows if gib(r) == 0}
    lines = [[card(r), re.match(r"synth:([^@]*)", r["model_filename"])[1], f"{skew(r):g}", f"{gib(r):g}", r.get("cached_experts", 0), f"{r['expert_hits']:.0f}" if gib(r) > 0 else "",
              f"{r['avg_ts']:.1f} ± {r['stddev_ts']:.1f}", f"{r['avg_ts'] / plain[skew(r)]:.2f}x"] for r in sorted(rows, key=lambda r: (skew(r), gib(r)))]
    return table(["device", "model", "skew", "GiB", "experts kept of each layer", "choices on the GPU %", "tok/s", "relative to none kept"], lines)


TABLES = {
    "host-experts-cuda": host_experts,
    "expert-cache-cuda": expert_cache,
    "mamba-chunks-cuda": mamba_chunks,
    "amx-tried-cpu": amx,
    "attention-tried-cuda": attention,
    "packs-tried-cuda": packs,
    "k-quants-cuda": k_quants, "k-quants-blocks-cuda": integer_bricks, "int-tokens-cuda": more_tokens,
    "experts-cuda": experts,
    "baselines-cuda": products,
    "baseline-attention-cuda": baseline_attention,
    "attention-kernels-cpu": attention_kernels,
    "kv-trellis": trellis,
}
