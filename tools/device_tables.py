"""Tables of what was checked and tried once on a GPU (results/checks/*-cuda.jsonl), for render_docs.py."""

import json
import pathlib
import re

CHECKS = pathlib.Path(__file__).resolve().parent.parent / "results" / "checks"


def rows(name):
    return [json.loads(line) for line in (CHECKS / name).read_text().splitlines() if line.strip()]


def ternary():
    """Two ways to make int8 activations of ternary products; the newest build's is the one that is kept."""
    kept, tried, builds = {}, {}, []
    for r in rows("ternary-cuda.jsonl"):
        if r["build_commit"] not in builds:
            builds.append(r["build_commit"])
        (kept if r["build_commit"] == builds[0] else tried)[(r["n_out"], r["n_in"], r["n_tokens"])] = r
    out = ["| shape | tokens | us | GB/s | % of roof | tried: products as a float and its rest, us |", "|---|---:|---:|---:|---:|---:|"]
    for (n_out, n_in, n), r in kept.items():
        out.append(f"| {n_out}x{n_in} | {n} | {r['median_us']:.2f} | {r['gb_s']:.0f} | {r['pct_of_roof']:.0f} | {tried[n_out, n_in, n]['median_us']:.2f} |")
    return out


ATTENTION_TRIED = {
    "91661c29": "two tiles a step through a ring of two stages (kept until the last row)",
    "98fc8e3d": "pieces of two tiles in places of their own by bulk copies, sums of V once in four tiles",
    "8c615f47": "pieces of four tiles by copies of lanes, weights relative to a top that is seldom raised; what is left over tile by tile",
    "bde2b7c3": "the same in pieces of two tiles, two places",
    "153e66f4": "pieces of four tiles, a last round of smaller ones",
    "f3bf4609": "the same, the first K of all warps before the rest",
    "ac8baf46": "steps of two pieces of two tiles whose places are filled in turn, sums of V once in four tiles",
    "f34d5182": "two tiles a step, look-up bytes pinned, 16 warps, short parts tile by tile",
    "27694f30": "the same with 12 warps and K of two tiles side by side",
    "c4757734": "the same with parts of four tiles at least (kept)",
}


def attention_tried():
    """Decode attention 64/8/128 of several builds; the first and the last were timed in one run."""
    cells = {}
    for r in rows("attention-tried-cuda.jsonl"):
        if (r["n_heads"], r["n_kv_heads"]) != (64, 8):
            continue
        cells.setdefault(r["build_commit"], {})[(r["kv"], r["n_seq"], r["n_keys"])] = r["median_us"]
    columns = [("rotor-3", 1, 512), ("rotor-3", 1, 4096), ("rotor-3", 1, 32768), ("rotor-3", 1, 131072), ("rotor-3", 8, 32768),
               ("rotor-4", 1, 131072), ("p8/q4_0", 1, 131072), ("f16", 1, 512), ("f16", 1, 131072)]
    out = ["| build | how |" + "".join(f" {kv} {n_seq} x {keys} |" for kv, n_seq, keys in columns), "|---|---|" + "---:|" * len(columns)]
    for build, how in ATTENTION_TRIED.items():
        out.append(f"| {build} | {how} |" + "".join(f" {cells[build][c]:.1f} |" if c in cells[build] else " |" for c in columns))
    return out


def packs_tried():
    """Decode attention of four tokens of one text, by how many packs of eight heads share a pass; us, on one H100 and in one run but the last column."""
    ways = {"one": "one", "two": "up to two", "three": "up to three", "by length": "by length"}
    cells = {}
    for r in rows("packs-tried-cuda.jsonl"):
        cells.setdefault((f"{r['n_heads']}/{r['n_kv_heads']}", r["kv"], r["n_keys"]), {})[r["variant"]] = r["median_us"]
    out = ["| heads | cache | positions |" + "".join(f" {how} |" for how in ways.values()), "|---|---|---:|" + "---:|" * len(ways)]
    for (heads, kv, keys), cell in sorted(cells.items(), key=lambda c: (int(c[0][0].split("/")[0]), c[0][1], c[0][2])):
        out.append(f"| {heads} | {kv} | {keys} |" + "".join(f" {cell[way]:.1f} |" if way in cell else " |" for way in ways))
    return out


def quantise_inside():
    """Decode with three guesses that hold, by how many groups of activations of several tokens every block rounds for itself."""
    models = [("qwen2.5-1.5b", "f16"), ("qwen2.5-1.5b", "rotor-3"), ("llama-3.1-8b", "rotor-3")]
    cells = {}
    for r in rows("quantise-inside-cuda.jsonl"):
        model = r["model_filename"].removeprefix("synth:").split("@")[0]
        cells.setdefault(r["most_inside_of_several"], {})[(model, r["type_k"])] = r["avg_ts"]
    out = ["| groups at most |" + "".join(f" {m} {kv} |" for m, kv in models), "|---:|" + "---:|" * len(models)]
    for most, cell in cells.items():
        out.append(f"| {most}{' (kept)' if most == 24 else ''} |" + "".join(f" {cell[m]:.0f} |" for m in models))
    return out


def append():
    cells = {}
    for r in rows("append-cuda.jsonl"):
        cells.setdefault((r["n_kv_heads"], r["n_seq"]), {})[r["kv"]] = r["median_us"]
    formats = list(dict.fromkeys(kv for cell in cells.values() for kv in cell))
    out = ["| kv heads | sequences |" + "".join(f" {kv} us |" for kv in formats), "|---:|---:|" + "---:|" * len(formats)]
    for (heads, n_seq), cell in cells.items():
        out.append(f"| {heads} | {n_seq} |" + "".join(f" {cell[kv]:.2f} |" for kv in formats))
    return out


def planes():
    out = ["| planes of int8 | mean KLD | same top % | ln PPL ratio |", "|---:|---:|---:|---:|"]
    for r in rows("int4-planes-cuda.jsonl"):
        kld, top, ratio = r["kld"]["mean"], r["same_top"], r["ln_ratio"]
        out.append(f"| {r['planes']} | {kld['value']:.6f} ± {kld['error']:.6f} | {100 * top['value']:.2f} ± {100 * top['error']:.2f} |"
                   f" {ratio['value']:.5f} ± {ratio['error']:.5f} |")
    return out


def sanitizers():
    out = ["| tool | builds | tests without a finding | findings | not finished in its time |", "|---|---|---:|---:|---|"]
    for r in rows("sanitizers-cuda.jsonl"):
        out.append(f"| {r['tool']} | {', '.join(r['build_commits'])} | {r['clean']} of {r['tests']} | {r['findings']} | {', '.join(f'`{t}`' for t in r['not_finished'])} |")
    return out


def bitnet():
    out = ["| device | path | windows of 1024 | PPL |", "|---|---|---:|---:|"]
    for r in rows("ppl-bitnet.jsonl"):
        out.append(f"| {r['device']} | {r['path']} | {r['chunks']} | {r['ppl']['value']:.4f} ± {r['ppl']['error']:.4f} |")
    return out


def hybrid():
    out = ["| K/V cache | bits at 4k | mean KLD | same top % | PPL - f16 |", "|---|---:|---:|---:|---:|"]
    for r in rows("kv-hybrid.jsonl"):
        kld, rise, top = r["kld"]["mean"], r["difference"], r["same_top"]
        out.append(f"| {r['kv']} | {r['effective_bits_4k']:.2f} | {kld['value']:.6f} ± {kld['error']:.6f} | {100 * top['value']:.2f} ± {100 * top['error']:.2f} "
                   f"| {rise['value']:+.3f} ± {rise['error']:.3f} |")
    return out


def gate():
    found = rows("gpu-gate.jsonl")
    whole = next(r for r in found if r["kind"] == "gpu_gate")
    out = ["| step | seconds |", "|---|---:|"]
    out += [f"| {r['step']} | {r['seconds']} |" for r in found if r["kind"] == "gpu_gate_step"]
    return out + [f"| the whole, steps of tests and sanitizers side by side | {whole['seconds']} |"]


def variants():
    out = ["| what | variant | cache, depth | tok/s |", "|---|---|---|---:|"]
    for r in rows("decode-variants-cuda.jsonl"):
        out.append(f"| {r['group']} | {r['what']}{' (kept)' if r['base'] else ''} | {r['kv']}, {r['depth']} | {r['avg_ts']:.0f} ± {r['stddev_ts']:.0f} |")
    return out


def chain():
    """Time from the end of the kernel before to a kernel's own end, in a layer of a step as it runs."""
    found = rows("decode-chain-cuda.jsonl")
    kernels = list(found[0]["end_to_end_us"])
    out = ["| cache, depth | shared memory split |" + "".join(f" {k} |" for k in kernels) + " layer us |", "|---|---|" + "---:|" * (len(kernels) + 1)]
    for r in found:
        us = r["end_to_end_us"]
        out.append(f"| {r['kv']}, {r['depth']} | {r['shared_memory']} |" + "".join(f" {us[k]:.2f} |" for k in kernels) + f" {sum(us.values()):.1f} |")
    return out


def stages():
    out = ["| product | before the wait | from the wait to int8 activations | sums | ends |", "|---|---:|---:|---:|---:|"]
    for r in rows("decode-stages-cuda.jsonl"):
        out.append(f"| {r['product']} | {r['before_wait_cycles']} | {r['wait_to_int8_cycles']} | {r['sums_cycles']} | {r['end_cycles']} |")
    return out


STALLS = {"long_scoreboard": "memory", "short_scoreboard": "shared memory", "wait": "the instruction before", "math_pipe_throttle": "a busy pipe",
          "not_selected": "another warp", "barrier": "a barrier", "no_instruction": "instructions", "selected": "nothing: it issues",
          "dispatch_stall": "dispatch", "mio_throttle": "the queue of loads", "branch_resolving": "a branch", "imc_miss": "constants",
          "lg_throttle": "the queue of loads"}


def counters():
    """What binds a kernel: bytes of memory, shares of pipes, and what its warps wait for."""
    out = ["| what | kernel | us | read MB | % of memory's rate | hits in L2 % | ALU % | FMA % | load/store % | tensor % | warps wait for |", "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|"]
    for r in rows("counters-cuda.jsonl"):
        pipes = r["pipe_pct"]
        tensor = max((v for name, v in pipes.items() if name.startswith("tensor")), default=0)
        stalls = sorted(r["stall_pct"].items(), key=lambda s: -s[1])[:3]
        why = ", ".join(f"{STALLS.get(name, name)} {pct:.0f} %" for name, pct in stalls)
        out.append(f"| {r['label']} | `{r['kernel']}` | {r['us']:.1f} | {r['dram_read_bytes'] / 1e6:.1f} | {r['dram_pct']:.0f} | {r['l2_hit_pct']:.0f} |"
                   + "".join(f" {pipes.get(pipe, 0):.0f} |" for pipe in ("alu", "fma", "lsu")) + f" {tensor:.0f} | {why} |")
    return out


def expert_profiles():
    """The eight longest parts of each stored profile."""
    out = ["| model | what | part | kernel | launches | us | share | % of roof |", "|---|---|---|---|---:|---:|---:|---:|"]
    for r in rows("profile-experts-cuda.jsonl"):
        for p in r["parts"][:8]:
            out.append(f"| {r['model']} {r['weight_format']} | {r['what']} | {p['part']} | {p['kernel']} | {p['launches']} | {p['us']:.1f} | {p['share']} | {p['pct_of_roof'].replace(' %', '')} |")
    return out


INT_PRODUCTS_TRIED = {
    "base": "as it was: Q, K and V copied out of one buffer, a block's activations loaded in turn",
    "new": "outputs written in place, all loads of activations under way at once, a kernel in front from 25 groups on, ends of four tokens at a time (kept)",
    "paced2": "that, a block's weights in two pieces until activations have come",
    "paced3": "the same in three",
    "split2": "kept, and two blocks of a cluster share a row's groups",
    "split4": "the same with four",
}


def int_products_tried():
    """The four products of a layer in a chain on an H200; several turns are averaged."""
    cells = {}
    for r in rows("int-products-tried-cuda.jsonl"):
        if r["problem"] == "layer" and r["machine"] == "NVIDIA H200":
            cells.setdefault(r["variant"], {}).setdefault(r["what"], []).append(r["us_by_tokens"])
    tokens = ("1", "2", "4", "8", "16")
    out = ["| variant |" + "".join(f" {shape}, {n} |" for shape in ("1.5B", "8B") for n in tokens), "|---|" + "---:|" * (2 * len(tokens))]
    for variant, how in INT_PRODUCTS_TRIED.items():
        mean = lambda shape, n: sum(turn[n] for turn in cells[variant][shape]) / len(cells[variant][shape])
        out.append(f"| {how} |" + "".join(f" {mean(shape, n):.1f} |" for shape in ("1.5B", "8B") for n in tokens))
    return out


BRICKS_TRIED = {"w8a0": "8 warps; large products alone on their processors (as it was)", "w8a1": "8 warps, all products alone",
                "w16a0": "16 warps where x fits; large products alone (kept)", "w16a1": "16 warps where x fits, all products alone"}


def bricks_tried():
    """Products and models by blocks of so many warps; turns are averaged."""
    cells = {}
    for r in rows("bricks-tried-cuda.jsonl"):
        what = r["model"].removeprefix("synth:").replace("@shared=1", "").replace("@weights=", " ") if "model" in r else f"{r['n_out']}x{r['n_in']} {r['weights']}, {r['n_tokens']}"
        cells.setdefault(what, {}).setdefault(r["variant"], []).append(r["avg_ts"] if "model" in r else r["median_us"])
    columns = [f"{shape} {kind}, {n}" for shape in ("17920x1536", "1536x8960", "28672x4096") for kind, n in (("q4_k", 1), ("q4_k", 4), ("f16", 1))]
    columns += ["qwen2.5-1.5b q4_k_m", "llama-3.1-8b q4_k_m", "qwen2.5-1.5b f16"]
    out = ["| blocks |" + "".join(f" {c} |" for c in columns), "|---|" + "---:|" * len(columns)]
    for variant, how in BRICKS_TRIED.items():
        mean = lambda what: sum(cells[what][variant]) / len(cells[what][variant])
        out.append(f"| {how} |" + "".join(f" {mean(c):.{1 if 'x' in c else 0}f} |" for c in columns))
    return out


def results(name):
    path = CHECKS.parent / name
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.exists() else []


def collectives():
    cells, link = {}, 0
    for r in results("collective-cuda.jsonl"):
        cells.setdefault((r["n_ranks"], r["bytes"]), {})[r["kernel"]] = r
        link = r["link_gb_s"]
    out = ["| GPUs | bytes | NCCL us | one-shot us | one-shot GB/s | % of the link |", "|---:|---:|---:|---:|---:|---:|"]
    for (n, size), cell in cells.items():
        one = cell["one-shot"]
        out.append(f"| {n} | {size} | {cell['nccl']['median_us']:.2f} | {one['median_us']:.2f} | {one['gb_s']:.1f} | {one['pct_of_link']:.0f} |")
    return out + ["", f"The link: {link:.0f} GB/s in one direction, a large copy between the GPUs of the same run."]


def ranks(name="ranks-cuda.jsonl"):
    """One model on one GPU and on two: of one process, of two processes, in two stages; in one run."""
    ways = {"one": "1 GPU", "two": "2 GPUs", "processes": "2 processes", "stages": "2 stages"}
    cells = {}
    for r in results(name):
        # Builds before @shared=1 had @distinct=N for layers that are one in host memory.
        model = re.sub("@(shared|distinct)=[0-9]+", "", r["model_filename"].removeprefix("synth:").replace("@weights=", " "))
        kv = r["type_k"] if r["type_k"] == r["type_v"] else f"{r['type_k']}/{r['type_v']}"
        batch = r.get("kind") == "batch"
        what = (f"{r['n_seq']} sequences x {r['n_prompt'][0]}" if batch else f"a token @ d{r['n_depth']}" if r["n_gen"] else f"a prompt of {r['n_prompt']}")
        if forced := re.search("--kernel all_reduce=([a-z-]+)", r["command"]):
            what += f", sums by {forced[1]}"
        several = "," in (r["devices"] if "devices" in r else r["device"].split(" ")[0])
        way = "stages" if r.get("pp") else "processes" if r.get("n_ranks") else "two" if several else "one"
        gpu = r.get("gpu_info") or r["device"].split(" ", 1)[1]
        cells.setdefault((gpu, model, what, kv), {})[way] = (r["speed_tg"] if batch else r["avg_ts"], r["checked"])
    shown = [way for way in ways if any(way in cell for cell in cells.values())]
    out = ["| machine | model | what | cache |" + "".join(f" {ways[way]}, tok/s |" + (" times one |" if way != "one" else "") for way in shown),
           "|---|---|---|---|" + "---:|" * (2 * len(shown) - 1)]
    for (gpu, model, what, kv), cell in cells.items():
        line = f"| {gpu} | {model} | {what} | {kv} |"
        for way in shown:
            speed, checked = cell.get(way, (None, True))
            line += f" {speed:.{1 if speed < 1000 else 0}f}{'' if checked else ' (off)'} |" if speed else " |"
            if way != "one":
                line += f" {speed / cell['one'][0]:.2f} |" if speed and "one" in cell else " |"
        out.append(line)
    return out


TABLES = {
    "collective-cuda": collectives,
    "int-products-tried-cuda": int_products_tried,
    "bricks-tried-cuda": bricks_tried,
    "ranks-cuda": ranks,
    "ranks-tried-cuda": lambda: ranks("checks/ranks-tried-cuda.jsonl"),
    "profile-experts-cuda": expert_profiles,
    "counters-cuda": counters,
    "ternary-cuda": ternary,
    "append-cuda": append,
    "attention-tried-cuda": attention_tried,
    "packs-tried-cuda": packs_tried,
    "quantise-inside-cuda": quantise_inside,
    "planes-cuda": planes,
    "ppl-bitnet": bitnet,
    "kv-hybrid": hybrid,
    "sanitizers-cuda": sanitizers,
    "gate-cuda": gate,
    "step-variants-cuda": variants,
    "step-chain-cuda": chain,
    "step-stages-cuda": stages,
}
