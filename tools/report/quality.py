"""Section: what a cache format costs in quality, in bytes, and what it pays in speed."""

import decode
from limits import KLD, PPL_RISE, kept
from rows import amount, clip, cache_name, date, kind, newest, number, positive, text, whole

TITLE = "Quality, bytes and speed of cache formats"
COMMAND = "ridge eval kld -m models/ridge-ref-q8_0.gguf -f models/wikitext-2-excerpt.txt --path decode --kv shelf --results results/kv-matrix.jsonl"
FIELDS = ["model", "path", "n_ctx", "kv", "bits_per_value", "bits_at_4k", "kld", "kld_error", "ppl_rise", "gate", "same_top", "tok_s", "tok_s_depth",
          "tok_s_model", "tok_s_machine", "tok_s_vs_f16", "tokens_scored", "date", "build_commit"]


def speeds(rows):
    """{cache: line of bench decode at the largest depth where f16 was measured too}, of the machine and model with the most caches there."""
    lines = decode.data(rows)
    places = {(d["machine"], d["model"], d["depth"]) for d in lines if d["kv"] == "f16"}
    places = sorted(places, key=lambda p: (p[2], sum((d["machine"], d["model"], d["depth"]) == p for d in lines), p))  # names settle a draw
    if not places:
        return {}
    found = [d for d in lines if (d["machine"], d["model"], d["depth"]) == places[-1]]
    base = next(d["tok_s"] for d in found if d["kv"] == "f16")
    return {d["kv"]: {**d, "vs_f16": d["tok_s"] / base} for d in found}


def verdict(r):
    """As gate 4 of ridge decide; empty for a row without perplexity."""
    parts = [number(r, *where) for where in (("difference", "value"), ("difference", "error"), ("kld", "mean", "value"), ("kld", "mean", "error"))]
    return "" if parts[0] is None else "no verdict" if None in parts else kept(*parts)


def data(rows):
    """One line per model, window and cache format without options: of the decode path where there is one, else of prefill."""
    found = []
    for r in rows:
        plain = ":" not in text(r, "kv") and ";" not in text(r, "kv")
        if kind(r) == "eval_kld" and plain and text(r, "kv") and number(r, "kld", "mean", "value") is not None and (
                whole(r, "chunks") == whole(r, "chunks_planned")):
            found.append(r)
    name = lambda r: (f"{text(r, 'model_name', default='?')} {text(r, 'weight_format')}".strip(), whole(r, "n_ctx"))
    decoded = {name(r) for r in found if text(r, "path") == "decode"}
    found = [r for r in found if text(r, "path") == "decode" or name(r) not in decoded]
    fast = speeds(rows)
    out = []
    for r in newest(found, lambda r: (name(r), cache_name(r))):
        k, v = number(r, "kv_k", "bits_per_value"), number(r, "kv_v", "bits_per_value")
        rise = number(r, "difference", "value")
        speed = fast.get(cache_name(r))
        out.append({"model": name(r)[0], "path": text(r, "path", default="?"), "n_ctx": whole(r, "n_ctx"), "kv": cache_name(r),
                    "bits_per_value": (k + v) / 2 if k and v else None, "bits_at_4k": positive(r, "effective_bits_4k"),
                    "kld": number(r, "kld", "mean", "value"), "kld_error": number(r, "kld", "mean", "error"), "ppl_rise": rise,
                    "gate": verdict(r), "same_top": number(r, "same_top", "value"),
                    "tok_s": speed and speed["tok_s"], "tok_s_depth": speed and speed["depth"], "tok_s_model": speed and speed["model"],
                    "tok_s_machine": speed and speed["machine"], "tok_s_vs_f16": speed and speed["vs_f16"],
                    "tokens_scored": whole(r, "tokens_scored"), "date": date(r), "build_commit": text(r, "build_commit")})
    return out


def panels(lines):
    out = {}
    for d in lines:
        out.setdefault((d["model"], d["n_ctx"], d["path"]), []).append(d)
    return out


def sentence(lines):
    out = []
    for (model, _, _), found in panels(lines).items():
        passing = [d for d in found if d["gate"] == "pass" and d["bits_per_value"]]
        failing = [d["kv"] for d in found if d["gate"] == "FAIL"]
        if passing:
            least = min(passing, key=lambda d: (d["bits_per_value"], d["kld"]))
            out.append(f"{model}: the smallest cache within +{PPL_RISE} perplexity and {KLD} nats of f16 beyond doubt is {least['kv']}, {least['bits_per_value']:g} bits, mean KLD "
                       f"{amount(least['kld'])}" + (f"; {', '.join(failing)} do{'es' if len(failing) == 1 else ''} not." if failing else "."))
    return " ".join(out[:3])


def draw(lines, look):
    shown = sorted(panels(lines).items(), key=lambda item: -len(item[1]))[:4]
    shown = [item for item in shown if 2 * len(item[1]) > len(shown[0][1])]  # a window with few caches is in the table only
    columns = 2 if len(shown) > 1 else 1
    n_rows = (len(shown) + columns - 1) // columns
    height = 4.9 * n_rows
    f = look.Figure("quality", n_rows, columns, 10.4, height)
    f.figure.subplots_adjust(left=0.06, right=0.975, wspace=0.16, hspace=0.36, top=1 - 0.52 / height, bottom=0.62 / height)
    for ax in f.axes[len(shown):]:
        ax.set_visible(False)
    for ax, ((model, n_ctx, path), found) in zip(f.axes, shown):
        found = [d for d in found if d["bits_per_value"]]
        some = [d["kld"] for d in found if d["kld"] > 0]
        if not some:
            ax.set_visible(False)
            continue
        floor = min(some) / 6  # where f16, which has no divergence at all, is drawn
        ax.set_yscale("log")
        ax.set_xscale("log", base=2)
        bits = [d["bits_per_value"] for d in found]
        ax.set_xlim(min(bits) * 0.86, max(bits) * 1.22)
        ax.set_ylim(floor / 2, max(some) * 4)
        ticks = [t for t in (2, 3, 4, 6, 8, 12, 16, 32) if min(bits) * 0.86 <= t <= max(bits) * 1.22]
        ax.set_xticks(ticks, [str(t) for t in ticks])
        ax.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
        labels = look.Labels(ax, overhang=6)
        at = lambda d: d["kld"] if d["kld"] > 0 else floor
        for d in found:
            labels.block(d["bits_per_value"], at(d), 5)
        for d in found:
            shade = look.colour(d["kv"])
            size = 9 * (d["tok_s_vs_f16"] or 0.8) ** 0.5 * 1.15
            dot = ax.plot([d["bits_per_value"]], [at(d)], "o", color=shade, markersize=min(max(size, 5), 24), alpha=0.95,
                          markerfacecolor=shade if d["gate"] != "FAIL" else look.PAPER, markeredgewidth=1.8, zorder=3)[0]
            f.tip(dot, f"{d['kv']}: {d['bits_per_value']:g} bits a value ({amount(d['bits_at_4k'])} at 4k with window and sinks), mean KLD {amount(d['kld'])} ± "
                       f"{amount(d['kld_error'])}, perplexity {'?' if d['ppl_rise'] is None else format(d['ppl_rise'], '+.4f')} ({d['gate'] or 'no gate'})"
                       + (f", {amount(d['tok_s'])} tok/s at depth {d['tok_s_depth']}" if d["tok_s"] else ""))
        for d in sorted(found, key=lambda d: (not d["tok_s"], d["bits_per_value"])):
            second = f"\n{amount(d['tok_s'])} tok/s" if d["tok_s"] else ""
            labels.put(d["bits_per_value"], at(d), f"{clip(d['kv'], 30)}{second}", look.colour(d["kv"]), must=True)
        ax.axhline(floor, color=look.FAINT, lw=1)
        if any(d["kld"] <= 0 for d in found):
            ax.annotate("no divergence at all", (0, floor), xycoords=("axes fraction", "data"), xytext=(4, 3), textcoords="offset points", fontsize=7.5, color=look.SOFT)
        look.title(ax, clip(model, 50), f"mean KL divergence from f16 in nats; {path} path, windows of {n_ctx} tokens")
        ax.set_xlabel("bits per value of K and V, scales included")
    return f
