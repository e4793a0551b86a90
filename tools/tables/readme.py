"""The table of README.md."""

from tables import quality, speed
from tables.rows import estimate, table

CACHES = ("f16", "q8_0", "p8/q4_0", "q4_0", "rotor-4", "rotor-3", "rotor-3s", "rotor-3u")
MODELS = (("cpu", "synth:qwen2.5-0.5b@weights=q4_0", 32768), ("cuda", "synth:qwen2.5-1.5b@weights=int4_g128", 131072))


def summary():
    """What a cache costs and gains: quality of one model on the decode path, speed of two synthetic ones at depth."""
    of = {r["kv"]: r for r in quality.finished("kv-matrix") if r["path"] == "decode" and r["model_name"] == "ridge-ref"}
    lines = []
    for kv in CACHES:
        r = of[kv]
        line = [kv, f"{r['effective_bits_4k']:.2f}", f"{r['kld']['mean']['value']:.6f}", f"{100 * r['same_top']['value']:.1f}", estimate(r["difference"], 3)]
        for device, name, depth in MODELS:
            speeds = [by[depth]["avg_ts"] for (_, model, cache), by in speed.decode_speeds(device).items() if (model, cache) == (name, kv) and depth in by]
            line.append(f"{speeds[0]:.0f}" if speeds else "")
        lines.append(line)
    return table(["K and V cache", "bits a value at 4k", "mean KLD", "same top %", "PPL - f16", "CPU, tok/s", "H200, tok/s"], lines)


TABLES = {"summary": summary}
