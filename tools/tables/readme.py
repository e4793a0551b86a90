"""The table of README.md."""

from tables import quality, speed
from tables.rows import estimate, rate, table

CACHES = ("f16", "q8_0", "p8/q4_0", "q4_0", "rotor-4", "rotor-3", "rotor-3u")
MODELS = (("cpu", "synth:qwen2.5-0.5b@weights=q4_0"), ("cuda", "synth:qwen2.5-1.5b@weights=int4_g128"))
DEPTHS = (0, 131072)


def summary():
    """What a cache costs and gains: quality of one model, and speed of two synthetic ones with an empty cache and behind 128k positions."""
    of = {r["kv"]: r for r in quality.finished("kv-matrix") if r["path"] == "decode" and r["model_name"] == "ridge-ref"}
    speeds, head = [], []
    for device, name in MODELS:
        found = {kv: by for (_, model, kv), by in speed.decode_speeds(device).items() if model == name}
        for depth in DEPTHS:
            speeds.append({kv: by[depth]["avg_ts"] for kv, by in found.items() if depth in by})
            head.append(f"{'CPU' if device == 'cpu' else 'H200'}, depth {'0' if depth == 0 else '128k'}")
    lines = []
    for kv in CACHES:
        r = of[kv]
        line = [kv, f"{r['effective_bits_4k']:.2f}", f"{r['kld']['mean']['value']:.6f}", f"{100 * r['same_top']['value']:.1f}", estimate(r["difference"], 3)]
        for by in speeds:
            line.append("" if kv not in by else rate(by[kv]) if kv == "f16" else f"{rate(by[kv])} ({by[kv] / by['f16']:.2f}x)")
        lines.append(line)
    return table(["K and V cache", "bits a value at 4k", "mean KLD", "same top token %", "PPL - f16", *head], lines)


TABLES = {"summary": summary}
