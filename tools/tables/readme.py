"""The table of README.md."""

from tables import quality, speed
from tables.rows import NO_ROWS, rate, table

SAME = ":window=96:sinks=4"
CACHES = (  # name, K and V as the rows of kv-policy have them, the cache whose speed is shown
    ("f16", "f16", "f16"), ("q8_0", f"q8_0{SAME}", "q8_0"), ("q4_0, rotated", f"q4_0:hadamard{SAME}", None), ("rotor-4", f"rotor-4{SAME}", "rotor-4"),
    ("rotor-4 for K, rotor-3 for V", f"rotor-4{SAME}/rotor-3{SAME}", None), ("rotor-3", f"rotor-3{SAME}", "rotor-3"), ("q4_0, bare", "q4_0:window=0:sinks=0", "q4_0"),
    ("rotor-3, bare", "rotor-3:window=0:sinks=0", None))
MODELS = (("SmolLM2 135M", "SmolLM2"), ("Gemma 3 270M", "gemma-3"), ("ridge-ref 30M", "ridge-ref"))
SPEEDS = (("cpu", "synth:qwen2.5-0.5b@weights=q4_0", "CPU"), ("cuda", "synth:qwen2.5-1.5b@weights=int4_g128", "H200"))
N_CTX, DEPTHS = 512, (0, 131072)


def summary():
    """What a cache costs on each model with the same exact rows for every codec, and its speed while empty and behind 128k positions."""
    found = [r for r in quality.finished("kv-policy") if r["n_ctx"] == N_CTX]
    if not found:
        return NO_ROWS
    by_model = [(name, {r["kv"]: r for r in found if quality.stem(r).startswith(start)}) for name, start in MODELS]
    by_model = [(name, of) for name, of in by_model if of]
    speeds = [{kv: by[depth]["avg_ts"] for (_, model, kv), by in speed.decode_speeds(device).items() if model == synth and depth in by}
              for device, synth, _ in SPEEDS for depth in DEPTHS]
    lines = []
    for name, kv, fast in CACHES:
        some = next(of[kv] for _, of in by_model if kv in of)
        line = [name, f"{some['effective_bits_4k']:.2f}"]
        for _, of in by_model:
            r = of.get(kv)
            line.append("" if r is None else f"{r['kld']['mean']['value']:.4f} / {r['difference']['value']:+.2f}")
        line += ["" if fast not in by else rate(by[fast]) if fast == "f16" else f"{rate(by[fast])} ({by[fast] / by['f16']:.2f}x)" for by in speeds]
        lines.append(line)
    head = [f"{name}: KLD / ΔPPL" for name, _ in by_model]
    return table(["K and V cache", "bits a value at 4k", *head, *(f"{name} tok/s, {cached}" for _, _, name in SPEEDS for cached in ("empty", "128k"))], lines)


TABLES = {"summary": summary}
