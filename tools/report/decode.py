"""Section: decode steps of whole models against the memory bandwidth of the same run."""

from rows import amount, cache_name, clip, date, is_control, kind, machine, newest, number, numbers, passed, positive, quartiles, text, whole

TITLE = "Decode of whole models, against memory bandwidth"
COMMAND = "ridge bench decode -m synth:qwen2.5-1.5b@weights=q4_0 -p 0 -n 64 -d 0,4096 --kv f16,q8_0,rotor-3 --results results/decode-cpu.jsonl"
FIELDS = ["machine", "model", "kv", "depth", "tok_s", "tok_s_lower", "tok_s_upper", "read_bytes", "gb_s", "roof_gb_s", "pct_of_roof",
          "in_cache", "check_error", "check_bound", "date", "build_commit"]


def data(rows):
    """One line per (machine, model, depth, cache) of bench decode: the newest row whose check passed."""
    found = [r for r in rows if kind(r) == "decode" and (whole(r, "n_gen") or 0) > 0 and passed(r) is True and positive(r, "avg_ts")
             and machine(r) and cache_name(r) and whole(r, "n_depth") is not None
             and not is_control(r)]
    key = lambda r: (machine(r), text(r, "model_filename"), whole(r, "n_depth"), cache_name(r))
    out = []
    for r in newest(found, key):
        spread = quartiles(numbers(r, "samples_ts"))
        mean, deviation = positive(r, "avg_ts"), number(r, "stddev_ts") or 0
        lower, median, upper = spread or (max(mean - deviation, 0.0), mean, mean + deviation)
        out.append({"machine": machine(r), "model": text(r, "model_filename", default="?"), "kv": cache_name(r), "depth": whole(r, "n_depth"),
                    "tok_s": median, "tok_s_lower": lower, "tok_s_upper": upper, "read_bytes": whole(r, "read_bytes"),
                    "gb_s": positive(r, "read_gb_s"), "roof_gb_s": positive(r, "roof_gb_s"), "pct_of_roof": positive(r, "pct_of_roof"),
                    "in_cache": r.get("in_cache") is True, "check_error": number(r, "check_error"), "check_bound": number(r, "check_bound"),
                    "date": date(r), "build_commit": text(r, "build_commit")})
    return out


def sentence(lines):
    shown = [d for d in lines if d["pct_of_roof"] and not d["in_cache"]]
    if not shown:
        return "No row here reads from memory and knows its bandwidth, so no share of it can be given."
    best, worst = max(shown, key=lambda d: d["pct_of_roof"]), min(shown, key=lambda d: d["pct_of_roof"])
    name = lambda d: f"{d['kv']} at depth {d['depth']}"
    if best is worst:
        return f"{name(best)} reads at {best['pct_of_roof']:.0f} % of memory bandwidth."
    return (f"Nearest to memory bandwidth: {name(best)} with {best['pct_of_roof']:.0f} %; furthest from it: {name(worst)} with "
            f"{worst['pct_of_roof']:.0f} %. What is missing to 100 % is time that does not wait for memory.")


def draw(lines, look):
    groups = {}
    for d in lines:
        groups.setdefault((d["machine"], d["model"]), []).append(d)
    groups = list(groups.items())[:8]
    heights = [len(found) for _, found in groups]
    f = look.Figure("decode", len(groups), 1, 10.4, 0.95 * len(groups) + 0.33 * sum(heights), gridspec_kw={"height_ratios": heights})
    for ax, ((where, model), found) in zip(f.axes, groups):
        found = sorted(found, key=lambda d: d["depth"])
        for i, d in enumerate(found):
            share = d["pct_of_roof"] or 0
            bar = ax.barh(i, share, height=0.66, color=look.colour(d["kv"]), alpha=0.35 if d["in_cache"] else 1)[0]
            f.tip(bar, f"{d['kv']} at depth {d['depth']}: {amount(d['tok_s'], 4)} tok/s (quartiles {amount(d['tok_s_lower'], 4)} to "
                       f"{amount(d['tok_s_upper'], 4)}), {amount(d['gb_s'])} of {amount(d['roof_gb_s'])} GB/s")
            note = f"{amount(d['tok_s'])} tok/s, " + (f"{share:.0f} %" if d["pct_of_roof"] else "bandwidth unknown") + (
                " (data stays in cache)" if d["in_cache"] else "")
            ax.text(min(share, 101) + 1, i, note, va="center", fontsize=9, bbox=dict(facecolor=look.PAPER, edgecolor="none", pad=1.5))
        ax.set_yticks(range(len(found)), [f"{clip(d['kv'], 30)}, depth {d['depth']}" for d in found])
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.axvline(100, color=look.INK, lw=1.2)
        ax.set_xlim(0, 125)
        ax.set_xticks(range(0, 101, 20), [f"{x} %" for x in range(0, 101, 20)])
        look.title(ax, clip(model, 80), f"{clip(where, 70)}; share of the read bandwidth measured in the same run")
    f.figure.tight_layout()
    return f
