"""The bars for one H200 (why these: docs/benchmarks.md) against the stored rows, for render_docs.py.

A bar is (what, wanted, measured, met): `measured` is None while no row says.
"""

import speed_tables as speed

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
    ("bitnet-2b-4t", "i2_s", 512, "f16"): (2400,),
}
# How the model of a row says so; the bar of ternary weights is one with a head of 8 bits.
OPTION_OF = {"int4_g128": "weights=int4_g128", "f16": "weights=f16", "i2_s": "head=q8_0"}


def at_most(what, bar, us):
    return what, f"<= {bar:g} us", None if us is None else f"{us:.2f} us", us is not None and us <= bar


def at_least(what, bar, ratio, unit="x"):
    return what, f">= {bar:g}{unit}", None if ratio is None else f"{ratio:.2f}{unit}", ratio is not None and ratio >= bar


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
        for kv, bar in (("p8/q8_0", 1.6), ("p8/q4_0", 2), ("rotor-3", rotor)):
            yield at_least(f"attention 64/8 x {keys}: {kv} against the best f16 peer", bar, ratio(best_peer(big, keys), us(big, keys, kv)))
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
        for n, bar in ((8, 1.10), (16, 1.25)):
            t = us(shape, n)
            grown = None if t is None or one is None else t / one
            yield (f"int4_g128 {name}: {n} tokens against 1", f"<= {bar:g}x", None if grown is None else f"{grown:.2f}x",
                   grown is not None and grown <= bar)
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
    for r in speed.rows("decode-cuda.jsonl", "sweep-cuda.jsonl"):
        if r.get("n_gen", 0) > 0 and r.get("n_prompt") == 0 and r["type_k"] == r["type_v"]:
            found[(r["model_filename"], r["n_depth"], r["type_k"])] = r["avg_ts"]
    for (model, weights, depth, kv), bars in MODELS.items():
        speed_of = next((ts for (name, d, k), ts in found.items()
                         if model in name and OPTION_OF[weights] in name and d == depth and k == kv), None)
        for bar in bars:
            yield (f"{model} {weights}, {kv} cache, depth {depth}", f">= {bar} tok/s",
                   None if speed_of is None else f"{speed_of:.0f} tok/s", speed_of is not None and speed_of >= bar)


def table():
    bars = [*attention(), *int4(), *models()]
    known = [b for b in bars if b[2] is not None]
    if not known:
        return speed.NO_ROWS
    out = [f"{sum(b[3] for b in known)} of {len(known)} measured bars are met; {len(bars) - len(known)} have no row.", "",
           "| bar | wanted | measured | |", "|---|---:|---:|---|"]
    for what, wanted, measured, met in known:
        out.append(f"| {what} | {wanted} | {measured} | {'met' if met else '**missed**'} |")
    return out
