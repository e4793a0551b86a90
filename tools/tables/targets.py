"""The targets of speed (docs/targets.md) against the stored rows.

A target is (card, what, wanted, measured, met): `measured` is None while no row says. Targets of int4 products ask for rows of the kernel that models run.
"""

from tables import serving, speed
from tables.rows import cache, card, stored, table as markdown

HEADS = ((20, 5), (64, 8), (12, 2))
INT4_MICROSECONDS = {(57344, 8192): 62.5, (28672, 4096): 17.7, (8960, 1536): 3.5, (1536, 1536): 2.3}
# (model, weights, depth, cache): tokens a second
MODELS = {
    ("qwen2.5-1.5b", "int4_g128", 0, "f16"): (2000, 3000),
    ("qwen2.5-1.5b", "int4_g128", 8192, "f16"): (1900,), ("qwen2.5-1.5b", "int4_g128", 8192, "rotor-3"): (2000,),
    ("qwen2.5-1.5b", "int4_g128", 32768, "f16"): (1500,), ("qwen2.5-1.5b", "int4_g128", 32768, "rotor-3"): (2000,),
    ("qwen2.5-1.5b", "int4_g128", 131072, "f16"): (750,), ("qwen2.5-1.5b", "int4_g128", 131072, "rotor-3"): (1600,),
    ("qwen2.5-1.5b", "f16", 0, "f16"): (1100,), ("qwen2.5-1.5b", "f16", 32768, "f16"): (1100,),
    ("llama-3.1-8b", "int4_g128", 0, "f16"): (800,),
    ("llama-3.1-8b", "int4_g128", 32768, "f16"): (420,), ("llama-3.1-8b", "int4_g128", 32768, "rotor-3"): (650,),
    ("llama-3.1-8b", "int4_g128", 131072, "f16"): (190,), ("llama-3.1-8b", "int4_g128", 131072, "rotor-3"): (420,),
    ("bitnet-2b-4t", "i2_s", 512, "f16"): (2400,), ("qwen3.6-35b-a3b", "int4_g128", 0, "f16"): (800,),
}
# How the model of a row says so; the target of ternary weights is one with a head of 8 bits.
OPTION_OF = {"int4_g128": "weights=int4_g128", "f16": "weights=f16", "i2_s": "head=q8_0"}

# Targets of a later date: rotor-3 at every length, prompts, hybrid and expert models, many sequences, steps that verify draft tokens.
ROTOR_MICROSECONDS = {(64, 8, 1, 512): 7.7, (64, 8, 1, 4096): 8.2, (64, 8, 1, 32768): 12.9, (64, 8, 1, 131072): 32, (64, 8, 8, 32768): 60}
AGAINST_F16 = {(20, 5, 16384, "rotor-3"): 1.8, (16, 2, 102400, "rotor-3"): 2.6, (40, 8, 20480, "rotor-3"): 2, (64, 8, 131072, "p8/q4_0"): 2.7}
PROMPTS_AGAINST_F16 = {"qwen2.5-1.5b": 0.9, "llama-3.1-8b": 0.9}
PROMPTS = {  # (model, weights, tokens, cache): thousand tokens a second
    ("qwen2.5-1.5b", "int4_g128", 4096, "f16"): 95, ("qwen2.5-1.5b", "int4_g128", 4096, "rotor-3"): 90,
    ("llama-3.1-8b", "int4_g128", 4096, "f16"): 29, ("llama-3.1-8b", "int4_g128", 4096, "rotor-3"): 28,
    ("llama-3.1-8b", "q4_k_m", 4096, "f16"): 26, ("qwen3.6-35b-a3b", "int4_g128", 2048, "f16"): 25,
}
BATCHES = {  # (model, prompts, sequences, cache): tokens a second
    ("llama-3.1-8b", "pp2048", 64, "f16"): 6500, ("llama-3.1-8b", "pp2048", 64, "rotor-3"): 10000, ("qwen3.6-35b-a3b", "pp128", 16, "f16"): 2400,
}
LATER_MODELS = {  # (model, option, depth, cache)
    ("qwen2.5-1.5b", "weights=int4_g128", 0, "f16"): 1800, ("llama-3.1-8b", "weights=int4_g128", 0, "f16"): 780,
    ("bitnet-2b-4t", "head=q8_0", 0, "f16"): 1200, ("gpt-oss-20b", "weights=mxfp4", 0, "f16"): 350,
    ("qwen3.6-35b-a3b", "weights=int4_g128", 0, "f16"): 450,
}


def at_most(what, target, us):
    return what, f"<= {target:g} us", None if us is None else f"{us:.2f} us", us is not None and us <= target


def at_least(what, target, ratio, unit="x"):
    return what, f">= {target:g}{unit}", None if ratio is None else f"{ratio:.2f}{unit}", ratio is not None and ratio >= target


def attention():
    axes = ("n_heads", "n_kv_heads", "head_dim", "n_seq", "n_keys")
    measured, known = speed.ops("cuda", "attention", axes, "kv"), speed.peers("attention", axes)

    def us(heads, keys, kv):
        r = measured.get((*heads, 128, 1, keys), {}).get(kv)
        return r["median_us"] if r else None

    def best_peer(heads, keys):
        return speed.best_f16_peer(known, (*heads, 128, 1, keys))

    def ratio(a, b):
        return None if a is None or b is None else a / b

    for heads in HEADS:
        name = f"{heads[0]}/{heads[1]}"
        for keys in (512, 4096, 8192, 16384, 32768, 131072):
            peer = best_peer(heads, keys)
            if peer is not None:
                yield at_least(f"attention {name} x {keys}: f16 against the best peer", 1, ratio(peer, us(heads, keys, "f16")))
        for keys in (512, 1024):
            yield at_most(f"attention {name} x {keys}: f16", 5.5, us(heads, keys, "f16"))
        for keys in (16384, 32768, 131072):
            yield at_least(f"attention {name} x {keys}: rotor-3 against our f16", 1,
                           ratio(us(heads, keys, "f16"), us(heads, keys, "rotor-3")))
    big = (64, 8)
    for keys, rotor in ((32768, 3), (131072, 3.5)):
        for kv, target in (("p8/q8_0", 1.6), ("p8/q4_0", 2), ("rotor-3", rotor)):
            yield at_least(f"attention 64/8 x {keys}: {kv} against the best f16 peer", target, ratio(best_peer(big, keys), us(big, keys, kv)))
    for keys in (16384, 32768, 131072):
        yield at_least(f"attention 20/5 x {keys}: rotor-3 against the best f16 peer", 1.1,
                       ratio(best_peer((20, 5), keys), us((20, 5), keys, "rotor-3")))


def int4():
    axes = ("n_out", "n_in", "n_tokens")
    measured, known = speed.ops("cuda", "gemv", axes, "weight_format"), speed.peers("gemv", axes)

    def us(shape, n, weights="int4_g128"):
        r = measured.get((*shape, n), {}).get(weights)
        return r["median_us"] if r else None

    shapes = sorted({key[:2] for key in known})
    for shape in shapes:
        name = f"{shape[0]}x{shape[1]}"
        one = us(shape, 1)
        if shape in INT4_MICROSECONDS:
            yield at_most(f"int4_g128 {name}, 1 token", INT4_MICROSECONDS[shape], one)
        for n, target in ((8, 1.10), (16, 1.25)):
            t = us(shape, n)
            grown = None if t is None or one is None else t / one
            yield (f"int4_g128 {name}: {n} tokens against 1", f"<= {target:g}x", None if grown is None else f"{grown:.2f}x",
                   grown is not None and grown <= target)
        for n in (1, 8, 16, 32):
            for peer in ("cuBLAS f16", "Marlin int4"):
                theirs, ours = known.get((*shape, n), {}).get(peer), us(shape, n)
                if theirs is not None:
                    yield at_least(f"int4_g128 {name}, {n} tokens against {peer}", 1, None if ours is None else theirs / ours)
        theirs, ours = known[(*shape, 1)].get("cuBLAS f16"), us(shape, 1, "f16")
        if theirs is not None:
            yield at_least(f"f16 {name}, 1 token against cuBLAS", 1, None if ours is None else theirs / ours)


def models():
    found = {}
    for r in stored("decode-cuda"):
        if r.get("n_gen", 0) > 0 and r.get("n_prompt") == 0 and r["type_k"] == r["type_v"]:
            found[(r["model_filename"], r["n_depth"], r["type_k"])] = r["avg_ts"]
    for (model, weights, depth, kv), targets in MODELS.items():
        speed_of = next((ts for (name, d, k), ts in found.items()
                         if model in name and OPTION_OF[weights] in name and d == depth and k == kv), None)
        for target in targets:
            yield (f"{model} {weights}, {kv} cache, depth {depth}", f">= {target} tok/s",
                   None if speed_of is None else f"{speed_of:.0f} tok/s", speed_of is not None and speed_of >= target)


def later():
    axes = ("n_heads", "n_kv_heads", "head_dim", "n_seq", "n_keys")
    measured = speed.ops("cuda", "attention", axes, "kv")

    def us(heads, kv_heads, n_seq, keys, kv):
        r = measured.get((heads, kv_heads, 128, n_seq, keys), {}).get(kv)
        return r["median_us"] if r else None

    def ratio(a, b):
        return None if a is None or b is None else a / b

    for (heads, kv_heads, n_seq, keys), target in ROTOR_MICROSECONDS.items():
        yield at_most(f"attention {heads}/{kv_heads}, {n_seq} x {keys}: rotor-3", target, us(heads, kv_heads, n_seq, keys, "rotor-3"))
    for (heads, kv_heads, keys, kv), target in AGAINST_F16.items():
        yield at_least(f"attention {heads}/{kv_heads} x {keys}: {kv} against our f16", target,
                       ratio(us(heads, kv_heads, 1, keys, "f16"), us(heads, kv_heads, 1, keys, kv)))
    for r in stored("checks/append-cuda"):
        if r["kv"] == "rotor-3" and r["n_seq"] == 1 and r["n_new"] == 1:
            yield at_most(f"append of a layer, {r['n_kv_heads']} kv heads: rotor-3", 1.2, r["median_us"])

    rows = {}
    for r in stored("decode-cuda"):
        if "n_gen" in r and r["type_k"] == r["type_v"]:
            rows[(r["model_filename"], r["n_prompt"], r["n_gen"] > 0, r["n_depth"], r["type_k"])] = r

    def row_of(model, option, n_prompt, depth, kv):
        return next((r for (name, n, gen, d, k), r in rows.items()
                     if model in name and option in name and (n, gen, d, k) == (n_prompt, n_prompt == 0, depth, kv)), None)

    def rate(*of):
        r = row_of(*of)
        return r["avg_ts"] if r else None

    for model, target in PROMPTS_AGAINST_F16.items():
        of = (model, "weights=int4_g128", 4096, 0)
        yield at_least(f"{model} int4_g128, prompt of 4096: rotor-3 against f16", target, ratio(rate(*of, "rotor-3"), rate(*of, "f16")))
    for (model, weights, n, kv), target in PROMPTS.items():
        ts = rate(model, "weights=" + weights, n, 0, kv)
        yield at_least(f"{model} {weights}, {kv} cache, prompt of {n}", target, ts / 1e3 if ts else None, "k tok/s")
    of = ("qwen2.5-1.5b", "weights=int4_g128", 0, 0)
    yield at_least("qwen2.5-1.5b int4_g128, decode at depth 0: rotor-3 against f16", 0.95, ratio(rate(*of, "rotor-3"), rate(*of, "f16")))
    for (model, option, depth, kv), target in LATER_MODELS.items():
        ts = rate(model, option, 0, depth, kv)
        weights = next(name for name, of in (*OPTION_OF.items(), ("mxfp4", "weights=mxfp4")) if of == option)
        yield f"{model} {weights}, {kv} cache, depth {depth}", f">= {target} tok/s", None if ts is None else f"{ts:.0f} tok/s", ts is not None and ts >= target
    dense = row_of("qwen3.6-27b", "weights=int4_g128", 0, 0, "f16")
    yield at_least("qwen3.6-27b int4_g128, depth 0: share of measured memory bandwidth", 65, dense["pct_of_roof"] if dense else None, " %")
    hybrid = ("qwen3.6-35b-a3b", "weights=int4_g128", 0)
    yield at_least("qwen3.6-35b-a3b int4_g128: rotor-3 behind 32768 against depth 0", 0.75, ratio(rate(*hybrid, 32768, "rotor-3"), rate(*hybrid, 0, "rotor-3")))
    yield from batches()
    yield from verification()


def batches():
    found = {}
    for r in stored("batch-cuda"):
        if r["type_k"] == r["type_v"]:
            found[(r["model_filename"].removeprefix("synth:").split("@")[0], r["test"].split("+")[0].replace("fill", "pp"), r["n_seq"], r["type_k"])] = r["speed_tg"]
    f16, rotor = (found.get(("llama-3.1-8b", "pp8192", 64, kv)) for kv in ("f16", "rotor-3"))
    yield at_least("llama-3.1-8b int4_g128, 64 sequences behind 8192 tokens: rotor-3 against f16", 1.8, rotor / f16 if f16 and rotor else None)
    for (model, prompts, n, kv), target in BATCHES.items():
        ts = found.get((model, prompts, n, kv))
        yield f"{model} int4_g128, {kv} cache, {n} sequences behind {prompts[2:]} tokens", f">= {target} tok/s", None if ts is None else f"{ts:.0f} tok/s", ts is not None and ts >= target
    one, many = (found.get(("qwen3.6-35b-a3b", "pp128", n, "f16")) for n in (1, 16))
    yield at_least("qwen3.6-35b-a3b int4_g128: 16 sequences against 1", 5, many / one if one and many else None)


def verification():
    """A step of one token and three draft tokens that cost nothing to make, in steps of one token."""
    for r in serving.last_drafts():
        if r["spec_type"] == "lookup" and r["spec_depth"] == 3 and r["forced_accept"] == 1:
            steps = serving.verified_step(r)
            model = r["model_filename"].removeprefix("synth:").split("@")[0]
            yield f"{model} int4_g128, {cache(r)} cache, depth {r['n_depth']}: 4 tokens against 1", "<= 1.25x", f"{steps:.2f}x", steps <= 1.25, card(r)


def table():
    targets = [target if len(target) == 5 else (*target, "H200") for target in (*attention(), *int4(), *models(), *later())]
    known = [b for b in targets if b[2] is not None]
    met = sum(b[3] for b in known)
    return [f"Met: {met} of {len(known)} measured targets. Missed: {len(known) - met}. Not measured: {len(targets) - len(known)}.", ""] + markdown(
        ["device", "target", "wanted", "measured", "state"],
        [[where, what, wanted, measured or "no row", "met" if met else "**missed**" if measured else ""] for what, wanted, measured, met, where in targets])


TABLES = {"targets": table}
